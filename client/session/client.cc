#include "oasiskv/client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/core.h"
#include "client/session/producer_impl.h"
#include "client/session/reader_impl.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {

using client::Core;
using client::Session;

// Thread contract: safe for concurrent use.
class Client::Impl {
 public:
  explicit Impl(std::shared_ptr<Core> made) : core(std::move(made)) {}
  const std::shared_ptr<Core> core;
};

namespace {

std::shared_ptr<client::GrantState> Hold(Core& core, const std::shared_ptr<Session>& session,
                                         const client::GivenGrant& given, Duration asked_lease,
                                         client::GrantRole role) {
  auto grant =
      std::make_shared<client::GrantState>(given.key, asked_lease, given.sent, given.lease);
  core.keeper().Hold(session, grant, role);
  return grant;
}

Duration LeaseOf(Duration asked, const ClientOptions& options) {
  return asked > Duration(0) ? asked : options.lease;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  OASISKV_ASSIGN_OR_RETURN(std::shared_ptr<Core> core, Core::Create(options));
  return std::unique_ptr<Client>(new Client(std::make_shared<Impl>(std::move(core))));
}

Client::Client(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<Producer> Client::Open(const ProducerSpec& spec) {
  Core& core = *impl_->core;
  OASISKV_RETURN_IF_ERROR(spec.geometry.Validate());
  const Duration timeout = core.options().rpc_timeout;
  std::unique_ptr<Producer::Impl> made;
  const auto call_daemon = [&](const std::shared_ptr<Session>& session) -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(fabric::Connection * writer, session->Writer());
    client::OpenCall call;
    call.name = spec.name;
    call.identity = spec.identity;
    call.geometry = spec.geometry;
    call.blocks = spec.blocks;
    call.lease = LeaseOf(spec.lease, core.options());
    call.connection = writer->connection_id();
    call.checksums = spec.checksums;
    auto opened = session->control().Open(call, timeout);
    if (ErrorCodeOf(opened.status()) == ErrorCode::kPeerLost) {
      // The daemon has ended the writer's connection, which may take this side seconds to notice.
      session->MarkLost(std::string(opened.status().message()));
    }
    OASISKV_ASSIGN_OR_RETURN(client::GivenGrant given, std::move(opened));
    OASISKV_RETURN_IF_ERROR(session->VerifyGrant(given.key.id, timeout));
    auto grant = Hold(core, session, given, call.lease, client::GrantRole::kWriter);
    made = std::make_unique<Producer::Impl>(impl_->core, session, writer, std::move(grant), spec,
                                            given);
    return absl::OkStatus();
  };
  OASISKV_RETURN_IF_ERROR(core.OnSession(Clock::Real().Now() + timeout,
                                         client::Repeat::kNewIncarnationOnly, call_daemon));
  return Producer(std::move(made));
}

absl::StatusOr<Reader> Client::Attach(const ReaderSpec& spec) {
  Core& core = *impl_->core;
  OASISKV_RETURN_IF_ERROR(spec.geometry.Validate());
  const Duration timeout = core.options().rpc_timeout;
  const MonotonicTime wait_end = Clock::Real().Now() + std::max(spec.wait_for_seal, Duration(0));
  std::shared_ptr<Reader::Impl> made;
  const auto call_daemon = [&](const std::shared_ptr<Session>& session) -> absl::Status {
    client::AttachCall call;
    call.name = spec.name;
    call.identity = spec.identity;
    call.geometry = spec.geometry;
    call.first_head = spec.first_head;
    call.head_count = spec.head_count;
    call.lease = LeaseOf(spec.lease, core.options());
    if (spec.wait_for_seal > Duration(0)) {
      // On a second session only what is left of the wait.
      call.wait_for_seal = std::max(wait_end - Clock::Real().Now(), Duration(Millis(1)));
    }
    OASISKV_ASSIGN_OR_RETURN(client::Attached attached, session->control().Attach(call, timeout));
    OASISKV_RETURN_IF_ERROR(session->VerifyGrant(attached.grant.key.id, timeout));
    // A lease counts from the moment the call was sent, and this call may have waited for a
    // seal: it is renewed before the reader is handed out.
    client::GivenGrant& given = attached.grant;
    if (Clock::Real().Now() - given.sent > given.lease / 4) {
      OASISKV_ASSIGN_OR_RETURN(
          client::Renewed renewed,
          session->control().Renew(std::span(&given.key, 1), call.lease, timeout));
      if (!renewed.lost.empty()) {
        return MakeError(renewed.lost.front().reason,
                         "the grant was lost before the attach was over; attach again");
      }
      given.sent = renewed.sent;
      given.lease = renewed.lease;
    }
    auto grant = Hold(core, session, given, call.lease, client::GrantRole::kReader);
    made = std::make_shared<Reader::Impl>(impl_->core, session, std::move(grant), spec,
                                          std::move(attached));
    return absl::OkStatus();
  };
  OASISKV_RETURN_IF_ERROR(core.OnSession(wait_end + timeout, client::Repeat::kAlways, call_daemon));
  return Reader(std::move(made));
}

absl::StatusOr<uint32_t> Client::ReleaseSequences(const std::vector<std::string>& names,
                                                  const Identity& identity) {
  Core& core = *impl_->core;
  const Duration timeout = core.options().rpc_timeout;
  uint32_t released = 0;
  OASISKV_RETURN_IF_ERROR(
      core.OnSession(Clock::Real().Now() + timeout, client::Repeat::kAlways,
                     [&](const std::shared_ptr<Session>& session) -> absl::Status {
                       OASISKV_ASSIGN_OR_RETURN(
                           released, session->control().ReleaseSequences(names, identity, timeout));
                       return absl::OkStatus();
                     }));
  return released;
}

absl::StatusOr<uint32_t> Client::Abort(const std::string& name, const Identity& identity,
                                       const std::string& reason) {
  Core& core = *impl_->core;
  const Duration timeout = core.options().rpc_timeout;
  uint32_t revoked = 0;
  OASISKV_RETURN_IF_ERROR(
      core.OnSession(Clock::Real().Now() + timeout, client::Repeat::kAlways,
                     [&](const std::shared_ptr<Session>& session) -> absl::Status {
                       OASISKV_ASSIGN_OR_RETURN(
                           revoked, session->control().Abort(name, identity, reason, timeout));
                       return absl::OkStatus();
                     }));
  return revoked;
}

absl::StatusOr<RegisteredBuffer> Client::RegisterBuffer(std::span<std::byte> memory) {
  return client::RegisterBuffer(impl_->core, memory);
}

absl::Status Client::Health() const { return impl_->core->Health(); }
std::string Client::Describe() const { return impl_->core->Describe(); }
std::string Client::FabricName() const { return impl_->core->FabricName(); }
ClientStats Client::Stats() const { return impl_->core->Stats(); }

}  // namespace oasiskv
