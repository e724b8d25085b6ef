oasiskv_test(NAME file_fabric_test LABEL integration
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/file_fabric.cc ${CMAKE_CURRENT_LIST_DIR}/file_fabric_test.cc
  DEPS oasiskv::client oasiskv::mini_cluster oasiskv::fabrics)
