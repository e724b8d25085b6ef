// Health, reflection, waits, watches and pages of a daemon in this process.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <atomic>
#include <list>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/pause_point.h"
#include "server/options/options.h"
#include "tests/integration/control_fixture.h"
#include "tests/integration/eventually.h"

namespace oasiskv::testing {
namespace {

namespace health = grpc::health::v1;
using ::testing::HasSubstr;

using DaemonServiceTest = ControlTest;

// Attach calls that need no thread of the test.
class AsyncAttaches {
 public:
  explicit AsyncAttaches(ControlStubs& stubs) : stubs_(stubs) {}
  ~AsyncAttaches() {
    Eventually([&] { return pending_ == 0; });
  }

  void Start(v1::AttachRequest request) {
    Call& call = calls_.emplace_back();
    call.request = std::move(request);
    ++pending_;
    stubs_.kv->async()->Attach(&call.context, &call.request, &call.response,
                               [this, &call](const grpc::Status& status) {
                                 call.outcome = ToOutcome(status, call.context);
                                 call.done = true;
                                 --pending_;
                               });
  }
  int pending() const { return pending_; }
  void CancelAll() {
    for (Call& call : calls_) call.context.TryCancel();
  }
  // Only when nothing is pending.
  int CountOf(ErrorCode code, bool ok) const {
    int count = 0;
    for (const Call& call : calls_) count += call.outcome.ok() == ok && call.outcome.code == code;
    return count;
  }
  // Calls that have ended with `code` so far.
  int EndedWith(ErrorCode code) const {
    int count = 0;
    for (const Call& call : calls_) count += call.done && call.outcome.code == code;
    return count;
  }
  // The message of the first call that ended with `code`.
  std::string MessageOf(ErrorCode code) const {
    for (const Call& call : calls_) {
      if (call.done && call.outcome.code == code) return call.outcome.status.error_message();
    }
    return "";
  }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::AttachRequest request;
    v1::AttachResponse response;
    Outcome outcome;
    std::atomic<bool> done{false};
  };
  ControlStubs& stubs_;
  std::list<Call> calls_;
  std::atomic<int> pending_{0};
};

v1::AttachRequest Waiting(const std::string& name, uint64_t ms = 60'000) {
  v1::AttachRequest request = AttachOf(name);
  request.set_wait_for_seal_ms(ms);
  return request;
}

TEST_F(DaemonServiceTest, HealthSaysNotServingWhileThePoolIsTouchedAndWhileDraining) {
  auto line = server::ParseCommandLine({"--control_address=127.0.0.1:0",
                                        "--metrics_address=", "--ucx_address=127.0.0.1:0",
                                        "--pool_bytes=64MiB", "--fabrics=ucx"});
  ASSERT_TRUE(line.ok()) << line.status();
  auto daemon = server::Daemon::Listen(line->options);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  ControlStubs stubs((*daemon)->bound().control_address);
  PausePoints::Arm("daemon.before_pool");
  std::thread serving([&] {
    const absl::Status status = (*daemon)->Serve();
    EXPECT_TRUE(status.ok()) << status;
  });
  ASSERT_TRUE(PausePoints::WaitReached("daemon.before_pool"));
  EXPECT_EQ(stubs.Health(), health::HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(stubs.Health("oasiskv.v1.KvMemory"), health::HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(stubs.Health("oasiskv.v1.Admin"), health::HealthCheckResponse::NOT_SERVING);
  v1::DescribeResponse description;
  const Outcome early = stubs.Describe(&description);
  EXPECT_EQ(early.status.error_code(), grpc::StatusCode::UNAVAILABLE) << early;
  EXPECT_EQ(early.code, ErrorCode::kDraining) << early;
  EXPECT_THAT(early.status.error_message(), HasSubstr("starting"));

  grpc::ClientContext context;
  const auto watch = stubs.health->Watch(&context, health::HealthCheckRequest());
  health::HealthCheckResponse seen;
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), health::HealthCheckResponse::NOT_SERVING);
  PausePoints::Release("daemon.before_pool");
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), health::HealthCheckResponse::SERVING);
  serving.join();
  EXPECT_TRUE(stubs.Describe(&description).ok());
  ASSERT_EQ(description.endpoints_size(), 1);
  EXPECT_EQ(description.endpoints(0).address(), (*daemon)->bound().endpoint("ucx"));
  EXPECT_EQ(description.incarnation(), (*daemon)->incarnation());

  (*daemon)->BeginDrain();
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), health::HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(stubs.Health("oasiskv.v1.Admin"), health::HealthCheckResponse::SERVING);
  v1::OpenResponse opened;
  EXPECT_EQ(stubs.Open(OpenOf("late", 1), &opened).code, ErrorCode::kDraining);
  daemon->reset();  // ends the watch
  EXPECT_FALSE(watch->Read(&seen));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(DaemonServiceTest, HealthKnowsItsServicesOnly) {
  Start();
  health::HealthCheckRequest request;
  request.set_service("no.such.Service");
  health::HealthCheckResponse response;
  EXPECT_EQ(ControlStubs::Call(*stubs_->health, &health::Health::Stub::Check, request, &response)
                .status.error_code(),
            grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext context;
  const auto watch = stubs_->health->Watch(&context, request);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), health::HealthCheckResponse::SERVICE_UNKNOWN);
  context.TryCancel();
  EXPECT_FALSE(watch->Read(&response));
  watch->Finish();
}

