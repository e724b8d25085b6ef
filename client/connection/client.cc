#include "oasiskv/client.h"

#include <utility>

#include "client/connection/core.h"
#include "common/status_macros.h"

namespace oasiskv {

using client::Core;
using client::Session;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  OASISKV_ASSIGN_OR_RETURN(std::shared_ptr<Core> core, Core::Create(options));
  return std::unique_ptr<Client>(new Client(std::make_shared<Impl>(std::move(core))));
}

Client::Client(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<uint32_t> Client::ReleaseSequences(const std::vector<std::string>& names,
                                                  const Identity& identity) {
  Core& core = *impl_->core;
  const Duration timeout = core.options().rpc_timeout;
  const CallToken token = client::DrawToken();
  uint32_t released = 0;
  OASISKV_RETURN_IF_ERROR(core.OnSession(
      Clock::Real().Now() + timeout, [&](const std::shared_ptr<Session>& session) -> absl::Status {
        OASISKV_ASSIGN_OR_RETURN(
            released, session->control().ReleaseSequences(names, identity, token, timeout));
        return absl::OkStatus();
      }));
  return released;
}

absl::StatusOr<uint32_t> Client::Abort(const std::string& name, const Identity& identity,
                                       const std::string& reason) {
  Core& core = *impl_->core;
  const Duration timeout = core.options().rpc_timeout;
  const CallToken token = client::DrawToken();
  uint32_t revoked = 0;
  OASISKV_RETURN_IF_ERROR(core.OnSession(
      Clock::Real().Now() + timeout, [&](const std::shared_ptr<Session>& session) -> absl::Status {
        OASISKV_ASSIGN_OR_RETURN(revoked, session->control().Abort(name, SequenceId(), identity,
                                                                   reason, token, timeout));
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
