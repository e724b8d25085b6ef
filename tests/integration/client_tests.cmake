# Tests of client/session against daemons.
foreach(suite errors loss source transfer)
  oasiskv_test(NAME client_${suite}_test LABEL integration TIMEOUT 240
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/client_${suite}_test.cc
    DEPS oasiskv::session oasiskv::mini_cluster)
endforeach()
