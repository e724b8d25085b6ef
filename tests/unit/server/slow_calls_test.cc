// A bounded queue of calls that may block, and its stop.
#include "server/service/slow_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "oasiskv/error.h"
#include "tests/integration/eventually.h"

namespace oasiskv::server {
namespace {

using ::testing::HasSubstr;

// Thread contract: safe for concurrent use. A door that calls wait at.
class Door {
 public:
  void Wait() {
    std::unique_lock lock(mutex_);
    ++inside_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void WaitFor(int inside) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return inside_ >= inside; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int inside_ = 0;
  bool open_ = false;
};

TEST(SlowCalls, EachRunsOnceOffTheCallersThread) {
  std::vector<std::atomic<int>> runs(64);
  std::atomic<int> wrong{0};
  SlowCalls calls(3, runs.size());
  for (auto& run : runs) {
    ASSERT_TRUE(calls
                    .Add([&, caller = std::this_thread::get_id()](const absl::Status& status) {
                      if (!status.ok() || std::this_thread::get_id() == caller) ++wrong;
                      ++run;
                    })
                    .ok());
  }
  for (auto& run : runs) ASSERT_EVENTUALLY(run == 1);
  calls.Stop();
  for (auto& run : runs) EXPECT_EQ(run, 1);
  EXPECT_EQ(wrong, 0);
}

// Blocked calls occupy the threads, and only a limited number of others wait.
TEST(SlowCalls, WhatDoesNotFitIsRefusedAndNotCalled) {
  Door door;
  std::atomic<int> done{0};
  SlowCalls calls(2, 3);
  const auto blocked = [&](const absl::Status& status) {
    door.Wait();
    done += status.ok();
  };
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(calls.Add(blocked).ok());
  door.WaitFor(2);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(calls.Add(blocked).ok());
  std::atomic<bool> called{false};
  const absl::Status refused = calls.Add([&](const absl::Status&) { called = true; });
  EXPECT_EQ(ErrorCodeOf(refused), ErrorCode::kCapacity);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("3 calls"));
  door.Open();
  ASSERT_EVENTUALLY(done == 5);
  EXPECT_TRUE(calls.Add([&](const absl::Status&) { ++done; }).ok()) << "there is room again";
  ASSERT_EVENTUALLY(done == 6);
  EXPECT_FALSE(called);
}

TEST(SlowCalls, StopEndsWhatWaitsAndWaitsForWhatRuns) {
  Door door;
  std::atomic<int> ran{0}, drained{0};
  SlowCalls calls(1, 8);
  ASSERT_TRUE(calls
                  .Add([&](const absl::Status& status) {
                    door.Wait();
                    ran += status.ok();
                  })
                  .ok());
  door.WaitFor(1);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(calls
                    .Add([&](const absl::Status& status) {
                      if (ErrorCodeOf(status) == ErrorCode::kDraining) ++drained;
                    })
                    .ok());
  }
  std::atomic<bool> stopped{false};
  std::thread stopper([&] {
    calls.Stop();
    stopped = true;
  });
  EXPECT_TRUE(testing::Eventually([&] { return drained == 4; }));
  EXPECT_FALSE(stopped) << "a call still runs";
  EXPECT_EQ(ErrorCodeOf(calls.Add([](const absl::Status&) {})), ErrorCode::kDraining);
  door.Open();
  stopper.join();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(drained, 4);
}

}  // namespace
}  // namespace oasiskv::server
