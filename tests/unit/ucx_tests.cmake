oasiskv_test(NAME ucx_transfer_test LABEL unit
  SOURCES unit/fabric/ucx_transfer_test.cc
  DEPS oasiskv::fabric_ucx)
oasiskv_test(NAME ucx_peers_test LABEL unit
  SOURCES unit/fabric/ucx_peers_test.cc
  DEPS oasiskv::fabric_ucx)
oasiskv_test(NAME ucx_stranger_test LABEL unit
  SOURCES unit/fabric/ucx_stranger_test.cc
  DEPS oasiskv::fabric_ucx)
oasiskv_test(NAME ucx_ending_test LABEL unit
  SOURCES unit/fabric/ucx_ending_test.cc
  DEPS oasiskv::fabric_ucx)
