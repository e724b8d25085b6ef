oasiskv_test(NAME doctor_test LABEL unit
  SOURCES unit/tools/doctor_test.cc unit/tools/doctor_devices_test.cc
  DEPS oasiskv::doctor)
