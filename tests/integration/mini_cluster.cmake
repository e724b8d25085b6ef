oasiskv_library(NAME mini_cluster
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/mini_cluster.cc ${CMAKE_CURRENT_LIST_DIR}/process_daemon.cc
  DEPS oasiskv::daemon nlohmann_json::nlohmann_json GTest::gtest)
target_compile_definitions(oasiskv_mini_cluster PRIVATE
  OASISKVD_PATH="$<TARGET_FILE:oasiskvd>" OASISCTL_PATH="$<TARGET_FILE:oasisctl>")
# The programs are run, not linked.
add_dependencies(oasiskv_mini_cluster oasiskvd oasisctl)

oasiskv_library(NAME test_support
  SOURCES ${PROJECT_SOURCE_DIR}/tests/support/self_process.cc
  DEPS oasiskv::common)
