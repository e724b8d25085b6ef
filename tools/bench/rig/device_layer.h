// One layer of a working set in GPU memory, for benches and tests that drive its kernels one by
// one.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/working_set/cuda/kernels/layout.h"
#include "common/cuda/handles.h"

namespace oasiskv::bench {

struct DeviceLayerOptions {
  gpu::Shape shape;
  // 0: as many as slots.
  uint32_t max_rows = 0;
  // Memory for pages; 0: what OwnPages takes.
  uint64_t page_bytes = 0;
  // Pools of summaries, one after the other; `memory` names the first.
  uint32_t summary_layers = 1;
  // Of every slot at the beginning.
  gpu::SlotState state = {};
};

// Thread contract: one thread.
//
// Laid out as the working set's own (device_memory.h). Every page is empty, every slot is a row in
// the order of its number, sources and counters are zero; whoever drives the layer fills in the
// rest. A part that the shape gives no size (pages without entry_bytes, summaries without
// summary_bytes) takes no memory.
struct DeviceLayer {
  static absl::StatusOr<DeviceLayer> Create(const DeviceLayerOptions& options);

  gpu::ErrorWord& error() const { return *pinned.As<gpu::ErrorWord>(); }

  gpu::Shape shape;
  gpu::LayerMemory memory;
  gpu::Rows rows;
  // Large enough for a selection that changes every page.
  gpu::Plan plan;
  gpu::HeadSource* sources = nullptr;     // [slot][head]
  gpu::SlotCounters* counters = nullptr;  // [slot]

  // What the addresses above point to.
  cuda::DeviceBuffer books, pages, summaries;
  cuda::PinnedBuffer pinned;
};

}  // namespace oasiskv::bench
