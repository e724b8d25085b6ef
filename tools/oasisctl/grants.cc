#include "absl/strings/str_cat.h"
#include "oasiskv/v1/admin.pb.h"
#include "tools/oasisctl/commands.h"
#include "tools/oasisctl/listing.h"

namespace oasiskv::oasisctl {
namespace {

Json ToJson(const v1::GrantInfo& g) {
  return {{"id", g.id()},
          {"kind", g.writer() ? "writer" : "reader"},
          {"sequence_id", g.sequence_id()},
          {"sequence_name", g.sequence_name()},
          {"holder", g.holder()},
          {"lease_left_ms", g.lease_left_ms()},
          {"frames", g.frames()},
          {"first_head", g.first_head()},
          {"head_count", g.head_count()},
          {"quarantined", g.quarantined()}};
}

int Run(const Arguments& arguments) {
  return PrintListing(
      arguments, &Connection::ListGrants, v1::ListGrantsRequest(), "grants",
      Table({"id", "kind", "sequence", "holder", "lease left", "frames", "heads", ""}),
      [](const v1::ListGrantsResponse& response, Json& all, Table& table) {
        for (const v1::GrantInfo& g : response.grants()) {
          all.push_back(ToJson(g));
          table.Row({absl::StrCat(g.id()), g.writer() ? "writer" : "reader", g.sequence_name(),
                     g.holder(), Time(g.lease_left_ms()), absl::StrCat(g.frames()),
                     absl::StrCat(g.first_head(), "-", g.first_head() + g.head_count() - 1),
                     g.quarantined() ? "quarantined" : ""});
        }
      });
}

}  // namespace

Command GrantsCommand() {
  const Command list = {
      .name = "list", .help = "Lists all live grants.", .flags = CommonFlags(), .run = Run};
  return {.name = "grants",
          .help = "Lists live grants, their holders and leases.",
          .flags = list.flags,
          .run = Run,
          .children = {list}};
}

}  // namespace oasiskv::oasisctl
