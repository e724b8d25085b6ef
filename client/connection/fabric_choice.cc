#include "client/connection/fabric_choice.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/connection/verbs_control.h"
#include "common/address.h"
#include "common/fabric/connect.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::client {
namespace {

using fabric::Kind;

// The address a UCX listener is reached at: one that is bound to every interface advertises no host
// of its own, so the control port's host stands in.
absl::StatusOr<std::string> UcxTarget(const std::string& advertised, const std::string& control) {
  OASISKV_ASSIGN_OR_RETURN(Address ucx, ParseAddress(advertised, 0));
  if (ucx.host == "0.0.0.0" || ucx.host == "::" || ucx.host.empty()) {
    OASISKV_ASSIGN_OR_RETURN(Address host, ParseAddress(control, 0));
    OASISKV_ASSIGN_OR_RETURN(SocketAddress resolved, Resolve(host));
    ucx.host = resolved.ToAddress().host;
  }
  return ucx.ToString();
}

fabric::VerbsPortOptions VerbsPort(const ClientOptions& options) {
  return {options.verbs_device, options.verbs_port, options.verbs_gid_index};
}

// Where a client gets by taking `kind` by itself.
std::string Reason(Kind kind, const DaemonInfo& daemon) {
  switch (kind) {
    case Kind::kShm:
      return absl::StrCat("the daemon is on this host (socket ", daemon.shm_socket, ")");
    case Kind::kVerbs:
      return "both sides have an RDMA device";
    case Kind::kUcx:
      break;
  }
  return "it goes over any network";
}

}  // namespace

bool FabricConnector::Serves(Kind kind) const {
  switch (kind) {
    case Kind::kShm:
      return !daemon_.shm_socket.empty();
    case Kind::kVerbs:
      return !daemon_.verbs_endpoint.empty();
    case Kind::kUcx:
      break;
  }
  return !daemon_.ucx_address.empty();
}

absl::Status FabricConnector::NotServed(Kind kind) const {
  std::vector<std::string> served;
  for (const Kind other : {Kind::kShm, Kind::kUcx, Kind::kVerbs}) {
    if (Serves(other)) served.emplace_back(fabric::KindName(other));
  }
  return MakeError(ErrorCode::kUnsupported,
                   absl::StrCat("the daemon at ", options_.address, " does not serve ",
                                std::string(fabric::KindName(kind)), " but ",
                                served.empty() ? "no fabric" : absl::StrJoin(served, " and "),
                                "; start it with --fabrics naming it, or ask for another"));
}

FabricConnector::Made FabricConnector::Shm(fabric::Access access) const {
  if (!Serves(Kind::kShm)) return NotServed(Kind::kShm);
  return fabric::ConnectShm(daemon_.shm_socket, daemon_.incarnation, access);
}

FabricConnector::Made FabricConnector::Ucx(Duration timeout) const {
  if (!Serves(Kind::kUcx)) return NotServed(Kind::kUcx);
  fabric::UcxConnectOptions ucx;
  OASISKV_ASSIGN_OR_RETURN(ucx.address, UcxTarget(daemon_.ucx_address, options_.address));
  ucx.incarnation = daemon_.incarnation;
  ucx.connect_timeout = timeout;
  return fabric::ConnectUcx(ucx);
}

FabricConnector::Made FabricConnector::Verbs(fabric::Access access) const {
  // This side first: without a device it does not matter what the daemon has.
  OASISKV_RETURN_IF_ERROR(fabric::CheckVerbsPort(VerbsPort(options_)));
  if (!Serves(Kind::kVerbs)) return NotServed(Kind::kVerbs);
  fabric::VerbsConnectOptions verbs;
  verbs.port = VerbsPort(options_);
  verbs.incarnation = daemon_.incarnation;
  verbs.access = access;
  if (options_.verbs_peer_timeout > Duration(0)) verbs.peer_patience = options_.verbs_peer_timeout;
  return fabric::ConnectVerbs(verbs,
                              std::make_shared<RpcVerbsControl>(control_, options_.rpc_timeout));
}

FabricConnector::Made FabricConnector::Connect(Kind kind, Duration timeout) const {
  switch (kind) {
    case Kind::kShm:
      return Shm(fabric::Access::kRead);
    case Kind::kVerbs:
      return Verbs(fabric::Access::kRead);
    case Kind::kUcx:
      break;
  }
  return Ucx(timeout);
}

absl::StatusOr<ChosenFabric> FabricConnector::Choose(Duration timeout) const {
  const MonotonicTime deadline = Clock::Real().Now() + timeout;
  std::vector<Kind> kinds = {Kind::kShm, Kind::kVerbs, Kind::kUcx};
  const bool by_name = options_.fabric != FabricChoice::kAuto;
  if (options_.fabric == FabricChoice::kShm) kinds = {Kind::kShm};
  if (options_.fabric == FabricChoice::kVerbs) kinds = {Kind::kVerbs};
  if (options_.fabric == FabricChoice::kUcx) kinds = {Kind::kUcx};
  std::vector<std::string> why_not;
  absl::Status last;
  for (const Kind kind : kinds) {
    const std::string name(fabric::KindName(kind));
    if (!by_name && !Serves(kind)) {
      why_not.push_back(absl::StrCat("the daemon does not serve ", name));
      last = NotServed(kind);
      continue;
    }
    auto made = Connect(kind, std::max(deadline - Clock::Real().Now(), Duration(Millis(1))));
    if (made.ok()) {
      return ChosenFabric{*std::move(made),
                          by_name ? absl::StrCat(name, ", as asked")
                          : why_not.empty()
                              ? absl::StrCat(name, ": ", Reason(kind, daemon_))
                              : absl::StrCat(name, ", because ", absl::StrJoin(why_not, "; "))};
    }
    last = Annotate(made.status(), by_name ? absl::StrCat("fabric ", name, " was asked") : name);
    why_not.push_back(absl::StrCat("no ", name, ": ", made.status().message()));
  }
  if (by_name || ErrorCodeOf(last) != ErrorCode::kUnsupported) return last;
  return MakeError(ErrorCode::kUnsupported,
                   absl::StrCat("no fabric reaches the daemon at ", options_.address, ": ",
                                absl::StrJoin(why_not, "; ")));
}

absl::StatusOr<std::shared_ptr<fabric::Connection>> FabricConnector::ConnectWriter(
    Kind kind) const {
  Made made = kind == Kind::kShm ? Shm(fabric::Access::kWrite) : Verbs(fabric::Access::kWrite);
  if (!made.ok()) {
    return Annotate(made.status(),
                    absl::StrCat(std::string(fabric::KindName(kind)), ", for writing"));
  }
  return std::shared_ptr<fabric::Connection>(*std::move(made));
}

}  // namespace oasiskv::client
