// Out of a dense paged cache: into frames with their summaries, and into a slot of the working set.
#include <gmock/gmock.h>

#include <numeric>

#include "client/selection/summary.h"
#include "tests/gpu/transfer_rig.h"

namespace oasiskv {
namespace {

using gpu_test::Array;
using gpu_test::FillRandom;
using gpu_test::PageLayout;
using gpu_test::Rig;
using gpu_test::RigOptions;

constexpr uint32_t kRequests = 3, kTableBlocks = 20;

// Thread contract: one thread. A dense cache in the layout of the rig's pages: [page][head][token]
// or [page][token][head], K and V apart.
struct Dense {
  explicit Dense(Rig* rig, bool nhd) : shape(rig->shape) {
    const int64_t half = int64_t{shape.block_tokens} * shape.key_bytes;
    pages.page_stride = shape.kv_heads * half + 32;
    pages.token_stride = nhd ? int64_t{shape.kv_heads} * shape.key_bytes : shape.key_bytes;
    pages.head_stride = nhd ? int64_t{shape.key_bytes} : half;
    constexpr uint32_t kPages = kRequests * kTableBlocks;
    value_offset = kPages * pages.page_stride;
    bytes = Array<std::byte>(kPages * pages.page_stride * (shape.latent ? 1 : 2));
    FillRandom(rig->random, bytes.host);
    bytes.Upload();
    table = Array<int32_t>(kPages);
    std::iota(table.host.begin(), table.host.end(), 0);
    std::shuffle(table.host.begin(), table.host.end(), rig->random);
    table.Upload();
    pages.k = bytes.device();
    pages.v = shape.latent ? nullptr : bytes.device() + value_offset;
    pages.table = table.device();
    pages.table_stride = kTableBlocks;
  }

  std::vector<std::byte> Entry(uint32_t request, uint32_t block, uint32_t head) const {
    std::vector<std::byte> entry(shape.entry_bytes);
    const int64_t page =
        table.host[request * kTableBlocks + block] * pages.page_stride + head * pages.head_stride;
    for (uint32_t i = 0; i * shape.key_bytes < shape.entry_bytes; ++i) {
      std::memcpy(entry.data() + i * shape.key_bytes,
                  bytes.host.data() + (i >= shape.block_tokens ? value_offset : 0) + page +
                      (i % shape.block_tokens) * pages.token_stride,
                  shape.key_bytes);
    }
    return entry;
  }

  const gpu::Shape shape;
  gpu::DensePages pages;
  int64_t value_offset = 0;
  Array<std::byte> bytes;
  Array<int32_t> table;
};

struct Case {
  const char* name;
  RigOptions options;
  bool nhd;
};

class DenseTest : public ::testing::TestWithParam<Case> {};

TEST_P(DenseTest, ScatterFillsFramesAndSummaries) {
  OASISKV_NEEDS_GPU();
  Rig rig(GetParam().options);
  const gpu::Shape& shape = rig.shape;
  const Dense dense(&rig, GetParam().nhd);
  // Blocks 3 to 14 of request 1 into frames 0 to 11 of slot 2, but the fifth has no frame.
  constexpr uint32_t kFirst = 3, kBlocks = 12;
  Array<uint64_t> frames(kBlocks);
  for (uint32_t b = 0; b < kBlocks; ++b) {
    frames.host[b] = b == 4 ? 0 : reinterpret_cast<uint64_t>(rig.Frame(2, b));
  }
  frames.Upload();
  const size_t size = static_cast<size_t>(rig.Frame(2, kBlocks) - rig.Frame(2, 0));
  std::vector<std::byte> expected(rig.Frame(2, 0), rig.Frame(2, 0) + size);
  for (uint32_t b = 0; b < kBlocks; ++b) {
    for (uint32_t h = 0; b != 4 && h < shape.kv_heads; ++h) {
      const std::vector<std::byte> entry = dense.Entry(1, kFirst + b, h);
      std::memcpy(expected.data() + (rig.Entry(2, h, b) - rig.Frame(2, 0)), entry.data(),
                  entry.size());
      SummariseKeys(static_cast<ElementType>(shape.element), shape.head_dim, entry.data(),
                    shape.key_bytes, shape.block_tokens,
                    expected.data() + (rig.Summary(2, h, b) - rig.Frame(2, 0)));
    }
  }
  ASSERT_LAUNCHED(gpu::ScatterToFrames(shape, rig.layer, dense.pages, 1, kFirst, kBlocks,
                                       frames.device(), 2, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(std::memcmp(expected.data(), rig.Frame(2, 0), size), 0);
}

TEST_P(DenseTest, ARequestBecomesASlot) {
  OASISKV_NEEDS_GPU();
  Rig rig(GetParam().options);
  const gpu::Shape& shape = rig.shape;
  const Dense dense(&rig, GetParam().nhd);
  constexpr uint32_t kSlot = 3, kRequest = 2, kComplete = 17, kTokens = 3;
  rig.state.host[kSlot].complete = kComplete;
  rig.state.host[kSlot].local_tokens = kTokens;
  for (uint32_t h = 0; h < shape.kv_heads; ++h) {
    for (uint32_t p = 0; p < shape.resident; ++p) {
      if ((p + h) % 4 == 3) continue;  // an empty page
      const int32_t block = static_cast<int32_t>((p * 7 + h) % kComplete);
      rig.map.host[rig.At(kSlot, h, p)] = block;
      rig.SetPage(rig.pool.host, kSlot, h, p, dense.Entry(kRequest, block, h).data());
    }
    auto local = rig.PageOf(rig.pool.host, kSlot, h, shape.resident);
    const auto last = dense.Entry(kRequest, kComplete, h);
    const size_t half = size_t{shape.block_tokens} * shape.key_bytes;
    for (size_t at = 0; at < local.size(); at += half) {
      std::memcpy(local.data() + at, last.data() + at, kTokens * shape.key_bytes);
    }
    rig.SetPage(rig.pool.host, kSlot, h, shape.resident, local.data());
  }
  rig.state.Upload();
  rig.map.Upload();
  ASSERT_LAUNCHED(gpu::DenseToSparse(shape, rig.mem, dense.pages, kRequest, kSlot, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_TRUE(rig.pool.Download() == rig.pool.host);
  EXPECT_EQ(rig.map.Download(), rig.map.host);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DenseTest,
    ::testing::Values(Case{"Hnd", {}, false},
                      Case{"NhdIntoTogether",
                           {.head_dim = 128, .layout = PageLayout::kHndTogether, .table = true},
                           true},
                      Case{"Float16", {.kv_heads = 7, .element = gpu::Element::kFloat16}, true},
                      Case{"Float32", {.head_dim = 12, .element = gpu::Element::kFloat32}, false},
                      Case{"Latent", {.head_dim = 576, .latent = true}, false}),
    [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace oasiskv
