// A daemon, clients on a chosen fabric, and KV of which every byte can be computed again.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/selection/summary.h"
#include "common/clock.h"
#include "common/pause_point.h"
#include "oasiskv/client.h"
#include "oasiskv/error.h"
#include "tests/integration/eventually.h"
#include "tests/integration/mini_cluster.h"
#include "tests/support/shapes.h"

namespace oasiskv::testing {

// The KV of one sequence's shard, a function of (seed, layer, token, the model's head, dim).
class Content {
 public:
  Content(const Geometry& geometry, uint64_t tokens, uint32_t seed)
      : geometry_(geometry), tokens_(tokens) {
    for (uint32_t l = 0; l < geometry.layers; ++l) {
      keys_.push_back(Make(seed * 2, l));
      values_.push_back(Make(seed * 2 + 1, l));
    }
  }

  uint64_t tokens() const { return tokens_; }
  uint32_t blocks() const { return geometry_.BlocksFor(tokens_); }
  uint32_t complete_blocks() const {
    return static_cast<uint32_t>(tokens_ / geometry_.block_tokens);
  }
  const Geometry& geometry() const { return geometry_; }
  KvView Keys(uint32_t layer, uint64_t token) const { return View(keys_[layer], token); }
  KvView Values(uint32_t layer, uint64_t token) const { return View(values_[layer], token); }

  // What the daemon must hold: the layout of Geometry, the tail of the last block zero.
  std::vector<std::byte> Entry(uint32_t block, uint32_t layer, uint32_t head) const {
    std::vector<std::byte> out(geometry_.entry_bytes());
    const uint32_t row = geometry_.key_bytes();
    for (uint32_t t = 0; t < geometry_.block_tokens; ++t) {
      const uint64_t token = uint64_t{block} * geometry_.block_tokens + t;
      if (token >= tokens_) break;
      std::memcpy(out.data() + t * row, Row(keys_[layer], token, head), row);
      if (geometry_.packing == Packing::kLatent) continue;
      std::memcpy(out.data() + geometry_.half_entry_bytes() + t * row,
                  Row(values_[layer], token, head), row);
    }
    return out;
  }
  std::vector<std::byte> Summary(uint32_t block, uint32_t layer, uint32_t head) const {
    std::vector<std::byte> out(geometry_.summary_bytes());
    if (block < complete_blocks()) {
      const std::vector<std::byte> entry = Entry(block, layer, head);
      SummariseKeys(geometry_.element_type, geometry_.head_dim, entry.data(), geometry_.key_bytes(),
                    geometry_.block_tokens, out.data());
    }
    return out;
  }

 private:
  std::vector<std::byte> Make(uint32_t salt, uint32_t layer) const {
    std::vector<uint16_t> data(tokens_ * geometry_.kv_heads * geometry_.head_dim);
    uint64_t i = 0;
    for (uint64_t t = 0; t < tokens_; ++t) {
      for (uint32_t h = 0; h < geometry_.kv_heads; ++h) {
        uint64_t x =
            ((uint64_t{salt} * 131 + layer) * 1000003 + t) * 1009 + geometry_.first_head + h + 1;
        for (uint32_t d = 0; d < geometry_.head_dim; ++d) {
          x = x * 6364136223846793005u + 1442695040888963407u;
          data[i++] = static_cast<uint16_t>((x >> 40) & 0xBFFF);  // finite, of both signs
        }
      }
    }
    std::vector<std::byte> bytes(data.size() * sizeof(uint16_t));
    std::memcpy(bytes.data(), data.data(), bytes.size());
    return bytes;
  }
  const std::byte* Row(const std::vector<std::byte>& data, uint64_t token, uint32_t head) const {
    return data.data() + (token * geometry_.kv_heads + head) * geometry_.key_bytes();
  }
  KvView View(const std::vector<std::byte>& data, uint64_t token) const {
    return {Row(data, token, 0), int64_t{geometry_.kv_heads} * geometry_.key_bytes(),
            geometry_.key_bytes()};
  }

