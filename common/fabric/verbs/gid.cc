#include "common/fabric/verbs/gid.h"

#include <arpa/inet.h>

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

// Loopback addresses and multicast never name a port.
bool IsNoPort(const Gid& gid) {
  if (IsIpv4Gid(gid)) return gid[12] == 127 || gid[12] == 0 || gid[12] >= 224;
  static constexpr Gid kLoopback = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return gid == kLoopback || gid[0] == 0xff;
}

bool IsForeign(const GidEntry& entry) {
  return entry.type != GidType::kInfiniband && entry.interface.empty();
}

bool Reaches(const GidEntry& entry, const GidWish::Peer& peer) {
  return entry.type == peer.type && IsIpv4Gid(entry.gid) == IsIpv4Gid(peer.gid) &&
         IsLinkLocalGid(entry.gid) == IsLinkLocalGid(peer.gid);
}

std::string EntryText(const GidEntry& entry) {
  return absl::StrCat("index ", entry.index, " (", GidTypeName(entry.type), ", ",
                      GidText(entry.gid), entry.interface.empty() ? "" : ", ", entry.interface,
                      ")");
}

std::string TableText(std::span<const GidEntry> table) {
  std::vector<std::string> lines;
  for (const GidEntry& entry : table) {
    if (IsNullGid(entry.gid)) continue;
    lines.push_back(
        absl::StrCat(EntryText(entry), IsForeign(entry) ? " of another namespace" : ""));
  }
  return lines.empty() ? "the table is empty" : absl::StrCat("it has ", absl::StrJoin(lines, ", "));
}

absl::StatusOr<GidChoice> TakeWished(std::span<const GidEntry> table, uint32_t table_size,
                                     int64_t index) {
  auto refuse = [&](absl::string_view why) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("--verbs_gid_index=", index, ": ", why, "; ", TableText(table)));
  };
  if (index >= int64_t{table_size}) {
    return refuse(absl::StrCat("the port's GID table has ", table_size, " places, from 0"));
  }
  const auto entry = std::find_if(table.begin(), table.end(),
                                  [&](const GidEntry& e) { return int64_t{e.index} == index; });
  if (entry == table.end() || IsNullGid(entry->gid)) return refuse("that place is empty");
  if (IsForeign(*entry)) {
    return refuse("that GID's network interface is not in this network namespace");
  }
  return GidChoice{*entry, absl::StrCat(EntryText(*entry), ": named by --verbs_gid_index")};
}

}  // namespace

std::string GidTypeName(GidType type) {
  switch (type) {
    case GidType::kInfiniband:
      return "InfiniBand";
    case GidType::kRoceV1:
      return "RoCE v1";
    case GidType::kRoceV2:
      break;
  }
  return "RoCE v2";
}

std::string GidText(const Gid& gid) {
  char text[INET6_ADDRSTRLEN];
  ::inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
  return text;
}

bool IsNullGid(const Gid& gid) {
  // The driver's placeholder for "no address yet" is the link-local prefix and nothing behind it.
  const bool no_prefix =
      std::all_of(gid.begin(), gid.begin() + 8, [](uint8_t b) { return b == 0; });
  const bool prefix_only =
      gid[0] == 0xfe && gid[1] == 0x80 &&
      std::all_of(gid.begin() + 2, gid.begin() + 8, [](uint8_t b) { return b == 0; });
  return (no_prefix || prefix_only) &&
         std::all_of(gid.begin() + 8, gid.end(), [](uint8_t b) { return b == 0; });
}

bool IsIpv4Gid(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t b) { return b == 0; }) &&
         gid[10] == 0xff && gid[11] == 0xff;
}

bool IsLinkLocalGid(const Gid& gid) {
  if (IsIpv4Gid(gid)) return gid[12] == 169 && gid[13] == 254;
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

absl::StatusOr<GidChoice> ChooseGid(std::span<const GidEntry> table, uint32_t table_size,
                                    const GidWish& wish) {
  if (wish.index >= 0) return TakeWished(table, table_size, wish.index);
  if (wish.index < -1) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("--verbs_gid_index=", wish.index, " is neither an index nor -1"));
  }
  uint32_t empty = 0, foreign = 0, useless = 0, unreachable = 0;
  const GidEntry* best = nullptr;
  // Less is better. InfiniBand and RoCE do not meet in one table.
  auto rank = [](const GidEntry& e) {
    return std::make_tuple(e.type == GidType::kRoceV1, IsLinkLocalGid(e.gid), !IsIpv4Gid(e.gid),
                           e.index);
  };
  for (const GidEntry& entry : table) {
    if (IsNullGid(entry.gid)) {
      ++empty;
    } else if (IsForeign(entry)) {
      ++foreign;
    } else if (entry.type != GidType::kInfiniband && IsNoPort(entry.gid)) {
      ++useless;
    } else if (wish.peer.has_value() && !Reaches(entry, *wish.peer)) {
      ++unreachable;
    } else if (best == nullptr || rank(entry) < rank(*best)) {
      best = &entry;
    }
  }
  if (best == nullptr) {
    return MakeError(
        ErrorCode::kUnsupported,
        absl::StrCat("the port has no GID that ",
                     wish.peer.has_value()
                         ? absl::StrCat("reaches the other side's (", GidTypeName(wish.peer->type),
                                        ", ", GidText(wish.peer->gid), ")")
                         : "can be used",
                     "; ", TableText(table),
                     "; give its interface an address, or name an entry with --verbs_gid_index"));
  }
  std::vector<std::string> skipped;
  auto skip = [&](uint32_t count, absl::string_view what) {
    if (count > 0) skipped.push_back(absl::StrCat(count, " ", what));
  };
  skip(empty, "empty");
  skip(foreign, "of another network namespace");
  skip(useless, "that name no port");
  skip(unreachable, "of another kind than the other side's");
  return GidChoice{*best,
                   absl::StrCat(EntryText(*best), ": the first of ", table.size(),
                                " in the order RoCE v2, routable, IPv4, lower index",
                                skipped.empty() ? "" : "; skipped ", absl::StrJoin(skipped, ", "))};
}

}  // namespace oasiskv::fabric::verbs
