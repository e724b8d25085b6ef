oasiskv_test(NAME ucx_transfer_test LABEL unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/ucx_transfer_test.cc
  DEPS oasiskv::fabric_ucx)
oasiskv_test(NAME ucx_peers_test LABEL unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/ucx_peers_test.cc
  DEPS oasiskv::fabric_ucx)
oasiskv_test(NAME ucx_stranger_test LABEL unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/ucx_stranger_test.cc
  DEPS oasiskv::fabric_ucx)
oasiskv_test(NAME ucx_ending_test LABEL unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/ucx_ending_test.cc
  DEPS oasiskv::fabric_ucx)
oasiskv_test(NAME ucx_lanes_test LABEL unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/ucx_lanes_test.cc
  DEPS oasiskv::fabric_ucx)
