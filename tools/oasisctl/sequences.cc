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

std::string StateName(v1::SequenceState state) {
  switch (state) {
    case v1::SEQUENCE_STATE_OPEN:
      return "open";
    case v1::SEQUENCE_STATE_SEALED:
      return "sealed";
    case v1::SEQUENCE_STATE_RELEASED:
      return "released";
    case v1::SEQUENCE_STATE_ABORTED:
      return "aborted";
    default:
      return "unknown";
  }
}

Json ToJson(const v1::SequenceInfo& s) {
  const v1::Geometry& g = s.geometry();
  return {{"id", s.id()},
          {"name", s.name()},
          {"model", s.identity().model()},
          {"revision", s.identity().revision()},
          {"tenant", s.identity().tenant()},
          {"geometry",
           {{"layers", g.layers()},
            {"kv_heads", g.kv_heads()},
            {"head_dim", g.head_dim()},
            {"block_tokens", g.block_tokens()},
            {"element_type", v1::ElementType_Name(g.element_type())},
            {"packing", v1::Packing_Name(g.packing())},
            {"first_head", g.first_head()},
            {"total_kv_heads", g.total_kv_heads()}}},
          {"state", StateName(s.state())},
          {"blocks", s.blocks()},
          {"bytes", s.bytes()},
          {"token_count", s.token_count()},
          {"committed_layer_blocks", s.committed_layer_blocks()},
          {"readers", s.readers()},
          {"age_ms", s.age_ms()}};
}

int Run(const Arguments& arguments) {
  auto connection = Connection::Make(arguments);
  if (!connection.ok()) return Usage(connection.status());
  v1::ListSequencesRequest request;
  request.set_tenant(arguments.Get("tenant"));
  Json all = Json::array();
  Table table({"id", "name", "tenant", "model", "state", "blocks", "size", "tokens", "committed",
               "readers", "age"});
  do {
    v1::ListSequencesResponse response;
    const absl::Status status = connection->ListSequences(request, response);
    if (!status.ok()) return Report(status);
    for (const v1::SequenceInfo& s : response.sequences()) {
      all.push_back(ToJson(s));
      table.Row({absl::StrCat(s.id()), s.name(), s.identity().tenant(), s.identity().model(),
                 StateName(s.state()), absl::StrCat(s.blocks()), Size(s.bytes()),
                 absl::StrCat(s.token_count()),
                 Percent(s.committed_layer_blocks(), uint64_t{s.blocks()} * s.geometry().layers()),
                 absl::StrCat(s.readers()), Time(static_cast<int64_t>(s.age_ms()))});
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  if (arguments.Has("json")) {
    std::printf("%s\n", all.dump(2).c_str());
  } else {
    std::printf("%s%zu sequences\n", table.ToString().c_str(), all.size());
  }
  return kExitOk;
}

}  // namespace

Command SequencesCommand() {
  Command list;
  list.name = "list";
  list.help = "Every live sequence.";
  list.flags = CommonFlags();
  list.flags.push_back({"tenant", "NAME", "Only those of this tenant."});
  list.run = Run;
  Command out = list;
  out.name = "sequences";
  out.help = "Live sequences, their state and memory (list).";
  out.children = {list};
  return out;
}

}  // namespace oasiskv::oasisctl