TEST_F(DaemonServiceTest, HealthWatchesAreBounded) {
  Start();
  struct Open {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<health::HealthCheckResponse>> watch;
  };
  std::vector<std::unique_ptr<Open>> open;
  health::HealthCheckResponse response;
  for (int i = 0; i < 1024; ++i) {
    Open& o = *open.emplace_back(std::make_unique<Open>());
    o.watch = stubs_->health->Watch(&o.context, health::HealthCheckRequest());
    ASSERT_TRUE(o.watch->Read(&response)) << i;
  }
  grpc::ClientContext context;
  const auto refused = stubs_->health->Watch(&context, health::HealthCheckRequest());
  EXPECT_FALSE(refused->Read(&response));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (const auto& o : open) o->context.TryCancel();
  for (const auto& o : open) o->watch->Finish();
  // There is room again once the daemon has seen them go.
  ASSERT_EVENTUALLY([&] {
    grpc::ClientContext again;
    return stubs_->health->Watch(&again, health::HealthCheckRequest())->Read(&response);
  }());
}

TEST_F(DaemonServiceTest, DrainIsUndone) {
  Start();
  ASSERT_TRUE(stubs_->MakeSealed("before", 1).ok());
  ASSERT_TRUE(stubs_->Drain(true).ok());
  EXPECT_EQ(stubs_->Health(), health::HealthCheckResponse::NOT_SERVING);
  EXPECT_TRUE(stubs_->Capacity().draining());
  v1::AttachResponse attached;
  EXPECT_EQ(stubs_->Attach(AttachOf("before"), &attached).code, ErrorCode::kDraining);
  EXPECT_EQ(stubs_->Attach(Waiting("none"), &attached).code, ErrorCode::kDraining);
  ASSERT_TRUE(stubs_->Drain(false).ok());
  EXPECT_EQ(stubs_->Health(), health::HealthCheckResponse::SERVING);
  EXPECT_TRUE(stubs_->Attach(AttachOf("before"), &attached).ok());
}

// The reflection protocol is spoken by hand: its message {list_services: ""} is the two bytes
// below, and names come back as plain text.
TEST_F(DaemonServiceTest, ReflectionListsTheServices) {
  Start();
  grpc::GenericStub stub(stubs_->channel);
  const grpc::Slice bytes(std::string("\x3a\x00", 2));
  grpc::ByteBuffer request(&bytes, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response, &status, this);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  ASSERT_TRUE(status.ok()) << status.error_message();
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(response.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) text.append(slice.begin(), slice.end());
  for (const char* service : {"oasiskv.v1.KvMemory", "oasiskv.v1.Admin", "grpc.health.v1.Health"}) {
    EXPECT_THAT(text, HasSubstr(service));
  }
}

TEST_F(DaemonServiceTest, ManyWaitsForASealLeaveTheDaemonFreeAndAllEndWithIt) {
  constexpr int kWaits = 300;
  Start({absl::StrCat("--max_attach_waiters=", kWaits)});
  AsyncAttaches waits(*stubs_);
  for (int i = 0; i < kWaits + 1; ++i) waits.Start(Waiting("s"));
  // When the one above the limit is refused all others have arrived.
  ASSERT_EVENTUALLY(waits.EndedWith(ErrorCode::kCapacity) == 1);
  EXPECT_THAT(waits.MessageOf(ErrorCode::kCapacity), HasSubstr("--max_attach_waiters=300"));
  v1::DescribeResponse description;
  EXPECT_TRUE(stubs_->Describe(&description).ok());
  EXPECT_EQ(waits.pending(), kWaits);

  const Outcome sealed = stubs_->MakeSealed("s", 2);
  ASSERT_TRUE(sealed.ok()) << sealed;
  ASSERT_EVENTUALLY(waits.pending() == 0);
  EXPECT_EQ(waits.CountOf(ErrorCode::kUnspecified, true), kWaits);
  EXPECT_EQ(stubs_->Capacity().grants_reader(), static_cast<uint64_t>(kWaits));
}

