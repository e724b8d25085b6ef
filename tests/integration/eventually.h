// Waits for a condition: a test that sleeps for a fixed time fails on a busy machine.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace oasiskv::testing {

inline constexpr std::chrono::seconds kEventually{30};

// True as soon as condition() is; false when `timeout` passed first.
template <typename Condition>
bool Eventually(Condition condition, std::chrono::nanoseconds timeout = kEventually) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace oasiskv::testing

// Evaluates the condition again and again until it is true or half a minute has passed.
#define ASSERT_EVENTUALLY(condition)                                           \
  ASSERT_TRUE(::oasiskv::testing::Eventually([&] { return bool(condition); })) \
      << "never became true: " #condition
