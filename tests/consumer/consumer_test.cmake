# The test `consumer`. It runs the installed programs, so they must be built: it belongs to the complete build.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_test(NAME consumer
  COMMAND "${CMAKE_COMMAND}" -D "BUILD_DIR=${PROJECT_BINARY_DIR}" -D "WORK_DIR=${PROJECT_BINARY_DIR}/consumer"
          -D "C_COMPILER=${CMAKE_C_COMPILER}" -D "CXX_COMPILER=${CMAKE_CXX_COMPILER}"
          -D "PYTHON=${Python3_EXECUTABLE}"
          -P "${CMAKE_CURRENT_LIST_DIR}/run.cmake")
set_tests_properties(consumer PROPERTIES LABELS consumer TIMEOUT 300)