  const Geometry geometry_;
  const uint64_t tokens_;
  std::vector<std::vector<std::byte>> keys_, values_;
};

inline ProducerSpec SpecOf(const std::string& name, const Content& content) {
  ProducerSpec spec;
  spec.name = name;
  spec.identity = TestIdentity();
  spec.geometry = content.geometry();
  spec.blocks = content.blocks();
  return spec;
}

inline ReaderSpec ReadSpecOf(const std::string& name, const Geometry& geometry) {
  ReaderSpec spec;
  spec.name = name;
  spec.identity = TestIdentity();
  spec.geometry = geometry;
  return spec;
}

inline absl::Status WriteAll(Producer& producer, const Content& content) {
  for (uint32_t l = 0; l < content.geometry().layers; ++l) {
    absl::Status status =
        producer.WriteTokens(LayerIndex(l), 0, static_cast<uint32_t>(content.tokens()),
                             content.Keys(l, 0), content.Values(l, 0));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

inline absl::Status Put(Client& client, const ProducerSpec& spec, const Content& content) {
  auto producer = client.Open(spec);
  if (!producer.ok()) return producer.status();
  if (absl::Status status = WriteAll(*producer, content); !status.ok()) return status;
  SealSpec seal;
  seal.token_count = content.tokens();
  return producer->Seal(seal);
}
inline absl::Status Put(Client& client, const std::string& name, const Content& content) {
  return Put(client, SpecOf(name, content), content);
}

// What buffers hold before a fetch.
inline constexpr std::byte kBeforeFetch{0x5A};

// Every entry, into `into`.
inline std::vector<EntryRead> AllEntries(const Content& content, std::vector<std::byte>& into) {
  const Geometry& g = content.geometry();
  into.assign(uint64_t{content.blocks()} * g.layers * g.kv_heads * g.entry_bytes(), kBeforeFetch);
  std::vector<EntryRead> reads;
  for (uint32_t b = 0; b < content.blocks(); ++b) {
    for (uint32_t l = 0; l < g.layers; ++l) {
      for (uint32_t h = 0; h < g.kv_heads; ++h) {
        reads.push_back({BlockIndex(b), LayerIndex(l), HeadIndex(h),
                         into.data() + reads.size() * g.entry_bytes()});
      }
    }
  }
  return reads;
}

inline bool AllRight(const Content& content, std::span<const EntryRead> reads) {
  for (const EntryRead& r : reads) {
    const auto want = content.Entry(r.block.value(), r.layer.value(), r.head.value());
    if (std::memcmp(r.into, want.data(), want.size()) != 0) return false;
  }
  return true;
}

MATCHER_P(Fails, code, absl::StrCat("fails with ", std::string(ErrorCodeName(code)))) {
  *result_listener << "which is " << arg.ToString();
  return ErrorCodeOf(arg) == code && !arg.ok();
}

#define ASSERT_OK(expr)                                  \
  do {                                                   \
    const absl::Status& ok_status = (expr);              \
    ASSERT_TRUE(ok_status.ok()) << ok_status.ToString(); \
  } while (false)
#define EXPECT_OK(expr)                                  \
  do {                                                   \
    const absl::Status& ok_status = (expr);              \
    EXPECT_TRUE(ok_status.ok()) << ok_status.ToString(); \
  } while (false)
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ASSERT_OK_AND_ASSIGN_IMPL(OK_CONCAT(ok_or_, __LINE__), lhs, expr)
#define OK_CONCAT_INNER(a, b) a##b
#define OK_CONCAT(a, b) OK_CONCAT_INNER(a, b)
// NOLINTBEGIN(bugprone-macro-parentheses): `lhs` may be a declaration, and `result` is a name.
#define ASSERT_OK_AND_ASSIGN_IMPL(result, lhs, expr)      \
  auto result = (expr);                                   \
  ASSERT_TRUE(result.ok()) << result.status().ToString(); \
  lhs = *std::move(result)
// NOLINTEND(bugprone-macro-parentheses)

// One daemon per test; the parameter is the clients' fabric.
class ClientTest : public ::testing::TestWithParam<std::string> {
 protected:
  void StartCluster(DaemonMode mode = DaemonMode::kInProcess, std::vector<std::string> flags = {}) {
    MiniClusterOptions options;
    options.mode = mode;
    options.flags = std::move(flags);
    options.flags.push_back("--metrics_address=");  // not needed, and slow to stop
    auto cluster = MiniCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  void TearDown() override { EXPECT_EQ(PausePoints::Waiting(), 0); }

  ClientOptions Options() const {
    ClientOptions options;
    options.address = cluster_->daemon().addresses().control_address;
    options.fabric = GetParam();
    return options;
  }
  std::unique_ptr<Client> Connect() const { return Connect(Options()); }
  std::unique_ptr<Client> Connect(const ClientOptions& options) const {
    auto client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  // In process only.
  server::CapacityInfo Capacity() const { return cluster_->daemon().daemon()->core()->Capacity(); }

  std::unique_ptr<MiniCluster> cluster_;
};

inline std::string FabricName(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}
#define INSTANTIATE_OVER_FABRICS(suite) \
  INSTANTIATE_TEST_SUITE_P(Fabrics, suite, ::testing::Values("shm", "ucx"), FabricName)

inline Reader::TimePoint Soon(int seconds = 20) {
  return Clock::Real().Now() + std::chrono::seconds(seconds);
}

}  // namespace oasiskv::testing
