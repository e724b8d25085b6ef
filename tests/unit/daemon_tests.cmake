oasiskv_test(NAME address_test LABEL unit
  SOURCES unit/common/address_test.cc
  DEPS oasiskv::common)
oasiskv_test(NAME options_test LABEL unit
  SOURCES unit/server/options_test.cc
  DEPS oasiskv::server_options)
oasiskv_test(NAME slow_calls_test LABEL unit
  SOURCES unit/server/slow_calls_test.cc
  DEPS oasiskv::service)
