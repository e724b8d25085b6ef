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

Json ToJson(const v1::GetCapacityResponse& c) {
  Json classes = Json::array();
  for (const v1::FrameClass& frame_class : c.frame_classes()) {
    classes.push_back({{"frame_stride", frame_class.frame_stride()},
                       {"slabs", frame_class.slabs()},
                       {"frames", frame_class.frames()},
                       {"frames_used", frame_class.frames_used()}});
  }
  return {{"pool_bytes", c.pool_bytes()},
          {"free_bytes", c.free_bytes()},
          {"used_bytes", c.used_bytes()},
          {"quarantined_bytes", c.quarantined_bytes()},
          {"overhead_bytes", c.overhead_bytes()},
          {"metadata_bytes", c.metadata_bytes()},
          {"arenas", c.arenas()},
          {"slab_bytes", c.slab_bytes()},
          {"slabs_total", c.slabs_total()},
          {"slabs_free", c.slabs_free()},
          {"huge_pages", c.huge_pages()},
          {"huge_pages_fell_back", c.huge_pages_fell_back()},
          {"sequences_open", c.sequences_open()},
          {"sequences_sealed", c.sequences_sealed()},
          {"sequences_released", c.sequences_released()},
          {"grants_reader", c.grants_reader()},
          {"grants_writer", c.grants_writer()},
          {"draining", c.draining()},
          {"frame_classes", classes},
          {"uptime_ms", c.uptime_ms()},
          {"incarnation", c.incarnation()}};
}

std::string ToText(const v1::GetCapacityResponse& c) {
  Table memory({"memory", "size", "of pool"});
  const auto row = [&](const char* name, uint64_t bytes) {
    memory.Row({name, Size(bytes), Percent(bytes, c.pool_bytes())});
  };
  row("pool", c.pool_bytes());
  row("free", c.free_bytes());
  row("used", c.used_bytes());
  row("  quarantined", c.quarantined_bytes());
  row("overhead", c.overhead_bytes());
  memory.Row({"metadata", Size(c.metadata_bytes()), "(outside the pool)"});
  std::string out = memory.ToString();
  absl::StrAppend(&out, "\narenas ", c.arenas(), ", slabs ", c.slabs_free(), " free of ",
                  c.slabs_total(), " (", Size(c.slab_bytes()), " each), huge pages ",
                  c.huge_pages() ? "yes" : (c.huge_pages_fell_back() ? "no (too few free)" : "no"),
                  c.draining() ? ", DRAINING" : "", "\n");
  absl::StrAppend(&out, "sequences ", c.sequences_open(), " open, ", c.sequences_sealed(),
                  " sealed, ", c.sequences_released(), " released; grants ", c.grants_reader(),
                  " reader, ", c.grants_writer(), " writer\n");
  if (!c.frame_classes().empty()) {
    Table classes({"frame size", "slabs", "frames", "used", ""});
    for (const v1::FrameClass& f : c.frame_classes()) {
      classes.Row({Size(f.frame_stride()), absl::StrCat(f.slabs()), absl::StrCat(f.frames()),
                   absl::StrCat(f.frames_used()), Percent(f.frames_used(), f.frames())});
    }
    absl::StrAppend(&out, "\n", classes.ToString());
  }
  return out;
}

int Run(const Arguments& arguments) {
  auto connection = Connection::Make(arguments);
  if (!connection.ok()) return Usage(connection.status());
  const auto interval = arguments.Time("interval", std::chrono::seconds(1));
  if (!interval.ok()) return Usage(interval.status());
  const auto count = arguments.Number("count", 0);
  if (!count.ok()) return Usage(count.status());
  const bool json = arguments.Has("json");
  if (!arguments.Has("watch")) {
    v1::GetCapacityResponse response;
    const absl::Status status = connection->GetCapacity(response);
    if (!status.ok()) return Report(status);
    std::printf("%s\n", (json ? ToJson(response).dump(2) : ToText(response)).c_str());
    return kExitOk;
  }
  uint64_t seen = 0;
  const absl::Status status =
      connection->WatchCapacity(*interval, [&](const v1::GetCapacityResponse& response) {
        // JSON: one object per line, for programs that read the stream.
        std::printf("%s\n", (json ? ToJson(response).dump() : ToText(response)).c_str());
        std::fflush(stdout);
        return *count == 0 || ++seen < *count;
      });
  return status.ok() ? kExitOk : Report(status);
}

}  // namespace

Command CapacityCommand() {
  Command out = {.name = "capacity",
                 .help = "Shows the pool's memory: free, used, and by frame size.",
                 .flags = CommonFlags(),
                 .run = Run};
  out.flags.push_back({"watch", "", "Print again whenever it changes, until interrupted."});
  out.flags.push_back({"interval", "TIME", "With --watch: print at most once in this time (1s)."});
  out.flags.push_back({"count", "N", "With --watch: end after N prints. Default: 0, never."});
  return out;
}

}  // namespace oasiskv::oasisctl
