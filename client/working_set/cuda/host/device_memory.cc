#include "client/working_set/cuda/host/device_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/options.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

// [slot][head][K] of a layer.
uint64_t PageCount(const gpu::Shape& shape) {
  return uint64_t{shape.slots} * shape.kv_heads * shape.resident;
}

absl::Status CheckPages(const GpuWorkingSetOptions& options) {
  if (options.pages.empty()) return absl::OkStatus();
  const Geometry& geometry = options.base.geometry;
  if (options.pages.size() != geometry.layers) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("GpuWorkingSetOptions.pages has %d layers; the geometry has "
                                     "%d",
                                     options.pages.size(), geometry.layers));
  }
  const bool latent = geometry.packing == Packing::kLatent;
  for (size_t l = 0; l < options.pages.size(); ++l) {
    const GpuPages& p = options.pages[l];
    const auto bits = reinterpret_cast<uint64_t>(p.k) | reinterpret_cast<uint64_t>(p.v) |
                      static_cast<uint64_t>(p.page_stride | p.head_stride | p.token_stride);
    if (p.k == nullptr || (p.v == nullptr) != latent || bits % 16 != 0) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          absl::StrFormat("GpuWorkingSetOptions.pages[%d]: k %p, v %p, strides %d, %d, "
                          "%d: k is set, v unless the packing is latent, and all are "
                          "multiples of 16",
                          l, p.k, p.v, p.page_stride, p.head_stride, p.token_stride));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<gpu::Shape> ShapeOf(const GpuWorkingSetOptions& options) {
  OASISKV_RETURN_IF_ERROR(CheckOptions(options.base));
  const WorkingSetOptions& base = options.base;
  const Geometry& geometry = base.geometry;
  if (geometry.key_bytes() % 16 != 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("one key has %d bytes (head_dim %d); the GPU moves 16 at a "
                                     "time: a multiple of 16 is needed",
                                     geometry.key_bytes(), geometry.head_dim));
  }
  if (options.gather_ctas < 1 || options.gather_ctas > 1024 || options.gather_threads < 32 ||
      options.gather_threads > 1024 || options.gather_threads % 32 != 0) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrFormat("gather_ctas is %d, gather_threads %d; they must be 1 to 1024, "
                        "threads a multiple of 32",
                        options.gather_ctas, options.gather_threads));
  }
  if (base.resident_blocks >= 65536 || base.max_requests >= 65536 ||
      options.max_rows > base.max_requests) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("resident_blocks %d, max_requests %d, max_rows %d: the first "
                                     "two are below 65536, max_rows at most max_requests",
                                     base.resident_blocks, base.max_requests, options.max_rows));
  }
  OASISKV_RETURN_IF_ERROR(CheckPages(options));
  // The box is shrunk in float32, as the cpu backend does.
  const auto near = static_cast<float>((1 + base.bound_weight) / 2);
  const auto far = static_cast<float>((1 - base.bound_weight) / 2);
  return gpu::Shape{.layers = geometry.layers,
                    .kv_heads = geometry.kv_heads,
                    .group = base.query_heads / geometry.kv_heads,
                    .head_dim = geometry.head_dim,
                    .block_tokens = geometry.block_tokens,
                    .element = static_cast<gpu::Element>(geometry.element_type),
                    .latent = geometry.packing == Packing::kLatent,
                    .entry_bytes = geometry.entry_bytes(),
                    .key_bytes = geometry.key_bytes(),
                    .summary_bytes = base.summaries == SummaryType::kFloat8
                                         ? 2 * geometry.head_dim
                                         : geometry.summary_bytes(),
                    .summaries = base.summaries,
                    .resident = base.resident_blocks,
                    .ranked = RankedBlocks(base),
                    .max_blocks = base.max_blocks,
                    .slots = base.max_requests,
                    .cap = FetchCap(base),
                    .combine = base.combine,
                    .near = near,
                    .far = far};
}

