# The ucx fabric over RDMA lanes; like those of verbs, all in as few guests as can be.
if(OASISKV_SANITIZER)
  return()
endif()

add_executable(ucx_rdma_test ${CMAKE_CURRENT_LIST_DIR}/ucx_rdma_test.cc ${CMAKE_CURRENT_LIST_DIR}/ucx_rdma_peers_test.cc)
target_link_libraries(ucx_rdma_test PRIVATE
  oasiskv_options oasiskv::fabric_ucx oasiskv::fabric_verbs oasiskv::test_support GTest::gmock GTest::gtest)
add_executable(ucx_rdma_service_test ${CMAKE_CURRENT_LIST_DIR}/ucx_rdma_service_test.cc ${CMAKE_CURRENT_LIST_DIR}/soak_process.cc
  ${PROJECT_SOURCE_DIR}/tests/integration/http_get.cc)
target_link_libraries(ucx_rdma_service_test PRIVATE
  oasiskv_options oasiskv::client oasiskv::mini_cluster oasiskv::proto oasiskv::test_support GTest::gmock GTest::gtest)
set_target_properties(ucx_rdma_test ucx_rdma_service_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/bin")
# Preloaded into a daemon that serves UCX's RDMA lanes.
add_library(last_wqe_event MODULE ${CMAKE_CURRENT_LIST_DIR}/last_wqe_event.cc)
target_link_libraries(last_wqe_event PRIVATE oasiskv_options PkgConfig::ibverbs ${CMAKE_DL_LIBS})
set_target_properties(last_wqe_event PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/bin")
foreach(test soak_test ucx_rdma_service_test)  # which start such daemons
  add_dependencies(${test} last_wqe_event)
endforeach()
add_dependencies(tests_rdma ucx_rdma_test ucx_rdma_service_test)
foreach(test ucx_rdma_test ucx_rdma_service_test)
  string(REPLACE "_rdma" "" name ${test})
  string(REPLACE "_test" "" name ${name})
  add_test(NAME rdma.${name}
    COMMAND "${PROJECT_SOURCE_DIR}/tests/fabric/in-rdma-guest" --timeout 840 -- $<TARGET_FILE:${test}>)
  set_tests_properties(rdma.${name} PROPERTIES LABELS rdma TIMEOUT 900 SKIP_RETURN_CODE 77)
endforeach()