TEST_F(DaemonServiceTest, AWaitEndsByTimeCancelAbortLeaseAndDrain) {
  Start({"--max_attach_waiters=1"});
  v1::AttachResponse attached;
  EXPECT_EQ(stubs_->Attach(Waiting("nobody", 20), &attached).code, ErrorCode::kNotFound);

  // Of two waits one is above the limit; when it is refused the other has arrived.
  const auto start = [&](AsyncAttaches& waits, const char* name) {
    waits.Start(Waiting(name));
    waits.Start(Waiting(name));
    return Eventually([&] { return waits.EndedWith(ErrorCode::kCapacity) == 1; });
  };
  {
    AsyncAttaches waits(*stubs_);
    ASSERT_TRUE(start(waits, "s"));
    waits.CancelAll();
    ASSERT_EVENTUALLY(waits.pending() == 0);
  }
  // The cancelled wait gives its place back.
  ASSERT_EVENTUALLY(stubs_->Attach(Waiting("other", 1), &attached).code == ErrorCode::kNotFound);

  v1::OpenResponse open;
  {
    ASSERT_TRUE(stubs_->Open(OpenOf("aborted", 1), &open).ok());
    AsyncAttaches waits(*stubs_);
    ASSERT_TRUE(start(waits, "aborted"));
    ASSERT_TRUE(stubs_->Abort("aborted").ok());
    ASSERT_EVENTUALLY(waits.pending() == 0);
    EXPECT_EQ(waits.EndedWith(ErrorCode::kWrongState), 1);
  }
  {
    v1::OpenRequest request = OpenOf("expired", 1);
    request.set_lease_ms(1000);
    ASSERT_TRUE(stubs_->Open(request, &open).ok());
    AsyncAttaches waits(*stubs_);
    ASSERT_TRUE(start(waits, "expired"));
    ASSERT_EVENTUALLY(waits.pending() == 0);
    EXPECT_EQ(waits.EndedWith(ErrorCode::kWrongState), 1);
  }
  {
    AsyncAttaches waits(*stubs_);
    ASSERT_TRUE(start(waits, "s"));
    ASSERT_TRUE(stubs_->Drain(true).ok());
    ASSERT_EVENTUALLY(waits.pending() == 0);
    EXPECT_EQ(waits.EndedWith(ErrorCode::kDraining), 1);
  }
}

TEST_F(DaemonServiceTest, ADaemonThatStopsEndsWaitsAndWatches) {
  Start();
  AsyncAttaches waits(*stubs_);
  for (int i = 0; i < 20; ++i) waits.Start(Waiting("s"));
  grpc::ClientContext context;
  const auto watch = stubs_->admin->WatchCapacity(&context, v1::WatchCapacityRequest());
  v1::GetCapacityResponse capacity;
  ASSERT_TRUE(watch->Read(&capacity));
  cluster_->daemon().Kill();
  ASSERT_EVENTUALLY(waits.pending() == 0);
  EXPECT_FALSE(watch->Read(&capacity));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(DaemonServiceTest, WatchCapacitySendsChanges) {
  Start();
  grpc::ClientContext context;
  v1::WatchCapacityRequest request;
  request.set_interval_ms(100);
  const auto watch = stubs_->admin->WatchCapacity(&context, request);
  v1::GetCapacityResponse seen;
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.used_bytes(), 0u);
  v1::OpenResponse open;
  ASSERT_TRUE(stubs_->Open(OpenOf("s", 8), &open).ok());
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.used_bytes(), stubs_->Capacity().used_bytes());
  EXPECT_GT(seen.used_bytes(), 0u);
  context.TryCancel();
  while (watch->Read(&seen)) {
  }
  watch->Finish();

  grpc::ClientContext too_fast;
  request.set_interval_ms(99);
  const auto refused = stubs_->admin->WatchCapacity(&too_fast, request);
  EXPECT_FALSE(refused->Read(&seen));
  const Outcome outcome = ToOutcome(refused->Finish(), too_fast);
  EXPECT_EQ(outcome.code, ErrorCode::kInvalidArgument) << outcome;
}

TEST_F(DaemonServiceTest, ListsComeInPages) {
  Start();
  constexpr int kSequences = 25;
  for (int i = 0; i < kSequences; ++i) {
    v1::OpenResponse open;
    ASSERT_TRUE(stubs_->Open(OpenOf(absl::StrCat("s", i), 1), &open).ok());
  }
  std::set<std::string> names;
  int pages = 0;
  v1::ListSequencesRequest request;
  request.set_page_size(10);
  do {
    v1::ListSequencesResponse response;
    ASSERT_TRUE(
        ControlStubs::Call(*stubs_->admin, &v1::Admin::Stub::ListSequences, request, &response)
            .ok());
    for (const auto& info : response.sequences()) EXPECT_TRUE(names.insert(info.name()).second);
    request.set_page_token(response.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(names.size(), static_cast<size_t>(kSequences));
  EXPECT_EQ(pages, 3);

  v1::ListGrantsRequest grants;
  v1::ListGrantsResponse all;
  ASSERT_TRUE(ControlStubs::Call(*stubs_->admin, &v1::Admin::Stub::ListGrants, grants, &all).ok());
  EXPECT_EQ(all.grants_size(), kSequences);
  EXPECT_THAT(all.grants(0).holder(), HasSubstr("127.0.0.1"));
  grants.set_page_size(10'001);
  EXPECT_EQ(ControlStubs::Call(*stubs_->admin, &v1::Admin::Stub::ListGrants, grants, &all).code,
            ErrorCode::kInvalidArgument);
  grants.set_page_size(0);
  grants.set_page_token("x");
  EXPECT_EQ(ControlStubs::Call(*stubs_->admin, &v1::Admin::Stub::ListGrants, grants, &all).code,
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace oasiskv::testing
