oasiskv_library(NAME control_stubs
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/control_stubs.cc
  DEPS oasiskv::proto oasiskv::common oasiskv::fabrics oasiskv::wire oasiskv::test_support)
oasiskv_test(NAME daemon_errors_test LABEL integration
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/daemon_errors_test.cc
  DEPS oasiskv::mini_cluster oasiskv::control_stubs)
oasiskv_test(NAME daemon_service_test LABEL integration
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/daemon_service_test.cc
  DEPS oasiskv::mini_cluster oasiskv::control_stubs)
oasiskv_test(NAME daemon_metrics_test LABEL integration
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/daemon_metrics_test.cc ${CMAKE_CURRENT_LIST_DIR}/http_get.cc
  DEPS oasiskv::mini_cluster oasiskv::control_stubs)
oasiskv_test(NAME daemon_process_test LABEL integration
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/daemon_process_test.cc ${CMAKE_CURRENT_LIST_DIR}/http_get.cc
  DEPS oasiskv::mini_cluster oasiskv::control_stubs)
oasiskv_test(NAME theft_test LABEL integration
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/theft_test.cc
  DEPS oasiskv::mini_cluster oasiskv::control_stubs)
