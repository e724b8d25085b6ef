// Network addresses as people write them, and as the kernel and gRPC take them.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace oasiskv {

// Thread contract: a plain value.
//
// A host and a port. `host` is a name or a numeric address without brackets; a numeric IPv6 address
// may have a scope ("fe80::1%eth0").
struct Address {
  std::string host;
  uint16_t port = 0;

  bool IsIpv6() const;  // a numeric IPv6 address, with or without scope
  bool IsIpv4() const;  // a numeric IPv4 address
  // host:port, [v6]:port: what ParseAddress reads.
  std::string ToString() const;

  friend bool operator==(const Address&, const Address&) = default;
};

// Reads "host:port", "1.2.3.4:port", "[v6]:port" and "[v6%scope]:port". Without a port it is
// `default_port`, and an IPv6 address needs no brackets. Errors: INVALID_ARGUMENT saying what was
// found.
absl::StatusOr<Address> ParseAddress(absl::string_view text, uint16_t default_port);

// The target string of a gRPC channel: "ipv4:...", "ipv6:..." (scope percent-encoded) or
// "dns:///...".
std::string GrpcTarget(const Address& address);

// Thread contract: a plain value.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  // Numeric host (with scope) and port.
  Address ToAddress() const;
};

// The first stream address of the host, of one family (AF_INET, AF_INET6) if asked. Blocks while a
// name is looked up. Errors: INVALID_ARGUMENT with the resolver's message.
absl::StatusOr<SocketAddress> Resolve(const Address& address, int family = AF_UNSPEC);

// OK when a listener could be bound to `address` now (nothing stays bound). Errors:
// INVALID_ARGUMENT (not resolvable), ALREADY_EXISTS (the port is taken), PERMISSION_DENIED,
// INVALID_ARGUMENT (not an address of this machine).
absl::Status CheckBindable(const Address& address);

}  // namespace oasiskv
