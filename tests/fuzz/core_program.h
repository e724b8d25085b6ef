// A random program of calls on the core, each with the answer that the model expects.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "gtest/gtest.h"
#include "oasiskv/error.h"
#include "tests/fuzz/core_model.h"
#include "tests/support/fake_clock.h"

namespace oasiskv::server {

constexpr uint32_t kMaxBlocks = 40;
constexpr uint64_t kSlabBytes = 64 << 10;

// Strides of 4 KiB, 12 KiB (a slab has a tail) and 72 KiB (a frame takes two slabs).
inline Geometry GeometryOf(int index) {
  Geometry g;
  g.layers = 2;
  g.kv_heads = g.total_kv_heads = 2;
  g.head_dim = index == 0 ? 12 : index == 1 ? 40 : 250;
  g.element_type = ElementType::kBFloat16;
  return g;
}

// Thread contract: used by one thread.
//
// core_program.cc has its course, the data plane and the passing of time, core_program_calls.cc the
// control calls, core_program_checks.cc what must hold after every step.
class Program {
 public:
  explicit Program(uint32_t seed);
  ~Program() { pins_.clear(); }  // before the core

  // False once something differed.
  bool Step();
  // Lets go of everything; what is left must be nothing.
  void Finish();
  std::string Steps() const;

 private:
  static constexpr int kNames = 10;
  struct Pin {
    size_t grant;
    std::shared_ptr<const void> pin;
  };

  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  static std::string Name(int i) { return absl::StrCat("s", i); }
  // Names are of two tenants in turn.
  static int TenantOf(int name) { return name % 2; }
  static Identity Owner(int name) {
    return {"model", "rev", absl::StrCat("tenant", TenantOf(name))};
  }
  // What a write puts into an entry: nobody else has the same, and its tenant can be seen.
  uint64_t NextValue(int name) { return ++value_ * 2 + static_cast<uint64_t>(TenantOf(name)); }
  template <typename... Args>
  void Say(const Args&... args) {
    steps_.push_back(absl::StrCat(args...));
  }
  void Expect(ErrorCode want, const absl::Status& got) {
    absl::StrAppend(&steps_.back(), " -> ", std::string(ErrorCodeName(ErrorCodeOf(got))));
    EXPECT_EQ(std::string(ErrorCodeName(want)), std::string(ErrorCodeName(ErrorCodeOf(got))))
        << got;
    if (want == ErrorCode::kStale) ++model_.counters.stale_requests;
    if (want == ErrorCode::kLeaseExpired) ++model_.counters.expired_requests;
    if (want == ErrorCode::kCapacity) ++model_.counters.capacity_refusals;
  }
  // Recent grants more often than old ones.
  size_t PickGrant() {
    const size_t n = model_.grants.size();
    const size_t back = static_cast<size_t>(Pick(4) == 0 ? Pick(200) : Pick(24));
    return back < n ? n - 1 - back : static_cast<size_t>(Pick(static_cast<int>(n)));
  }
  GrantKey Key(const CoreModel::Grant& g) const { return {g.info.id, g.info.epoch}; }
  // Whether the pool has the frames, by the core's own books before the call. Frames of several
  // slabs need adjacent ones, which the books do not show: `unsure` then.
  bool Fits(int geometry, uint32_t blocks, bool& unsure);
  void AddGrant(const wire::Grant& info, size_t seq, bool writer, uint32_t first_head,
                uint32_t head_count, uint64_t connection, Duration lease);
  Duration Lease() { return Millis(500 + Pick(8000)); }

  void Open();
  void Extend();
  void Commit();
  // Writes what the daemon was not told to be written of these.
  void WriteMissing(const CoreModel::Grant& g, const LayerBlocks& r);
  void Seal();
  void Attach();
  void Renew();
  void Release();
  void ReleaseSequence();
  void Abort();

  void Tick();
  void Fence();
  void Connect();
  void Close();
  void Read() { Transfer(fabric::Access::kRead); }
  void Write() { Transfer(fabric::Access::kWrite); }
  void Transfer(fabric::Access access);
  void DropPin();

  void CheckInvariants();
  // Listings, words and addresses against the model, one by one.
  void CheckListings();

  FakeClock clock_;
  std::unique_ptr<KvCore> core_;
  CoreModel model_;
  std::mt19937 random_;
  std::vector<Pin> pins_;  // go before the core
  std::vector<std::string> steps_;
  size_t max_sequences_ = 0;
  uint64_t base_ = 0, next_connection_ = 1, value_ = 0, count_ = 0;
};

}  // namespace oasiskv::server
