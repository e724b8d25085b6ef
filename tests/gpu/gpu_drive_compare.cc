// What the two backends must agree on.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tests/gpu/gpu_drive.h"

namespace oasiskv::gpu_test {

void Drive::Compare(uint32_t layer, RequestSlot slot) {
  SCOPED_TRACE("layer " + std::to_string(layer) + ", slot " + std::to_string(slot.value()));
  const Geometry& g = options_.geometry;
  const uint32_t k = options_.resident_blocks;
  auto gpu = gpu_->Snapshot(LayerIndex(layer), slot);
  auto cpu = cpu_->View(LayerIndex(layer), slot);
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  ASSERT_EQ(std::vector<int32_t>(cpu->map, cpu->map + g.kv_heads * k), gpu->map);
  ASSERT_EQ(cpu->local_tokens, gpu->state.local_tokens);
  ASSERT_EQ(cpu->local_block.value(), gpu->state.complete);
  for (uint32_t h = 0; h < g.kv_heads; ++h) {
    for (uint32_t p = 0; p <= k; ++p) {
      const uint64_t at = (uint64_t{h} * (k + 1) + p) * g.entry_bytes();
      if (p < k) {
        if (gpu->map[h * k + p] < 0) continue;
        ASSERT_EQ(std::memcmp(cpu->pages + at, gpu->pages.data() + at, g.entry_bytes()), 0)
            << "head " << h << ", page " << p;
        continue;
      }
      const uint64_t valid = uint64_t{cpu->local_tokens} * g.key_bytes();
      ASSERT_EQ(std::memcmp(cpu->pages + at, gpu->pages.data() + at, valid), 0) << "local keys";
      if (g.packing == Packing::kLatent) continue;
      const uint64_t half = at + g.half_entry_bytes();
      ASSERT_EQ(std::memcmp(cpu->pages + half, gpu->pages.data() + half, valid), 0)
          << "local values";
    }
  }
  if (requests_[slot.value()].planned[layer] == Planned::kLast &&
      !requests_[slot.value()].skipped) {
    ASSERT_EQ(requests_[slot.value()].predicted[layer], gpu->predicted);
  }
  ComparePlan(layer, slot, gpu->map);
}

// What the last plan says is what changed.
void Drive::ComparePlan(uint32_t layer, RequestSlot slot, const std::vector<int32_t>& map) {
  std::vector<int32_t>& before = maps_[slot.value()][layer];
  const Planned planned = std::exchange(requests_[slot.value()].planned[layer], Planned::kNothing);
  if (planned == Planned::kLast) {
    auto plan = gpu_->LastPlan(LayerIndex(layer));
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const GpuPlanItem& item : *plan) {
      if (item.slot != slot.value()) continue;
      const uint32_t at = item.head * options_.resident_blocks + item.page;
      EXPECT_EQ(map[at], item.block);
      EXPECT_EQ(item.flags & ~1, 0);
      before[at] = item.block;
    }
  }
  // Resolve changes maps without this plan.
  if (options_.mode == SelectionMode::kCapped && planned != Planned::kGone) {
    EXPECT_EQ(before, map);
  }
  before = map;
}

// The top-K by definition, the pages that hold it by the cpu backend's map, and what is missing.
void Drive::CompareResolved(uint32_t layer, const GpuResolved& resolved,
                            const std::vector<RequestSlot>& rows) {
  const uint32_t k = options_.resident_blocks, heads = options_.geometry.kv_heads;
  const uint64_t row_queries = uint64_t{options_.query_heads} * options_.geometry.head_dim;
  ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  const auto copy = [](const auto* from, size_t count) {
    std::vector<std::remove_cvref_t<decltype(*from)>> to(count);
    EXPECT_EQ(cudaMemcpy(to.data(), from, count * sizeof(to[0]), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return to;
  };
  for (size_t r = 0; r < rows.size(); ++r) {
    SCOPED_TRACE("row " + std::to_string(r));
    Request& request = requests_[rows[r].value()];
    auto view = cpu_->View(LayerIndex(layer), rows[r]);
    ASSERT_TRUE(view.ok()) << view.status();
    std::vector<int32_t> blocks, pages;
    uint32_t missing = 0;
    for (uint32_t h = 0; h < heads; ++h) {
      std::vector<int32_t> truth = request.model->TopK(layer, h, view->local_block.value(),
                                                       inputs_->truth(layer) + r * row_queries);
      truth.resize(k, -1);
      const int32_t* const map = view->map + h * k;
      for (int32_t block : truth) {
        const int32_t* const at = std::find(map, map + k, block);
        const bool found = block >= 0 && at != map + k;
        blocks.push_back(block);
        pages.push_back(found ? static_cast<int32_t>(at - map) : -1);
        missing += block >= 0 && !found ? 1 : 0;
      }
    }
    EXPECT_EQ(copy(resolved.blocks + rows[r].value() * heads * k, heads * k), blocks);
    EXPECT_EQ(copy(resolved.pages + r * heads * k, heads * k), pages);
    EXPECT_EQ(copy(resolved.missing + r, 1)[0], missing);
    if (case_.miss == GpuMissPolicy::kDemand) {
      EXPECT_EQ(missing, 0u);
    }
    request.missing += missing;
    missing_ += missing;
  }
}

void Drive::CompareTotals() {
  for (const auto& [slot, request] : requests_) {
    SCOPED_TRACE("slot " + std::to_string(slot));
    const WorkingSetStats cpu = cpu_->RequestStats(RequestSlot(slot));
    auto found = gpu_->RequestStats(RequestSlot(slot));
    ASSERT_TRUE(found.ok()) << found.status();
    const WorkingSetStats& gpu = *found;
    EXPECT_EQ(cpu.steps, gpu.steps);
    EXPECT_EQ(cpu.predicted, gpu.predicted);
    EXPECT_EQ(cpu.hit, gpu.hit);
    EXPECT_EQ(cpu.admitted, gpu.admitted);
    EXPECT_EQ(cpu.promoted, gpu.promoted);
    EXPECT_EQ(cpu.refused_by_cap, gpu.refused_by_cap);
    EXPECT_EQ(cpu.demanded, gpu.demanded);
    EXPECT_EQ(cpu.skipped + (case_.miss == GpuMissPolicy::kReport ? request.missing : 0),
              gpu.skipped);
    EXPECT_EQ(gpu.late, 0u);  // the cpu backend counts what it has waited for, whatever the time
    EXPECT_EQ(cpu.bytes_moved, gpu.bytes_moved);
    EXPECT_EQ(cpu.bytes_used, gpu.bytes_used);
    EXPECT_EQ(cpu.agreement_samples, gpu.agreement_samples);
    EXPECT_EQ(request.gpu->wrong(), "");
  }
  // Of those that have left, the cpu backend counts no transfer that Leave cut short.
  const WorkingSetStats cpu = cpu_->Stats();
  auto gpu = gpu_->Stats();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  EXPECT_EQ(cpu.steps, gpu->steps);
  EXPECT_EQ(cpu.bytes_used, gpu->bytes_used);
  EXPECT_GE(gpu->admitted, cpu.admitted);
  EXPECT_GE(gpu->promoted, cpu.promoted);
  EXPECT_GT(cpu.admitted + cpu.demanded, 0u);
  EXPECT_GT(cpu.promoted, 0u);
  EXPECT_EQ(missing_ > 0, case_.miss != GpuMissPolicy::kDemand);
}

}  // namespace oasiskv::gpu_test
