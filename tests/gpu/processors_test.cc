// Parts of a GPU's multiprocessors: streams of one keep to it, eager and in a graph.
#include "common/cuda/processors.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "oasiskv/error.h"
#include "tests/gpu/transfer_rig.h"
#include "tests/gpu/which_processor.h"

namespace oasiskv::gpu_test {
namespace {

using cuda::Processors;
using testing::HasSubstr;

constexpr uint32_t kCtas = 2048;

uint32_t AllOfDevice() {
  int count = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  return static_cast<uint32_t>(count);
}

std::set<uint32_t> Read(const Array<uint32_t>& seen) {
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<uint32_t> numbers = seen.Download();
  return {numbers.begin(), numbers.end()};
}

bool Overlap(const std::set<uint32_t>& a, const std::set<uint32_t>& b) {
  return std::any_of(a.begin(), a.end(), [&](uint32_t x) { return b.contains(x); });
}

TEST(ProcessorsTest, StreamsKeepToTheirPart) {
  OASISKV_NEEDS_GPU();
  const uint32_t parts[] = {1, 20};
  auto made = Processors::Divide(0, parts);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(made->size(), 3u);
  EXPECT_GE((*made)[1].count(), 20u);
  uint32_t sum = 0;
  std::vector<std::set<uint32_t>> seen;
  for (const Processors& part : *made) {
    sum += part.count();
    auto stream = part.StreamOf(0);
    ASSERT_TRUE(stream.ok()) << stream.status();
    Array<uint32_t> numbers(kCtas, ~0u);
    ASSERT_CUDA(NoteProcessors(kCtas, numbers.device(), stream->get()));
    seen.push_back(Read(numbers));
    EXPECT_LE(seen.back().size(), part.count());
    for (size_t i = 0; i + 1 < seen.size(); ++i) EXPECT_FALSE(Overlap(seen[i], seen.back()));
  }
  EXPECT_EQ(sum, AllOfDevice());
}

// A graph is launched into a stream of all multiprocessors; what was captured elsewhere stays
// there.
TEST(ProcessorsTest, ACapturedLaunchKeepsItsPart) {
  OASISKV_NEEDS_GPU();
  const uint32_t parts[] = {8};
  auto made = Processors::Divide(0, parts);
  ASSERT_TRUE(made.ok()) << made.status();
  auto mine = (*made)[0].StreamOf(0), step = cuda::Stream::Create(0);
  auto fork = cuda::Event::Create(), join = cuda::Event::Create();
  ASSERT_TRUE(mine.ok() && step.ok() && fork.ok() && join.ok()) << mine.status();
  Array<uint32_t> alone(kCtas, ~0u), inside(kCtas, ~0u), beside(kCtas, ~0u);
  ASSERT_CUDA(NoteProcessors(kCtas, alone.device(), mine->get()));
  const std::set<uint32_t> part = Read(alone);

  ASSERT_CUDA(cudaStreamBeginCapture(step->get(), cudaStreamCaptureModeThreadLocal));
  ASSERT_CUDA(cudaEventRecord(fork->get(), step->get()));
  ASSERT_CUDA(cudaStreamWaitEvent(mine->get(), fork->get(), 0));
  ASSERT_CUDA(NoteProcessors(kCtas, inside.device(), mine->get()));
  ASSERT_CUDA(NoteProcessors(kCtas, beside.device(), step->get()));
  ASSERT_CUDA(cudaEventRecord(join->get(), mine->get()));
  ASSERT_CUDA(cudaStreamWaitEvent(step->get(), join->get(), 0));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(step->get(), &graph));
  ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  ASSERT_CUDA(cudaGraphLaunch(exec, step->get()));
  const std::set<uint32_t> captured = Read(inside), all = Read(beside);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  EXPECT_TRUE(std::includes(part.begin(), part.end(), captured.begin(), captured.end()));
  EXPECT_GT(all.size(), part.size());
}

TEST(ProcessorsTest, SomeMustBeLeft) {
  OASISKV_NEEDS_GPU();
  const uint32_t all = AllOfDevice();
  for (const std::vector<uint32_t>& parts :
       {std::vector<uint32_t>{all}, {1, all - 1}, {~0u}, {1, ~0u}}) {
    const auto made = Processors::Divide(0, parts);
    EXPECT_EQ(ErrorCodeOf(made.status()), ErrorCode::kInvalidArgument) << made.status();
    EXPECT_THAT(std::string(made.status().message()),
                HasSubstr("device 0 has " + std::to_string(all)));
  }
}

}  // namespace
}  // namespace oasiskv::gpu_test