void CutLayer(Carver& carve, const gpu::Shape& shape, gpu::LayerMemory& layer) {
  layer.map = carve.Cut<int32_t>(PageCount(shape));
  layer.stamps = carve.Cut<uint64_t>(PageCount(shape));
  layer.predicted = carve.Cut<int32_t>(PageCount(shape));
  layer.state = carve.Cut<gpu::SlotState>(shape.slots);
}

gpu::Plan CutPlan(Carver& carve, uint64_t capacity, uint64_t row_heads, bool resolve) {
  return {.count = carve.Cut<uint32_t>(1),
          .items = carve.Cut<gpu::PlanItem>(capacity),
          .groups = carve.Cut<gpu::PlanGroup>(row_heads),
          .capacity = static_cast<uint32_t>(capacity),
          .resolve = resolve};
}

gpu::Rows CutRows(Carver& carve, uint32_t max_rows) {
  // The count stands before the rows, so that one copy brings both.
  auto* const count = carve.Cut<uint32_t>(4 + uint64_t{max_rows});
  return {.slots = count == nullptr ? nullptr : reinterpret_cast<int32_t*>(count + 4),
          .count = count,
          .max_rows = max_rows};
}

absl::Status ClearLayer(const gpu::Shape& shape, const gpu::LayerMemory& layer) {
  // -1 everywhere.
  OASISKV_CUDA_RETURN(cudaMemset(layer.map, 0xff, PageCount(shape) * sizeof(int32_t)));
  OASISKV_CUDA_RETURN(cudaMemset(layer.predicted, 0xff, PageCount(shape) * sizeof(int32_t)));
  return absl::OkStatus();
}

int64_t SummariesSlotStride(const gpu::Shape& shape) {
  return static_cast<int64_t>(
      Carver::Align(uint64_t{shape.kv_heads} * shape.max_blocks * shape.summary_bytes));
}

uint64_t OwnPageBytes(const gpu::Shape& shape) {
  return uint64_t{shape.slots} * (shape.resident + 1) * shape.kv_heads * shape.entry_bytes;
}

gpu::Pages OwnPages(const gpu::Shape& shape, std::byte* pool) {
  return {.k = pool,
          .v = shape.latent ? nullptr : pool + shape.entry_bytes / 2,
          .page_stride = int64_t{shape.kv_heads} * shape.entry_bytes,
          .head_stride = shape.entry_bytes,
          .token_stride = shape.key_bytes,
          .table = nullptr};
}

