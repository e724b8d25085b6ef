oasiskv_test(NAME bench_ceiling_test LABEL unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/bench_ceiling_test.cc
          ${PROJECT_SOURCE_DIR}/tools/bench/ceiling_verbs.cc ${PROJECT_SOURCE_DIR}/tools/bench/child_process.cc
  DEPS oasiskv::common)
