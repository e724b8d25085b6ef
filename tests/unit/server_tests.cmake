# Unit tests of server/pool, server/sequence, server/lease and server/core.
oasiskv_test(NAME pool_test LABEL unit SOURCES unit/pool_test.cc DEPS oasiskv::pool)
oasiskv_test(NAME state_table_test LABEL unit SOURCES unit/state_table_test.cc DEPS oasiskv::core)
target_compile_definitions(state_table_test PRIVATE OASISKV_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
oasiskv_test(NAME core_sequence_test LABEL unit SOURCES unit/core_sequence_test.cc DEPS oasiskv::core)
oasiskv_test(NAME core_lease_test LABEL unit SOURCES unit/core_lease_test.cc DEPS oasiskv::core)
oasiskv_test(NAME core_race_test LABEL unit SOURCES unit/core_race_test.cc DEPS oasiskv::core)
oasiskv_test(NAME core_shm_test LABEL unit SOURCES unit/core_shm_test.cc DEPS oasiskv::core oasiskv::fabric_shm)
