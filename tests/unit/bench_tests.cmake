oasiskv_test(NAME bench_ceiling_test LABEL unit
  SOURCES unit/tools/bench_ceiling_test.cc ${PROJECT_SOURCE_DIR}/tools/bench/ceiling.cc
          ${PROJECT_SOURCE_DIR}/tools/bench/ceiling_verbs.cc ${PROJECT_SOURCE_DIR}/tools/bench/child_process.cc
  DEPS oasiskv::common)

oasiskv_test(NAME step_model_test LABEL unit SOURCES unit/tools/step_model_test.cc DEPS oasiskv::step_model)
target_compile_definitions(step_model_test PRIVATE STEP_MODELS="${PROJECT_SOURCE_DIR}/tools/bench/step/models")

# What oasis-bench says of itself, and that an operation takes no other's flags.
function(oasiskv_bench_call_test name expected)
  add_test(NAME ${name} COMMAND oasis-bench ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 30 PASS_REGULAR_EXPRESSION "${expected}")
endfunction()
if(OASISKV_BUILD_TESTS)
  oasiskv_bench_call_test(bench_help "fetch .*attach .*put .*gather .*score .*select .*step " --help)
  oasiskv_bench_call_test(bench_operation_help "--attaches=2000.*--fabric=auto.*--frames=64,1024,8192" attach -h)
  oasiskv_bench_call_test(bench_foreign_flag "'--batch=3' is not a flag of attach" attach --batch=3)
  add_dependencies(tests_unit oasis-bench)
endif()
