#include "tools/bench/rig/device_layer.h"

#include <algorithm>

#include "client/working_set/cuda/host/device_memory.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "common/status_macros.h"
#include "tools/bench/rig/device.h"

namespace oasiskv::bench {
namespace {

constexpr char kWhat[] = "a layer driven by itself";

}  // namespace

absl::StatusOr<DeviceLayer> DeviceLayer::Create(const DeviceLayerOptions& options) {
  DeviceLayer layer;
  const gpu::Shape& s = layer.shape = options.shape;
  const uint32_t max_rows = options.max_rows != 0 ? options.max_rows : s.slots;
  const uint64_t row_heads = uint64_t{max_rows} * s.kv_heads;
  Carver carve;
  const auto cut = [&] {
    CutLayer(carve, s, layer.memory);
    layer.memory.scores = reinterpret_cast<float*>(
        carve.Cut<std::byte>(s.group == 0 ? 0 : gpu::ScoreBytes(s, max_rows)));
    layer.rows = CutRows(carve, max_rows);
    layer.plan = CutPlan(carve, row_heads * (s.resident + 1), row_heads);
    layer.sources = carve.Cut<gpu::HeadSource>(uint64_t{s.slots} * s.kv_heads);
    layer.counters = carve.Cut<gpu::SlotCounters>(s.slots);
  };
  cut();
  OASISKV_ASSIGN_OR_RETURN(layer.books, cuda::DeviceBuffer::Create(carve.used(), kWhat));
  carve.Begin(layer.books.data());
  cut();
  OASISKV_RETURN_IF_ERROR(ClearLayer(s, layer.memory));
  OASISKV_RETURN_IF_ERROR(
      Upload(std::vector<gpu::SlotState>(s.slots, options.state), layer.memory.state));
  std::vector<uint32_t> count_and_rows(4 + max_rows);
  count_and_rows[0] = std::min(max_rows, s.slots);
  for (uint32_t r = 0; r < max_rows; ++r) count_and_rows[4 + r] = r % s.slots;
  OASISKV_RETURN_IF_ERROR(Upload(count_and_rows, const_cast<uint32_t*>(layer.rows.count)));

  const uint64_t page_bytes = options.page_bytes != 0 ? options.page_bytes : OwnPageBytes(s);
  if (page_bytes != 0) {
    OASISKV_ASSIGN_OR_RETURN(layer.pages, cuda::DeviceBuffer::Create(page_bytes, kWhat));
    layer.memory.pages = OwnPages(s, layer.pages.data());
  }
  layer.memory.summaries_slot_stride = SummariesSlotStride(s);
  const uint64_t summary_bytes =
      static_cast<uint64_t>(layer.memory.summaries_slot_stride) * s.slots * options.summary_layers;
  if (summary_bytes != 0) {
    OASISKV_ASSIGN_OR_RETURN(layer.summaries, cuda::DeviceBuffer::Create(summary_bytes, kWhat));
    layer.memory.summaries = layer.summaries.data();
  }
  OASISKV_ASSIGN_OR_RETURN(layer.pinned, cuda::PinnedBuffer::Create(sizeof(gpu::ErrorWord), kWhat));
  return layer;
}

}  // namespace oasiskv::bench
