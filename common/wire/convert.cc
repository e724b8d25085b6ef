#include "common/wire/convert.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "oasiskv/v1/kv_memory.pb.h"
#include "oasiskv/v1/types.pb.h"

namespace oasiskv::wire {
namespace {

// A lease of centuries; keeps nanoseconds in range.
constexpr uint64_t kMaxMillis = (uint64_t{1} << 40) / 1000;

// An open enum field holds any number, of which the struct's byte would keep the low part.
template <typename Enum>
absl::StatusOr<Enum> ToEnum(absl::string_view field, int value, Enum most) {
  if (value < 0 || value > static_cast<int>(most)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat(field, " has the unknown value ", value));
  }
  return static_cast<Enum>(value);
}

}  // namespace

void ToMessage(const Identity& identity, v1::Identity& message) {
  message.set_model(identity.model);
  message.set_revision(identity.revision);
  message.set_tenant(identity.tenant);
}

Identity FromMessage(const v1::Identity& message) {
  return {message.model(), message.revision(), message.tenant()};
}

void ToMessage(const Geometry& geometry, v1::Geometry& message) {
  message.set_layers(geometry.layers);
  message.set_kv_heads(geometry.kv_heads);
  message.set_head_dim(geometry.head_dim);
  message.set_block_tokens(geometry.block_tokens);
  message.set_element_type(static_cast<v1::ElementType>(geometry.element_type));
  message.set_packing(static_cast<v1::Packing>(geometry.packing));
  message.set_first_head(geometry.first_head);
  message.set_total_kv_heads(geometry.total_kv_heads);
}

absl::StatusOr<Geometry> FromMessage(const v1::Geometry& message) {
  Geometry out;
  out.layers = message.layers();
  out.kv_heads = message.kv_heads();
  out.head_dim = message.head_dim();
  out.block_tokens = message.block_tokens();
  OASISKV_ASSIGN_OR_RETURN(out.element_type, ToEnum("geometry.element_type", message.element_type(),
                                                    ElementType::kFloat32));
  OASISKV_ASSIGN_OR_RETURN(out.packing,
                           ToEnum("geometry.packing", message.packing(), Packing::kLatent));
  out.first_head = message.first_head();
  out.total_kv_heads = message.total_kv_heads();
  return out;
}

void ToMessage(const Grant& grant, v1::Grant& message) {
  message.set_id(grant.id.value());
  message.set_epoch(grant.epoch.value());
  message.set_word_slot(grant.word_slot.value());
  message.set_lease_ms(static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(grant.lease).count()));
  message.mutable_frames()->Reserve(static_cast<int>(grant.frames.size()));
  for (const FrameAddress& frame : grant.frames) message.add_frames(frame.Pack());
}

Grant FromMessage(const v1::Grant& message) {
  Grant out;
  out.id = GrantId(message.id());
  out.epoch = Epoch(message.epoch());
  out.word_slot = WordSlot(message.word_slot());
  out.lease =
      std::chrono::milliseconds(static_cast<int64_t>(std::min(message.lease_ms(), kMaxMillis)));
  out.frames.reserve(message.frames_size());
  for (const uint64_t frame : message.frames()) out.frames.push_back(FrameAddress::Unpack(frame));
  return out;
}

}  // namespace oasiskv::wire
