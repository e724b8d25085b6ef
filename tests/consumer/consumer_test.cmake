# The test `consumer`. It runs the installed programs, so they must be built: it belongs to the complete build.
add_test(NAME consumer
  COMMAND "${CMAKE_COMMAND}" -D "BUILD_DIR=${PROJECT_BINARY_DIR}" -D "WORK_DIR=${PROJECT_BINARY_DIR}/consumer"
          -D "C_COMPILER=${CMAKE_C_COMPILER}" -D "CXX_COMPILER=${CMAKE_CXX_COMPILER}"
          -P "${CMAKE_CURRENT_LIST_DIR}/run.cmake")
set_tests_properties(consumer PROPERTIES LABELS consumer TIMEOUT 300)
