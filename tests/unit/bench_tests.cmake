oasiskv_test(NAME bench_ceiling_test LABEL unit
  SOURCES unit/tools/bench_ceiling_test.cc ${PROJECT_SOURCE_DIR}/tools/bench/ceiling.cc
          ${PROJECT_SOURCE_DIR}/tools/bench/ceiling_verbs.cc ${PROJECT_SOURCE_DIR}/tools/bench/child_process.cc
  DEPS oasiskv::common)

oasiskv_test(NAME step_model_test LABEL unit SOURCES unit/tools/step_model_test.cc DEPS oasiskv::step_model)
target_compile_definitions(step_model_test PRIVATE STEP_MODELS="${PROJECT_SOURCE_DIR}/tools/bench/step/models")
