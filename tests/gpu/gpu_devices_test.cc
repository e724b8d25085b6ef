// Several working sets in one process: on one GPU side by side, one on each GPU of the machine,
// stepped by one thread or by threads of their own.
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/gpu_drive.h"
#include "tests/gpu/transfer_rig.h"

namespace oasiskv::gpu_test {
namespace {

int Devices() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

#define OASISKV_NEEDS_GPUS(count)                                                            \
  do {                                                                                       \
    if (Devices() < (count))                                                                 \
      GTEST_SKIP() << "needs " << (count) << " NVIDIA GPUs; this machine has " << Devices(); \
  } while (false)

// Different in all that may differ.
Case CaseOf(int number, int device) {
  Case c{.name = "number " + std::to_string(number), .device = device};
  if (number % 2 == 1) c.where = Where::kMixed;
  if (number % 3 == 1) c.ratio = 1.0;
  if (number % 3 == 2) c.mode = SelectionMode::kExact;
  if (number % 4 == 2) c.layout = Layout::kNhdWithTable;
  return c;
}

// One working set for each of `devices`, their steps in turn.
void StepInTurn(const std::vector<int>& devices) {
  std::vector<std::unique_ptr<Drive>> drives;
  for (size_t i = 0; i < devices.size(); ++i) {
    drives.push_back(std::make_unique<Drive>(CaseOf(static_cast<int>(i), devices[i]), 5 + i));
    if (testing::Test::HasFailure()) return;
  }
  for (int round = 0; round < 10; ++round) {
    for (const auto& drive : drives) {
      drive->Steps(3);
      if (testing::Test::HasFailure()) return;
    }
  }
  for (const auto& drive : drives) drive->CompareTotals();
}

// The same, each in a thread that makes, steps and destroys it.
void StepInThreads(const std::vector<int>& devices) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < devices.size(); ++i) {
    threads.emplace_back([number = static_cast<int>(i), device = devices[i]] {
      Drive drive(CaseOf(number, device), 20 + number);
      if (testing::Test::HasFailure()) return;
      drive.Steps(30);
      if (!testing::Test::HasFailure()) drive.CompareTotals();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<int> EachDevice() {
  std::vector<int> devices(static_cast<size_t>(Devices()));
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

// The same frames, registered once, read by working sets of two devices.
void ReadOneSource(int one, int other) {
  GpuWorkingSetOptions options;
  options.base = OptionsOf(Case{.ratio = 1.0});
  const Geometry& g = options.base.geometry;
  auto source = std::make_shared<LocalSource>(g, 80, 4);
  Inputs inputs(options.base);
  std::mt19937_64 rng(8);
  struct Side {
    std::unique_ptr<GpuWorkingSet> ws;
    cuda::Stream stream;
    RequestSlot slot;
  } sides[2];
  for (int i = 0; i < 2; ++i) {
    Side& side = sides[i];
    options.device = i == 0 ? one : other;
    const cuda::DeviceScope scope(options.device);
    auto made = GpuWorkingSet::Create(options);
    ASSERT_TRUE(made.ok()) << made.status();
    side.ws = *std::move(made);
    auto stream = cuda::Stream::Create(0);
    ASSERT_TRUE(stream.ok()) << stream.status();
    side.stream = *std::move(stream);
    auto slot = side.ws->Admit(source);
    ASSERT_TRUE(slot.ok()) << slot.status();
    side.slot = *slot;
    ASSERT_STATUS_OK(side.ws->SetRows({&side.slot, 1}, side.stream.get()));
  }
  for (int step = 0; step < 10; ++step) {
    inputs.Fill(&rng);
    for (Side& side : sides) {
      cudaStream_t const s = side.stream.get();
      for (uint32_t l = 0; l < g.layers; ++l) {
        ASSERT_STATUS_OK(side.ws->Wait(LayerIndex(l), s));
        ASSERT_STATUS_OK(
            side.ws->Submit(LayerIndex(l), inputs.queries(l), GpuQueryType::kFloat32, 0, s));
        ASSERT_STATUS_OK(side.ws->AttentionDone(LayerIndex(l), s));
      }
    }
    for (uint32_t l = 0; l < g.layers; ++l) {
      auto left = sides[0].ws->Snapshot(LayerIndex(l), sides[0].slot);
      auto right = sides[1].ws->Snapshot(LayerIndex(l), sides[1].slot);
      ASSERT_TRUE(left.ok() && right.ok()) << left.status() << right.status();
      ASSERT_EQ(left->map, right->map);
      const uint32_t k = options.base.resident_blocks;
      for (uint32_t i = 0; i < g.kv_heads * k; ++i) {
        if (left->map[i] < 0) continue;
        const auto entry = source->kv().Entry(static_cast<uint32_t>(left->map[i]), l, i / k);
        const size_t at = (i / k * (k + 1) + i % k) * entry.size();
        ASSERT_EQ(std::memcmp(&left->pages[at], entry.data(), entry.size()), 0) << "page " << i;
        ASSERT_EQ(std::memcmp(&right->pages[at], entry.data(), entry.size()), 0) << "page " << i;
      }
    }
  }
  for (Side& side : sides) {
    ASSERT_STATUS_OK(side.ws->Error());
    auto stats = side.ws->Stats();
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_GT(stats->admitted, 0u);
  }
}

TEST(GpuDevicesTest, TwoOnOneDeviceDoNotMeet) {
  OASISKV_NEEDS_GPUS(1);
  StepInTurn({0, 0});
}

TEST(GpuDevicesTest, ThreadsShareADevice) {
  OASISKV_NEEDS_GPUS(1);
  StepInThreads({0, 0, 0});
}

TEST(GpuDevicesTest, TwoOnOneDeviceReadOneSource) {
  OASISKV_NEEDS_GPUS(1);
  ReadOneSource(0, 0);
}

TEST(GpuDevicesTest, OneThreadStepsEveryDeviceInTurn) {
  OASISKV_NEEDS_GPUS(2);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  StepInTurn(EachDevice());
  int device = -1;  // the caller's is its own matter
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 0);
}

TEST(GpuDevicesTest, EveryDeviceHasAThread) {
  OASISKV_NEEDS_GPUS(2);
  StepInThreads(EachDevice());
}

TEST(GpuDevicesTest, TwoDevicesReadOneSource) {
  OASISKV_NEEDS_GPUS(2);
  ReadOneSource(0, 1);
}

}  // namespace
}  // namespace oasiskv::gpu_test
