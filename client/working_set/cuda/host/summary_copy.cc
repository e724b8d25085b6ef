#include "client/working_set/cuda/host/summary_copy.h"

#include <cstring>
#include <memory>

#include "client/selection/float8_summary.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {

absl::StatusOr<uint64_t> CopySummaries(const AdmissionContext& c, EntrySource& source,
                                       uint32_t slot, EntrySource::TimePoint deadline) {
  const Geometry& geometry = c.options.base.geometry;
  const uint32_t blocks = geometry.BlocksFor(source.token_count());
  if (blocks == 0) return 0;
  const uint64_t source_each = geometry.summary_bytes(), each = c.shape.summary_bytes;
  const uint64_t of_block = uint64_t{geometry.layers} * geometry.layer_summaries_bytes();
  const std::unique_ptr<std::byte[]> all(new std::byte[blocks * of_block]);
  if (auto s = source.FetchSummaries(all.get(), deadline); !s.ok()) {
    return Annotate(s, "fetching summaries");
  }
  const uint64_t of_layer = blocks * each * geometry.kv_heads;
  if (c.pool.staging.size() < 2 * of_layer) {
    OASISKV_CUDA_RETURN(cudaStreamSynchronize(c.stream));
    OASISKV_ASSIGN_OR_RETURN(c.pool.staging,
                             cuda::PinnedBuffer::Create(2 * of_layer, "staging of summaries"));
  }
  cuda::Event used[2];
  for (cuda::Event& event : used) {
    OASISKV_ASSIGN_OR_RETURN(event, cuda::Event::Create());
  }
  for (uint32_t l = 0; l < geometry.layers; ++l) {
    // An event that was never recorded is past.
    OASISKV_CUDA_RETURN(cudaEventSynchronize(used[l % 2].get()));
    std::byte* const staging = c.pool.staging.data() + (l % 2) * of_layer;
    for (uint32_t h = 0; h < geometry.kv_heads; ++h) {
      std::byte* to = staging + h * blocks * each;
      const std::byte* from = all.get() + (uint64_t{l} * geometry.kv_heads + h) * source_each;
      for (uint32_t b = 0; b < blocks; ++b, to += each, from += of_block) {
        if (c.shape.summaries == SummaryType::kAsKeys) {
          std::memcpy(to, from, each);
        } else {
          SummaryToFloat8(geometry.element_type, geometry.head_dim, from, to);
        }
      }
    }
    const gpu::LayerMemory& layer = c.memory.layers[l];
    for (uint32_t h = 0; h < geometry.kv_heads; ++h) {
      std::byte* const to = layer.summaries + slot * layer.summaries_slot_stride +
                            uint64_t{h} * c.shape.max_blocks * each;
      OASISKV_CUDA_RETURN(cudaMemcpyAsync(to, staging + h * blocks * each, blocks * each,
                                          cudaMemcpyHostToDevice, c.stream));
    }
    OASISKV_CUDA_RETURN(cudaEventRecord(used[l % 2].get(), c.stream));
  }
  OASISKV_CUDA_RETURN(cudaEventSynchronize(used[0].get()));
  OASISKV_CUDA_RETURN(cudaEventSynchronize(used[1].get()));
  return blocks * of_block;
}

}  // namespace oasiskv
