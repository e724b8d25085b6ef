// Every error of the control plane arrives with its own code, and no request harms the daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "tests/integration/control_fixture.h"
#include "tests/integration/eventually.h"

namespace oasiskv::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DaemonErrorsTest : public ControlTest {
 protected:
  v1::Grant OpenWriter(const std::string& name, uint32_t blocks) {
    v1::OpenResponse response;
    const Outcome outcome = stubs_->Open(OpenOf(name, blocks), &response);
    EXPECT_TRUE(outcome.ok()) << outcome;
    return response.grant();
  }
  Outcome OpenWith(const std::function<void(v1::OpenRequest&)>& change) {
    v1::OpenRequest request = OpenOf("changed", 1);
    change(request);
    v1::OpenResponse response;
    return stubs_->Open(request, &response);
  }
  Outcome AttachWith(const std::string& name,
                     const std::function<void(v1::AttachRequest&)>& change) {
    v1::AttachRequest request = AttachOf(name);
    change(request);
    v1::AttachResponse response;
    return stubs_->Attach(request, &response);
  }
};

void ExpectError(const Outcome& outcome, ErrorCode code, grpc::StatusCode canonical) {
  EXPECT_EQ(outcome.code, code) << outcome;
  EXPECT_EQ(outcome.status.error_code(), canonical) << outcome;
  EXPECT_FALSE(outcome.status.error_message().empty());
}

