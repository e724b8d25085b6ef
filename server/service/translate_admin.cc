#include "common/wire/convert.h"
#include "oasiskv/v1/admin.pb.h"
#include "server/service/translate.h"

namespace oasiskv::server {
namespace {

int64_t ToMillis(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace

void ToMessage(const CapacityInfo& info, v1::GetCapacityResponse& message) {
  message.set_pool_bytes(info.pool_bytes);
  message.set_free_bytes(info.free_bytes);
  message.set_used_bytes(info.used_bytes);
  message.set_quarantined_bytes(info.quarantined_bytes);
  message.set_overhead_bytes(info.overhead_bytes);
  message.set_metadata_bytes(info.metadata_bytes);
  message.set_arenas(info.arenas);
  message.set_slab_bytes(info.slab_bytes);
  message.set_slabs_total(info.slabs_total);
  message.set_slabs_free(info.slabs_free);
  message.set_huge_pages(info.huge_pages);
  message.set_huge_pages_fell_back(info.huge_pages_fell_back);
  message.set_sequences_open(info.sequences_open);
  message.set_sequences_sealed(info.sequences_sealed);
  message.set_sequences_released(info.sequences_released);
  message.set_grants_reader(info.grants_reader);
  message.set_grants_writer(info.grants_writer);
  for (const FrameClassInfo& frame_class : info.classes) {
    v1::FrameClass& out = *message.add_frame_classes();
    out.set_frame_stride(frame_class.frame_stride);
    out.set_slabs(frame_class.slabs);
    out.set_frames(frame_class.frames);
    out.set_frames_used(frame_class.frames_used);
  }
}

void ToMessage(const SequenceInfo& info, v1::SequenceInfo& message) {
  message.set_id(info.id.value());
  message.set_name(info.name);
  wire::ToMessage(info.identity, *message.mutable_identity());
  wire::ToMessage(info.geometry, *message.mutable_geometry());
  message.set_state(static_cast<v1::SequenceState>(info.state));
  message.set_blocks(info.blocks);
  message.set_bytes(info.bytes);
  message.set_token_count(info.token_count);
  message.set_committed_layer_blocks(info.committed_layer_blocks);
  message.set_readers(info.readers);
  message.set_age_ms(static_cast<uint64_t>(ToMillis(info.age)));
}

void ToMessage(const GrantInfo& info, v1::GrantInfo& message) {
  message.set_id(info.id.value());
  message.set_writer(info.writer);
  message.set_sequence_id(info.sequence.value());
  message.set_sequence_name(info.sequence_name);
  message.set_holder(info.holder);
  message.set_lease_left_ms(ToMillis(info.lease_left));
  message.set_frames(info.frames);
  message.set_first_head(info.first_head);
  message.set_head_count(info.head_count);
  message.set_quarantined(info.quarantined);
}

}  // namespace oasiskv::server
