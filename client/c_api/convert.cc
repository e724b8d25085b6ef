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

}  // namespace oasiskv::c_api

int oasiskv_geometry_layout(const oasiskv_geometry* geometry, oasiskv_layout* out) {
  return oasiskv::c_api::Guard([&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(oasiskv::Geometry g, oasiskv::c_api::ToGeometry(geometry));
    return oasiskv::c_api::WriteStruct(
        oasiskv_layout{sizeof(oasiskv_layout), g.entry_bytes(), g.summary_bytes(), g.frame_bytes()},
        "out", out);
  });
}
