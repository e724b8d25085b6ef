oasiskv_test(NAME verbs_gid_test LABEL unit
  SOURCES ${PROJECT_SOURCE_DIR}/tests/unit/fabric/verbs_gid_test.cc
  DEPS oasiskv::fabric_verbs)

if(OASISKV_SANITIZER)
  return()  # emulated and instrumented at once is too slow to be run
endif()

# Everything that needs an RDMA device runs in one guest: starting it costs more than most of the tests.
add_executable(verbs_peer ${CMAKE_CURRENT_LIST_DIR}/verbs_peer.cc)
target_link_libraries(verbs_peer PRIVATE oasiskv_options oasiskv::fabric_verbs)
add_executable(verbs_rdma_test
  ${CMAKE_CURRENT_LIST_DIR}/verbs_attack_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/verbs_buffers_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/verbs_peers_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/verbs_transfer_test.cc)
target_link_libraries(verbs_rdma_test PRIVATE oasiskv_options oasiskv::fabric_verbs GTest::gmock GTest::gtest_main)
set_target_properties(verbs_peer verbs_rdma_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/bin")
add_dependencies(verbs_rdma_test verbs_peer)
# The same fabric through a daemon process and the client library.
add_executable(verbs_service_test
  ${CMAKE_CURRENT_LIST_DIR}/verbs_choice_test.cc ${CMAKE_CURRENT_LIST_DIR}/verbs_service_test.cc)
target_link_libraries(verbs_service_test PRIVATE
  oasiskv_options oasiskv::client oasiskv::mini_cluster oasiskv::control_stubs oasiskv::proto oasiskv::fabric_verbs
  oasiskv::test_support GTest::gmock GTest::gtest)
set_target_properties(verbs_service_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/bin")
add_dependencies(verbs_service_test oasis-bench)
# What count-instructions counts.
add_executable(verbs_count ${CMAKE_CURRENT_LIST_DIR}/verbs_count.cc)
target_link_libraries(verbs_count PRIVATE oasiskv_options oasiskv::fabric_verbs)
set_target_properties(verbs_count PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/bin")
add_custom_target(tests_rdma DEPENDS verbs_rdma_test verbs_service_test)
add_test(NAME rdma.verbs
  COMMAND "${CMAKE_CURRENT_LIST_DIR}/in-rdma-guest" --timeout 840 -- $<TARGET_FILE:verbs_rdma_test>)
add_test(NAME rdma.verbs_service
  COMMAND "${CMAKE_CURRENT_LIST_DIR}/in-rdma-guest" --timeout 840 -- $<TARGET_FILE:verbs_service_test>)
set_tests_properties(rdma.verbs rdma.verbs_service PROPERTIES LABELS rdma TIMEOUT 900 SKIP_RETURN_CODE 77)

# Over any fabric: soak_test --fabric=shm or ucx needs no device. The must-show is --seconds=120.
add_executable(soak_test
  ${CMAKE_CURRENT_LIST_DIR}/soak_test.cc ${CMAKE_CURRENT_LIST_DIR}/soak_worker.cc
  ${CMAKE_CURRENT_LIST_DIR}/soak_process.cc ${PROJECT_SOURCE_DIR}/tests/integration/http_get.cc)
target_link_libraries(soak_test PRIVATE
  oasiskv_options oasiskv::client oasiskv::working_set oasiskv::mini_cluster oasiskv::control_stubs oasiskv::test_support
  oasiskv::fabric_verbs absl::flags absl::flags_parse GTest::gmock GTest::gtest)
set_target_properties(soak_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/bin")
add_dependencies(tests_rdma soak_test)
add_test(NAME rdma.soak
  COMMAND "${CMAKE_CURRENT_LIST_DIR}/in-rdma-guest" --timeout 400 -- $<TARGET_FILE:soak_test> --seconds=20)
set_tests_properties(rdma.soak PROPERTIES LABELS rdma TIMEOUT 460 SKIP_RETURN_CODE 77)
