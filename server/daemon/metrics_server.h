// /metrics over HTTP.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/address.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace oasiskv::server {

// Thread contract: safe for concurrent use.
//
// Wraps prometheus-cpp's exposer, which reports errors as exceptions.
class MetricsServer {
 public:
  // Errors name --metrics_address: ALREADY_EXISTS (port taken), INVALID_ARGUMENT,
  // PERMISSION_DENIED.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Listen(const Address& address);
  ~MetricsServer();

  // With the port that was bound.
  const Address& address() const { return address_; }
  // The exposer keeps only a weak pointer: a collectable that is gone is left out.
  void Add(const std::shared_ptr<prometheus::Collectable>& collectable);

 private:
  MetricsServer(std::unique_ptr<prometheus::Exposer> exposer, Address address);
  const std::unique_ptr<prometheus::Exposer> exposer_;
  const Address address_;
};

}  // namespace oasiskv::server
