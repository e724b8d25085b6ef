oasiskv_test(NAME common_test LABEL unit SOURCES unit/common/common_test.cc DEPS oasiskv::common oasiskv::proto)
