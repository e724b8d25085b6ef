# Stateful structures fuzzed as programs: seeded, so a failure repeats.
oasiskv_test(NAME core_fuzz_test LABEL unit
  SOURCES fuzz/core_fuzz_test.cc fuzz/core_program.cc fuzz/core_program_calls.cc fuzz/core_program_checks.cc
  DEPS oasiskv::core)
