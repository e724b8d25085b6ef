oasiskv_test(NAME doctor_test LABEL unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/doctor_test.cc ${CMAKE_CURRENT_LIST_DIR}/doctor_devices_test.cc
  DEPS oasiskv::doctor)
