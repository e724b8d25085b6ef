oasiskv_test(NAME common_test LABEL unit SOURCES unit/common_test.cc DEPS oasiskv::common oasiskv::proto)
