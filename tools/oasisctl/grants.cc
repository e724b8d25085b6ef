#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "oasiskv/v1/admin.pb.h"
#include "tools/oasisctl/commands.h"
#include "tools/oasisctl/connection.h"
#include "tools/oasisctl/format.h"

namespace oasiskv::oasisctl {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const v1::GrantInfo& g) {
  return {{"id", g.id()},
          {"epoch", g.epoch()},
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
  auto connection = Connection::Make(arguments);
  if (!connection.ok()) return Usage(connection.status());
  v1::ListGrantsRequest request;
  Json all = Json::array();
  Table table({"id", "kind", "sequence", "holder", "lease left", "frames", "heads", ""});
  do {
    v1::ListGrantsResponse response;
    const absl::Status status = connection->ListGrants(request, response);
    if (!status.ok()) return Report(status);
    for (const v1::GrantInfo& g : response.grants()) {
      all.push_back(ToJson(g));
      table.Row({absl::StrCat(g.id()), g.writer() ? "writer" : "reader", g.sequence_name(),
                 g.holder(), Time(g.lease_left_ms()), absl::StrCat(g.frames()),
                 absl::StrCat(g.first_head(), "-", g.first_head() + g.head_count() - 1),
                 g.quarantined() ? "quarantined" : ""});
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  if (arguments.Has("json")) {
    std::printf("%s\n", all.dump(2).c_str());
  } else {
    std::printf("%s%zu grants\n", table.ToString().c_str(), all.size());
  }
  return kExitOk;
}

}  // namespace

Command GrantsCommand() {
  Command list;
  list.name = "list";
  list.help = "Every live grant.";
  list.flags = CommonFlags();
  list.run = Run;
  Command out = list;
  out.name = "grants";
  out.help = "Live grants, their holders and leases (list).";
  out.children = {list};
  return out;
}

}  // namespace oasiskv::oasisctl
