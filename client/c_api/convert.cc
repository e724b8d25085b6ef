#include "client/c_api/convert.h"

#include "common/status_macros.h"

namespace oasiskv::c_api {

absl::StatusOr<Geometry> ToGeometry(const oasiskv_geometry* geometry) {
  oasiskv_geometry in;
  OASISKV_RETURN_IF_ERROR(ReadStruct(geometry, "geometry", in));
  Geometry out;
  out.layers = in.layers;
  out.kv_heads = in.kv_heads;
  out.head_dim = in.head_dim;
  if (in.block_tokens != 0) out.block_tokens = in.block_tokens;
  OASISKV_ASSIGN_OR_RETURN(out.element_type,
                           ToEnum(in.element_type, ElementType::kFloat32, "geometry.element_type"));
  if (in.packing != 0) {
    OASISKV_ASSIGN_OR_RETURN(out.packing, ToEnum(in.packing, Packing::kLatent, "geometry.packing"));
  }
  out.first_head = in.first_head;
  out.total_kv_heads = in.total_kv_heads != 0 ? in.total_kv_heads : in.first_head + in.kv_heads;
  OASISKV_RETURN_IF_ERROR(out.Validate());
  return out;
}

absl::StatusOr<Identity> ToIdentity(const oasiskv_identity* identity) {
  oasiskv_identity in;
  OASISKV_RETURN_IF_ERROR(ReadStruct(identity, "identity", in));
  if (in.model == nullptr) return NullArgument("identity.model");
  return Identity{in.model, OrEmpty(in.revision), OrEmpty(in.tenant)};
}

absl::StatusOr<WorkingSetOptions> ToWorkingSetOptions(const oasiskv_working_set_options* options) {
  oasiskv_working_set_options in;
  OASISKV_RETURN_IF_ERROR(ReadStruct(options, "options", in));
  WorkingSetOptions o;
  OASISKV_ASSIGN_OR_RETURN(o.geometry, ToGeometry(in.geometry));
  o.query_heads = in.query_heads;
  if (in.resident_blocks != 0) o.resident_blocks = in.resident_blocks;
  o.ranked_blocks = in.ranked_blocks;
  if (in.fetch_ratio != 0) o.fetch_ratio = std::max(in.fetch_ratio, 0.0);
  OASISKV_ASSIGN_OR_RETURN(o.mode, ToEnum(in.mode, SelectionMode::kExact, "options.mode"));
  OASISKV_ASSIGN_OR_RETURN(o.combine,
                           ToEnum(in.combine, GroupCombine::kNormalizedMax, "options.combine"));
  o.bound_weight = ToBoundWeight(in.bound_weight);
  OASISKV_ASSIGN_OR_RETURN(o.summaries,
                           ToEnum(in.summaries, SummaryType::kFloat8, "options.summaries"));
  OASISKV_ASSIGN_OR_RETURN(o.late, ToEnum(in.late, LatePolicy::kSkip, "options.late"));
  OASISKV_ASSIGN_OR_RETURN(o.loss, ToEnum(in.loss, LossPolicy::kDegrade, "options.loss"));
  if (in.late_deadline_ms != 0) o.late_deadline = Milliseconds(in.late_deadline_ms);
  if (in.max_requests != 0) o.max_requests = in.max_requests;
  if (in.max_blocks != 0) o.max_blocks = in.max_blocks;
  return o;
}

oasiskv_working_set_stats FromStats(const WorkingSetStats& s) {
  oasiskv_working_set_stats c{};
  c.struct_size = sizeof(c);
  c.steps = s.steps;
  c.predicted = s.predicted;
  c.hit = s.hit;
  c.admitted = s.admitted;
  c.promoted = s.promoted;
  c.refused_by_cap = s.refused_by_cap;
  c.late = s.late;
  c.skipped = s.skipped;
  c.degraded = s.degraded;
  c.demanded = s.demanded;
  c.bytes_moved = s.bytes_moved;
  c.bytes_used = s.bytes_used;
  c.admission_bytes = s.admission_bytes;
  c.agreement_samples = s.agreement_samples;
  c.agreement_sum = s.agreement_sum;
  return c;
}

}  // namespace oasiskv::c_api

int oasiskv_geometry_layout(const oasiskv_geometry* geometry, oasiskv_layout* out) {
  return oasiskv::c_api::Guard([&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(oasiskv::Geometry g, oasiskv::c_api::ToGeometry(geometry));
    return oasiskv::c_api::WriteStruct(
        oasiskv_layout{sizeof(oasiskv_layout), g.entry_bytes(), g.summary_bytes(), g.frame_bytes()},
        "out", out);
  });
}
