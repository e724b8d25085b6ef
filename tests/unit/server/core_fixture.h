// A small core with a fake clock, and short names for what core tests do often.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "oasiskv/error.h"
#include "server/core/kv_core.h"
#include "tests/support/fake_clock.h"
#include "tests/support/shapes.h"

namespace oasiskv::server {

// `status` is an error of that code.
#define EXPECT_CODE(code, expression) \
  EXPECT_EQ(std::string(ErrorCodeName(code)), std::string(ErrorCodeName(ErrorCodeOf((expression)))))

class CoreFixture : public ::testing::Test {
 protected:
  // Frames of 8,192 bytes: 2 layers x 2 heads x 16 tokens x 28 elements of 2 bytes and the
  // summaries.
  static Geometry SmallGeometry() { return testing::Shape(2, 2, 28); }
  static Identity Me() { return testing::TestIdentity(); }

  // 64 slabs of 64 KiB: 512 small frames.
  static CoreOptions SmallOptions() {
    CoreOptions o;
    o.pool_bytes = uint64_t{4} << 20;
    o.slab_bytes = uint64_t{64} << 10;
    o.touch_threads = 1;
    o.max_grants = 1024;
    o.max_sequences = 1024;
    return o;
  }

  void Start(const CoreOptions& options) {
    absl::StatusOr<std::unique_ptr<KvCore>> made = KvCore::Create(options, clock_);
    ASSERT_TRUE(made.ok()) << made.status();
    core_ = *std::move(made);
  }
  void SetUp() override { Start(SmallOptions()); }

  static OpenSpec Spec(const std::string& name, uint32_t blocks) {
    OpenSpec spec;
    spec.name = name;
    spec.identity = Me();
    spec.geometry = SmallGeometry();
    spec.blocks = blocks;
    spec.holder = "test";
    return spec;
  }
  OpenResult MustOpen(const OpenSpec& spec) {
    absl::StatusOr<OpenResult> opened = core_->Open(spec);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *opened : OpenResult();
  }
  OpenResult MustOpen(const std::string& name, uint32_t blocks) {
    return MustOpen(Spec(name, blocks));
  }
  static GrantKey Key(const wire::Grant& grant) { return {grant.id, grant.epoch}; }
  absl::Status CommitAll(const OpenResult& opened, uint32_t blocks) {
    const LayerBlocks all{0, SmallGeometry().layers, 0, blocks};
    return core_->Commit(Key(opened.grant), std::span(&all, 1), {});
  }
  absl::Status Seal(const OpenResult& opened, uint32_t blocks) {
    return core_->Seal(Key(opened.grant), uint64_t{blocks} * SmallGeometry().block_tokens, {}, "");
  }
  OpenResult MustSeal(const std::string& name, uint32_t blocks) {
    OpenResult opened = MustOpen(name, blocks);
    EXPECT_TRUE(CommitAll(opened, blocks).ok());
    EXPECT_TRUE(Seal(opened, blocks).ok());
    return opened;
  }
  static AttachSpec ReadSpec(const std::string& name) {
    AttachSpec spec;
    spec.name = name;
    spec.identity = Me();
    spec.geometry = SmallGeometry();
    spec.holder = "test";
    return spec;
  }
  AttachResult MustAttach(const std::string& name) {
    absl::StatusOr<AttachResult> attached = core_->Attach(ReadSpec(name));
    EXPECT_TRUE(attached.ok()) << attached.status();
    return attached.ok() ? *attached : AttachResult();
  }
  absl::Status Release(const wire::Grant& grant) {
    const GrantKey key = Key(grant);
    return core_->Release(std::span(&key, 1), {}, Me()).status();
  }
  absl::Status ReleaseSequence(const std::string& name) {
    return core_->Release({}, std::span(&name, 1), Me()).status();
  }
  absl::Status Read(const wire::Grant& grant, fabric::RemoteRange range) {
    return core_->Authorize(grant.id, grant.epoch, fabric::Access::kRead, std::span(&range, 1))
        .status();
  }
  absl::Status Write(const wire::Grant& grant, fabric::RemoteRange range) {
    return core_->Authorize(grant.id, grant.epoch, fabric::Access::kWrite, std::span(&range, 1))
        .status();
  }
  // The word as one who mapped the table sees it.
  uint64_t Word(const wire::Grant& grant) { return core_->GrantWord(grant.id); }
  uint64_t UsedBytes() { return core_->Capacity().used_bytes; }
  static uint64_t FrameBytes() { return SmallGeometry().frame_stride(); }
  // Lets served time pass as a live daemon would see it.
  void Serve(Duration time) {
    const Duration step = Millis(100);
    for (Duration done{0}; done < time; done += step) {
      clock_.Advance(std::min(step, time - done));
      core_->Tick(clock_.Now());
    }
  }

  FakeClock clock_;
  std::unique_ptr<KvCore> core_;
};

}  // namespace oasiskv::server
