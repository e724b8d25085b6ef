# Tests of client/ against daemons.
foreach(suite buffer errors load loss repeat source transfer)
  oasiskv_test(NAME client_${suite}_test LABEL integration TIMEOUT 240
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/client_${suite}_test.cc
    DEPS oasiskv::client oasiskv::mini_cluster oasiskv::test_support)
endforeach()
oasiskv_test(NAME c_api_test LABEL integration TIMEOUT 240
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/c_api_test.cc
  DEPS oasiskv::c_api oasiskv::client oasiskv::mini_cluster)
oasiskv_test(NAME verbs_absent_test LABEL integration
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/verbs_absent_test.cc
  DEPS oasiskv::client oasiskv::mini_cluster oasiskv::fabric_verbs)
