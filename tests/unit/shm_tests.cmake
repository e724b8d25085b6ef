oasiskv_test(NAME fabric_coalesce_test LABEL unit
  SOURCES unit/fabric/fabric_coalesce_test.cc
  DEPS oasiskv::fabric)
oasiskv_test(NAME shm_transfer_test LABEL unit
  SOURCES unit/fabric/shm_transfer_test.cc
  DEPS oasiskv::fabric_shm)
oasiskv_test(NAME shm_peers_test LABEL unit
  SOURCES unit/fabric/shm_peers_test.cc
  DEPS oasiskv::fabric_shm)
oasiskv_test(NAME shm_process_test LABEL unit
  SOURCES unit/fabric/shm_process_test.cc
  DEPS oasiskv::fabric_shm)
