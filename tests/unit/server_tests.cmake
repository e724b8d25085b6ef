# Unit tests of server/pool, server/sequence, server/lease and server/core.
oasiskv_test(NAME core_sequence_test LABEL unit SOURCES unit/core_sequence_test.cc DEPS oasiskv::core)