absl::StatusOr<DeviceMemory> DeviceMemory::Create(const GpuWorkingSetOptions& options,
                                                  const gpu::Shape& shape) {
  DeviceMemory memory;
  memory.max_blocks_ = shape.max_blocks;
  memory.layers.resize(shape.layers);
  memory.plans.resize(shape.layers);
  memory.boxes.resize(shape.layers + 1);
  const bool exact = options.base.mode == SelectionMode::kExact;
  const uint64_t slot_heads = uint64_t{shape.slots} * shape.kv_heads;
  const uint64_t pages = PageCount(shape);
  const uint64_t row_heads = uint64_t{options.max_rows} * shape.kv_heads;
  const uint64_t items = row_heads * (std::min(shape.resident, shape.cap) + 1);
  const uint64_t resolve_items = exact ? row_heads * shape.resident : 0;
  if (std::max(items, resolve_items) > UINT32_MAX) {
    return MakeError(ErrorCode::kCapacity,
                     absl::StrFormat("a plan of %d items exceeds 32 bits; lower max_rows",
                                     std::max(items, resolve_items)));
  }

  Carver carve;
  const auto small = [&] {  // all but pages and summaries
    for (uint32_t l = 0; l < shape.layers; ++l) {
      CutLayer(carve, shape, memory.layers[l]);
      memory.layers[l].use = carve.Cut<gpu::SlotUse>(shape.slots);
      if (exact) memory.layers[l].entered = carve.Cut<uint32_t>(pages);
      memory.plans[l] = CutPlan(carve, items, row_heads);
    }
    for (gpu::Box& box : memory.boxes) box.notes = carve.Cut<gpu::BoxNotes>(1);
    memory.sources = carve.Cut<gpu::HeadSource>(slot_heads);
    memory.counters = carve.Cut<gpu::SlotCounters>(shape.slots);
    memory.frames_ = carve.Cut<uint64_t>(uint64_t{shape.slots} * shape.max_blocks);
    memory.rows = CutRows(carve, options.max_rows);
    memory.truth = carve.Cut<int32_t>(pages);
    if (!exact) return;
    memory.resolve_plan = CutPlan(carve, resolve_items, row_heads, /*resolve=*/true);
    memory.resolution = {.pages = carve.Cut<int32_t>(row_heads * shape.resident),
                         .missing = carve.Cut<uint32_t>(options.max_rows)};
  };
  small();
  OASISKV_ASSIGN_OR_RETURN(
      cuda::DeviceBuffer state,
      cuda::DeviceBuffer::Create(carve.used(), "the working set's maps and plans"));
  carve.Begin(state.data());
  small();
  memory.device_.push_back(std::move(state));

  // The predict stream and the step stream may score at the same time.
  const uint64_t score_bytes = Carver::Align(gpu::ScoreBytes(shape, options.max_rows));
  OASISKV_ASSIGN_OR_RETURN(cuda::DeviceBuffer scores,
                           cuda::DeviceBuffer::Create(2 * score_bytes, "the blocks' scores"));
  for (gpu::LayerMemory& layer : memory.layers) {
    layer.scores = reinterpret_cast<float*>(scores.data());
  }
  memory.truth_scores = reinterpret_cast<float*>(scores.data() + score_bytes);
  memory.device_.push_back(std::move(scores));

  for (uint32_t l = 0; l < shape.layers; ++l) {
    gpu::LayerMemory& layer = memory.layers[l];
    OASISKV_RETURN_IF_ERROR(ClearLayer(shape, layer));
    layer.summaries_slot_stride = SummariesSlotStride(shape);
    OASISKV_ASSIGN_OR_RETURN(
        cuda::DeviceBuffer buffer,
        cuda::DeviceBuffer::Create(static_cast<uint64_t>(layer.summaries_slot_stride) * shape.slots,
                                   absl::StrFormat("the summaries of layer %d", l)));
    layer.summaries = buffer.data();
    memory.device_.push_back(std::move(buffer));
    if (!options.pages.empty()) {
      const GpuPages& given = options.pages[l];
      layer.pages = {.k = static_cast<std::byte*>(given.k),
                     .v = static_cast<std::byte*>(given.v),
                     .page_stride = given.page_stride,
                     .head_stride = given.head_stride,
                     .token_stride = given.token_stride,
                     .table = given.table};
      continue;
    }
    OASISKV_ASSIGN_OR_RETURN(cuda::DeviceBuffer pool,
                             cuda::DeviceBuffer::Create(
                                 OwnPageBytes(shape), absl::StrFormat("the pages of layer %d", l)));
    layer.pages = OwnPages(shape, pool.data());
    memory.device_.push_back(std::move(pool));
  }

  const auto host = [&] {
    memory.error = carve.Cut<gpu::ErrorWord>(1);
    for (uint32_t b = 0; b < memory.boxes.size(); ++b) {
      const bool last = b == shape.layers;
      memory.boxes[b].header = carve.Cut<gpu::BoxHeader>(1);
      memory.boxes[b].items = carve.Cut<gpu::PlanItem>(last ? resolve_items : items);
    }
  };
  carve.Begin(nullptr);
  host();
  OASISKV_ASSIGN_OR_RETURN(
      cuda::PinnedBuffer pinned,
      cuda::PinnedBuffer::Create(carve.used(), "the working set's exchange with the host"));
  carve.Begin(pinned.data());
  host();
  memory.pinned_.push_back(std::move(pinned));
  return memory;
}

}  // namespace oasiskv
