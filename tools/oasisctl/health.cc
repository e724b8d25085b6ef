#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "oasiskv/error.h"
#include "oasiskv/v1/admin.pb.h"
#include "oasiskv/v1/kv_memory.pb.h"
#include "tools/oasisctl/commands.h"
#include "tools/oasisctl/connection.h"
#include "tools/oasisctl/format.h"

namespace oasiskv::oasisctl {
namespace {

using Json = nlohmann::ordered_json;

int Run(const Arguments& arguments) {
  auto connection = Connection::Make(arguments);
  if (!connection.ok()) return Usage(connection.status());
  const auto serving = connection->Health();
  if (!serving.ok()) return Report(serving.status());
  v1::DescribeResponse daemon;
  v1::GetCapacityResponse capacity;
  // A daemon that is still touching its pool answers only Health.
  absl::Status status = connection->Describe(daemon);
  if (status.ok()) status = connection->GetCapacity(capacity);
  const bool starting = ErrorCodeOf(status) == ErrorCode::kDraining;
  if (!status.ok() && !starting) return Report(status);

  if (arguments.Has("json")) {
    Json fabrics = Json::object();
    for (const v1::Endpoint& endpoint : daemon.endpoints()) {
      fabrics[endpoint.fabric()] = endpoint.description();
    }
    const Json json = {{"address", connection->address()},
                       {"status", *serving},
                       {"starting", starting},
                       {"draining", daemon.draining()},
                       {"daemon_version", daemon.daemon_version()},
                       {"incarnation", daemon.incarnation()},
                       {"uptime_ms", capacity.uptime_ms()},
                       {"fabrics", fabrics},
                       {"lease_ms", daemon.lease_ms()},
                       {"max_lease_ms", daemon.max_lease_ms()}};
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    Table table({"status", absl::StrCat(*serving, starting ? " (starting)" : "")});
    table.Row({"address", connection->address()});
    if (!starting) {
      table.Row({"version", daemon.daemon_version()});
      table.Row({"incarnation", absl::StrCat(daemon.incarnation())});
      table.Row({"uptime", Time(static_cast<int64_t>(capacity.uptime_ms()))});
      table.Row({"draining", daemon.draining() ? "yes" : "no"});
      for (const v1::Endpoint& endpoint : daemon.endpoints()) {
        table.Row({endpoint.fabric(), endpoint.description()});
      }
      table.Row({"leases", absl::StrCat(Time(static_cast<int64_t>(daemon.lease_ms())), ", at most ",
                                        Time(static_cast<int64_t>(daemon.max_lease_ms())))});
    }
    std::printf("%s", table.ToString().c_str());
  }
  return *serving == "SERVING" ? kExitOk : kExitNotServing;
}

}  // namespace

Command HealthCommand() {
  return {.name = "health",
          .help =
              "Shows whether the daemon serves, and which daemon it is. Exit code 4: it does "
              "not serve.",
          .flags = CommonFlags(),
          .run = Run};
}

}  // namespace oasiskv::oasisctl
