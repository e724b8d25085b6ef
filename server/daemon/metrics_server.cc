#include "server/daemon/metrics_server.h"

#include <prometheus/exposer.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "oasiskv/error.h"

namespace oasiskv::server {

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Listen(const Address& address) {
  const std::string flag = absl::StrCat("--metrics_address=", address.ToString());
  // The exposer only reports that it failed; this finds the reason.
  if (const absl::Status status = CheckBindable(address); !status.ok()) {
    return Annotate(status, flag);
  }
  // It takes a numeric address. For a name with addresses of both families IPv4 is used, which every
  // build supports.
  auto resolved = Resolve(address, AF_INET);
  if (!resolved.ok()) resolved = Resolve(address);
  if (!resolved.ok()) return Annotate(resolved.status(), flag);
  const Address numeric = resolved->ToAddress();
  std::unique_ptr<prometheus::Exposer> exposer;
  try {
    exposer = std::make_unique<prometheus::Exposer>(numeric.ToString(), /*num_threads=*/2);
  } catch (const std::exception& error) {
    if (numeric.IsIpv6()) {
      return MakeError(
          ErrorCode::kUnsupported,
          absl::StrCat(
              flag,
              ": the HTTP server of this build (civetweb, as Debian builds it) cannot listen on "
              "IPv6; give an IPv4 address"));
    }
    return MakeError(ErrorCode::kAlreadyExists,
                     absl::StrCat(flag, ": cannot listen: ", error.what(),
                                  "; choose another address, or stop the program that uses the "
                                  "port"));
  }
  Address bound = address;
  if (const auto ports = exposer->GetListeningPorts(); !ports.empty()) {
    bound.port = static_cast<uint16_t>(ports.front());
  }
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(exposer), bound));
}

MetricsServer::MetricsServer(std::unique_ptr<prometheus::Exposer> exposer, Address address)
    : exposer_(std::move(exposer)), address_(std::move(address)) {}

MetricsServer::~MetricsServer() = default;

void MetricsServer::Add(const std::shared_ptr<prometheus::Collectable>& collectable) {
  exposer_->RegisterCollectable(collectable);
}

}  // namespace oasiskv::server
