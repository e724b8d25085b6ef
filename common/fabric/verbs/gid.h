// Which address (GID) of an RDMA port to use: a pure function over a description of the port's
// table.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace oasiskv::fabric::verbs {

using Gid = std::array<uint8_t, 16>;

// Values equal those of ibv_gid_entry::gid_type.
enum class GidType : uint8_t { kInfiniband = 0, kRoceV1 = 1, kRoceV2 = 2 };

struct GidEntry {
  uint32_t index = 0;
  GidType type = GidType::kRoceV2;
  Gid gid{};
  // Of the network interface that carries it. Empty on RoCE: the interface belongs to another
  // network namespace, so the entry is foreign. InfiniBand has none.
  std::string interface;
};

// "InfiniBand", "RoCE v1", "RoCE v2"
std::string GidTypeName(GidType type);
// "::ffff:10.0.0.1", "fe80::1"
std::string GidText(const Gid& gid);
bool IsNullGid(const Gid& gid);
bool IsIpv4Gid(const Gid& gid);       // an IPv4 address in IPv6 clothes
bool IsLinkLocalGid(const Gid& gid);  // fe80::/10, 169.254.0.0/16

struct GidWish {
  int64_t index = -1;  // the operator's choice (--verbs_gid_index); -1: none
  // The other side's, when it is known already: both must be of one type and one address family,
  // and link-local talks to link-local only.
  struct Peer {
    GidType type;
    Gid gid;
  };
  std::optional<Peer> peer;
};

struct GidChoice {
  GidEntry entry;
  // For people: what was chosen, of how many, by which rule, what was skipped and why.
  std::string reason;
};

// `table_size` is the size of the port's table: `table` leaves out what the driver did not report.
// RoCE v2 goes before v1, routable before link-local, IPv4 before IPv6, and then the lower index.
// Errors: INVALID_ARGUMENT (the wished index is out of range, null or foreign), UNSUPPORTED
// (nothing that can be used; both list the table).
absl::StatusOr<GidChoice> ChooseGid(std::span<const GidEntry> table, uint32_t table_size,
                                    const GidWish& wish);

}  // namespace oasiskv::fabric::verbs
