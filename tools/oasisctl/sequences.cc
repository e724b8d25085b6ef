#include "absl/strings/str_cat.h"
#include "oasiskv/v1/admin.pb.h"
#include "tools/oasisctl/commands.h"
#include "tools/oasisctl/listing.h"

namespace oasiskv::oasisctl {
namespace {

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
  v1::ListSequencesRequest request;
  request.set_tenant(arguments.Get("tenant"));
  return PrintListing(
      arguments, &Connection::ListSequences, request, "sequences",
      Table({"id", "name", "tenant", "model", "state", "blocks", "size", "tokens", "committed",
             "readers", "age"}),
      [](const v1::ListSequencesResponse& response, Json& all, Table& table) {
        for (const v1::SequenceInfo& s : response.sequences()) {
          all.push_back(ToJson(s));
          table.Row(
              {absl::StrCat(s.id()), s.name(), s.identity().tenant(), s.identity().model(),
               StateName(s.state()), absl::StrCat(s.blocks()), Size(s.bytes()),
               absl::StrCat(s.token_count()),
               Percent(s.committed_layer_blocks(), uint64_t{s.blocks()} * s.geometry().layers()),
               absl::StrCat(s.readers()), Time(static_cast<int64_t>(s.age_ms()))});
        }
      });
}

}  // namespace

Command SequencesCommand() {
  Command list = {
      .name = "list", .help = "Lists all live sequences.", .flags = CommonFlags(), .run = Run};
  list.flags.push_back({"tenant", "NAME", "Only the sequences of this tenant."});
  return {.name = "sequences",
          .help = "Lists live sequences, their state and memory.",
          .flags = list.flags,
          .run = Run,
          .children = {list}};
}

}  // namespace oasiskv::oasisctl