TEST_F(DaemonErrorsTest, OpenIsRefusedWithItsReason) {
  Start({"--max_lease=1m"});
  OpenWriter("taken", 1);
  v1::OpenResponse ignored;
  ExpectError(stubs_->Open(OpenOf("taken", 1), &ignored), ErrorCode::kAlreadyExists,
              grpc::StatusCode::ALREADY_EXISTS);
  const auto invalid = [&](const std::function<void(v1::OpenRequest&)>& change, const char* word) {
    const Outcome outcome = OpenWith(change);
    ExpectError(outcome, ErrorCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(outcome.status.error_message(), HasSubstr(word));
  };
  invalid([](auto& r) { r.set_name(""); }, "name");
  invalid([](auto& r) { r.set_name(std::string(257, 'n')); }, "name");
  invalid([](auto& r) { r.mutable_identity()->set_model(""); }, "model");
  invalid([](auto& r) { r.clear_geometry(); }, "layers");
  invalid([](auto& r) { r.mutable_geometry()->set_layers(1u << 31); }, "layers");
  // The low byte of 257 is a known element type.
  invalid(
      [](auto& r) { r.mutable_geometry()->set_element_type(static_cast<v1::ElementType>(257)); },
      "element_type");
  invalid([](auto& r) { r.mutable_geometry()->set_packing(static_cast<v1::Packing>(-1)); },
          "packing");
  invalid([](auto& r) { r.set_lease_ms(61'000); }, "lease");
  invalid([](auto& r) { r.set_lease_ms(~uint64_t{0}); }, "lease");
  for (const uint32_t blocks : {4000u, 1u << 31, ~0u}) {
    const Outcome outcome = OpenWith([&](auto& r) { r.set_blocks(blocks); });
    EXPECT_FALSE(outcome.ok());
    EXPECT_TRUE(outcome.code == ErrorCode::kCapacity || outcome.code == ErrorCode::kInvalidArgument)
        << outcome;
  }
  ExpectError(OpenWith([](auto& r) { r.set_blocks(4000); }), ErrorCode::kCapacity,
              grpc::StatusCode::RESOURCE_EXHAUSTED);
  // Nothing was reserved by any of them.
  EXPECT_EQ(stubs_->Capacity().sequences_open(), 1u);
}

TEST_F(DaemonErrorsTest, WritersErrorsComeThrough) {
  Start();
  const v1::Grant writer = OpenWriter("w", 4);
  ExpectError(stubs_->Commit(writer, 2, 1u << 31), ErrorCode::kOutOfRange,
              grpc::StatusCode::OUT_OF_RANGE);
  ExpectError(stubs_->Commit(writer, 2, 5), ErrorCode::kOutOfRange, grpc::StatusCode::OUT_OF_RANGE);
  ExpectError(stubs_->Commit(writer, 3, 1), ErrorCode::kOutOfRange, grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_FALSE(stubs_->Commit(writer, 0, 0).ok());
  ExpectError(stubs_->Seal(writer, 64), ErrorCode::kNotCommitted,
              grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_FALSE(stubs_->Seal(writer, ~uint64_t{0}).ok());
  v1::Grant wrong = writer;
  wrong.set_epoch(writer.epoch() + 1);
  ExpectError(stubs_->Commit(wrong, 2, 4), ErrorCode::kStale, grpc::StatusCode::ABORTED);
  wrong = writer;
  wrong.set_id(writer.id() ^ 0xffff);
  const Outcome unknown = stubs_->Commit(wrong, 2, 4);
  EXPECT_TRUE(unknown.code == ErrorCode::kNotFound || unknown.code == ErrorCode::kStale) << unknown;
  v1::ExtendResponse extended;
  EXPECT_FALSE(stubs_->Extend(writer, 0, &extended).ok());
  EXPECT_FALSE(stubs_->Extend(writer, 1u << 31, &extended).ok());
  ExpectError(stubs_->Extend(writer, 100'000, &extended), ErrorCode::kCapacity,
              grpc::StatusCode::RESOURCE_EXHAUSTED);

  v1::AttachResponse reader;
  ASSERT_TRUE(stubs_->Attach(AttachOf("w"), &reader).ok());
  ExpectError(stubs_->Commit(reader.grant(), 2, 4), ErrorCode::kPermissionDenied,
              grpc::StatusCode::PERMISSION_DENIED);
  ASSERT_EQ(stubs_->Fill(writer, 4), absl::OkStatus());
  ASSERT_TRUE(stubs_->Commit(writer, 2, 4).ok());
  ASSERT_TRUE(stubs_->Seal(writer, 64).ok());
  ExpectError(stubs_->Commit(writer, 2, 4), ErrorCode::kWrongState,
              grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(DaemonErrorsTest, ReadersErrorsComeThrough) {
  Start();
  ASSERT_TRUE(stubs_->MakeSealed("s", 2).ok());
  OpenWriter("open", 2);
  const auto none = [](v1::AttachRequest&) {};
  ExpectError(AttachWith("nobody", none), ErrorCode::kNotFound, grpc::StatusCode::NOT_FOUND);
  const Outcome geometry =
      AttachWith("s", [](auto& r) { r.mutable_geometry()->set_head_dim(128); });
  ExpectError(geometry, ErrorCode::kGeometryMismatch, grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(geometry.status.error_message(),
              AllOf(HasSubstr("head_dim"), HasSubstr("64"), HasSubstr("128")));
  const Outcome identity =
      AttachWith("s", [](auto& r) { r.mutable_identity()->set_revision("r2"); });
  ExpectError(identity, ErrorCode::kIdentityMismatch, grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(identity.status.error_message(),
              AllOf(HasSubstr("revision"), HasSubstr("r1"), HasSubstr("r2")));
  ExpectError(AttachWith("s", [](auto& r) { r.mutable_identity()->set_tenant("other"); }),
              ErrorCode::kNotFound, grpc::StatusCode::NOT_FOUND);
  ExpectError(AttachWith("s", [](auto& r) { r.set_first_head(1), r.set_head_count(2); }),
              ErrorCode::kOutOfRange, grpc::StatusCode::OUT_OF_RANGE);
  ExpectError(AttachWith("s", [](auto& r) { r.set_first_head(~0u), r.set_head_count(2); }),
              ErrorCode::kOutOfRange, grpc::StatusCode::OUT_OF_RANGE);
  ExpectError(AttachWith("open", [](auto& r) { r.set_wait_for_seal_ms(1); }), ErrorCode::kNotSealed,
              grpc::StatusCode::FAILED_PRECONDITION);
  ExpectError(AttachWith("s", [](auto& r) { r.set_wait_for_seal_ms(~uint64_t{0}); }),
              ErrorCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT);
  ExpectError(stubs_->ReleaseSequence("open"), ErrorCode::kWrongState,
              grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(DaemonErrorsTest, LeaseEndIsToldApartFromAnAbort) {
  Start();
  v1::OpenRequest request = OpenOf("short", 1);
  request.set_lease_ms(200);
  v1::OpenResponse open;
  ASSERT_TRUE(stubs_->Open(request, &open).ok());
  ASSERT_EVENTUALLY(stubs_->Commit(open.grant(), 2, 1).code == ErrorCode::kLeaseExpired);
  ExpectError(stubs_->Commit(open.grant(), 2, 1), ErrorCode::kLeaseExpired,
              grpc::StatusCode::ABORTED);
  v1::RenewResponse renewed;
  ASSERT_TRUE(stubs_->Renew(open.grant(), &renewed).ok());
  ASSERT_EQ(renewed.lost_size(), 1);
  EXPECT_EQ(renewed.lost(0).reason(), v1::ERROR_CODE_LEASE_EXPIRED);

  const v1::Grant writer = OpenWriter("aborted", 1);
  ASSERT_TRUE(stubs_->Abort("aborted").ok());
  ExpectError(stubs_->Commit(writer, 2, 1), ErrorCode::kStale, grpc::StatusCode::ABORTED);
  ASSERT_TRUE(stubs_->Renew(writer, &renewed).ok());
  ASSERT_EQ(renewed.lost_size(), 1);
  EXPECT_EQ(renewed.lost(0).reason(), v1::ERROR_CODE_STALE);
}

TEST_F(DaemonErrorsTest, OversizedMessagesAreRefusedEarlyAndInWords) {
  Start();
  const v1::Grant writer = OpenWriter("big", 4);
  v1::CommitRequest request;
  request.set_grant_id(writer.id());
  request.set_epoch(writer.epoch());
  for (int i = 0; i < 600'000; ++i) {
    v1::LayerBlocks& range = *request.add_ranges();
    range.set_first_layer(1);
    range.set_layer_count(1);
    range.set_first_block(1);
    range.set_block_count(1);
  }
  ASSERT_GT(request.ByteSizeLong(), size_t{5} << 20);
  v1::CommitResponse response;
  const Outcome outcome =
      ControlStubs::Call(*stubs_->kv, &v1::KvMemory::Stub::Commit, request, &response);
  ExpectError(outcome, ErrorCode::kCapacity, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(outcome.status.error_message(), HasSubstr(absl::StrCat(request.ByteSizeLong())));
  // An attach answer that would be too large is refused before anything is written for it.
  const Outcome open = OpenWith([](v1::OpenRequest& r) {
    r.mutable_geometry()->set_layers(64);
    r.mutable_geometry()->set_kv_heads(16);
    r.mutable_geometry()->set_total_kv_heads(16);
    r.set_blocks(2000);
    r.set_checksums(true);
  });
  ExpectError(open, ErrorCode::kCapacity, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(open.status.error_message(), HasSubstr("attach answer"));
  // What waits for a seal stays in memory: it is small.
  const Outcome attach = AttachWith("nobody", [](v1::AttachRequest& r) {
    r.set_name(std::string(9 << 10, 'n'));
    r.set_wait_for_seal_ms(60'000);
  });
  ExpectError(attach, ErrorCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(attach.status.error_message(), HasSubstr("8192"));
  v1::ReleaseRequest names;
  for (int i = 0; i < 65537; ++i) names.add_sequences();
  v1::ReleaseResponse released;
  ExpectError(ControlStubs::Call(*stubs_->kv, &v1::KvMemory::Stub::Release, names, &released),
              ErrorCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT);
  v1::RenewRequest many;
  for (int i = 0; i < 65537; ++i) many.add_grants()->set_grant_id(1);
  v1::RenewResponse renewed;
  ExpectError(ControlStubs::Call(*stubs_->kv, &v1::KvMemory::Stub::Renew, many, &renewed),
              ErrorCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(DaemonErrorsTest, AnAbortsReasonIsInTheLogOnOneLine) {
  Start();
  OpenWriter("a", 1);
  v1::AbortRequest request;
  request.set_name("a");
  *request.mutable_identity() = ProtoIdentity();
  request.set_reason("prefill failed\nfor want of memory");
  v1::AbortResponse response;
  const LogLevel level = GetLogLevel();
  SetLogLevel(LogLevel::kInfo);
  ::testing::internal::CaptureStderr();
  const Outcome outcome =
      ControlStubs::Call(*stubs_->kv, &v1::KvMemory::Stub::Abort, request, &response);
  const std::string log = ::testing::internal::GetCapturedStderr();
  SetLogLevel(level);
  EXPECT_TRUE(outcome.ok()) << outcome;
  EXPECT_THAT(
      log, AllOf(HasSubstr("\"a\" is aborted by"), HasSubstr("prefill failed?for want of memory")));
}

// A caller that opens sequences and forgets them must reach a limit before the daemon's memory is
// used up.
TEST_F(DaemonErrorsTest, OpensThatAreNeverCompletedAreBounded) {
  Start({"--max_sequences=100", "--default_lease=10m"});  // on a busy machine the opens take long
  constexpr int kOpens = 20'000;
  int opened = 0;
  v1::OpenResponse response;
  for (int i = 0; i < kOpens; ++i) {
    const Outcome outcome = stubs_->Open(OpenOf(absl::StrCat("n", i), 0), &response);
    if (outcome.ok()) {
      ++opened;
    } else {
      ASSERT_EQ(outcome.code, ErrorCode::kCapacity) << outcome;
    }
  }
  EXPECT_EQ(opened, 100);
  EXPECT_EQ(stubs_->Capacity().sequences_open(), 100u);
  // There is room again as soon as one ends.
  ASSERT_TRUE(stubs_->Abort("n0").ok());
  EXPECT_TRUE(stubs_->Open(OpenOf("after", 0), &response).ok());
}

TEST_F(DaemonErrorsTest, CallsOfAFabricThatIsNotServedAreUnsupported) {
  Start();
  v1::ConnectFabricResponse connected;
  const Outcome connect = ControlStubs::Call(*stubs_->kv, &v1::KvMemory::Stub::ConnectFabric,
                                             v1::ConnectFabricRequest(), &connected);
  EXPECT_EQ(connect.code, ErrorCode::kUnsupported);
  EXPECT_THAT(connect.status.error_message(), HasSubstr("--fabrics"));
  v1::FenceWriterResponse fenced;
  EXPECT_EQ(ControlStubs::Call(*stubs_->kv, &v1::KvMemory::Stub::FenceWriter,
                               v1::FenceWriterRequest(), &fenced)
                .code,
            ErrorCode::kUnsupported);
  v1::DisconnectFabricResponse gone;
  EXPECT_EQ(ControlStubs::Call(*stubs_->kv, &v1::KvMemory::Stub::DisconnectFabric,
                               v1::DisconnectFabricRequest(), &gone)
                .code,
            ErrorCode::kUnsupported);
}

// Random bytes in every field that takes a number: an error or an answer, and the daemon lives on.
TEST_F(DaemonErrorsTest, GarbageLeavesTheDaemonServing) {
  Start({"--max_sequences=50"});
  std::mt19937_64 random(7);
  const auto odd = [&]() -> uint64_t {
    constexpr uint64_t kOdd[] = {
        0, 1, 2, 3, 15, 255, 256, 1u << 31, 0xffffffff, uint64_t{1} << 63, ~uint64_t{0}};
    return kOdd[random() % std::size(kOdd)];
  };
  const v1::Grant writer = OpenWriter("victim", 3);
  for (int round = 0; round < 300; ++round) {
    v1::OpenRequest open = OpenOf(absl::StrCat("g", round), static_cast<uint32_t>(odd()));
    open.mutable_geometry()->set_layers(static_cast<uint32_t>(odd()));
    open.mutable_geometry()->set_head_dim(static_cast<uint32_t>(odd()));
    open.mutable_geometry()->set_kv_heads(static_cast<uint32_t>(odd()));
    open.mutable_geometry()->set_block_tokens(static_cast<uint32_t>(odd()));
    open.set_lease_ms(odd());
    open.set_writer_connection(odd());
    v1::OpenResponse opened;
    stubs_->Open(open, &opened);
    v1::CommitRequest commit;
    commit.set_grant_id(writer.id());
    commit.set_epoch(writer.epoch());
    v1::LayerBlocks& range = *commit.add_ranges();
    range.set_first_layer(static_cast<uint32_t>(odd()));
    range.set_layer_count(static_cast<uint32_t>(odd()));
    range.set_first_block(static_cast<uint32_t>(odd()));
    range.set_block_count(static_cast<uint32_t>(odd()));
    for (uint64_t i = odd() % 4; i > 0; --i) commit.add_checksums(7);
    v1::CommitResponse committed;
    ControlStubs::Call(*stubs_->kv, &v1::KvMemory::Stub::Commit, commit, &committed);
    v1::AttachRequest attach = AttachOf("victim");
    attach.set_first_head(static_cast<uint32_t>(odd()));
    attach.set_head_count(static_cast<uint32_t>(odd()));
    v1::AttachResponse attached;
    stubs_->Attach(attach, &attached);
  }
  EXPECT_EQ(stubs_->Health(), grpc::health::v1::HealthCheckResponse::SERVING);
  ASSERT_EQ(stubs_->Fill(writer, 3), absl::OkStatus());
  ASSERT_TRUE(stubs_->Commit(writer, 2, 3).ok());
  EXPECT_TRUE(stubs_->Seal(writer, 48).ok());
}

}  // namespace
}  // namespace oasiskv::testing
