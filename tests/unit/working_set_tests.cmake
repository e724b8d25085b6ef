oasiskv_test(NAME working_set_score_test LABEL unit
  SOURCES unit/working_set/working_set_score_test.cc
  DEPS oasiskv::working_set)
oasiskv_test(NAME float8_test LABEL unit
  SOURCES unit/working_set/float8_test.cc
  DEPS oasiskv::working_set)
oasiskv_test(NAME working_set_random_test LABEL unit
  SOURCES unit/working_set/working_set_random_test.cc
  DEPS oasiskv::working_set)
oasiskv_test(NAME working_set_step_test LABEL unit
  SOURCES unit/working_set/working_set_step_test.cc
  DEPS oasiskv::working_set)
oasiskv_test(NAME working_set_policy_test LABEL unit
  SOURCES unit/working_set/working_set_policy_test.cc
  DEPS oasiskv::working_set)
