// After the bytes: the grant words once more, then the map, the stamps and the slot's state. One
// CTA for each row, so that a row's words are all looked at before any of its items is entered.
//
// A prediction's Commit comes after its layer's attention, so that it also counts what attention
// has read for the first time; only Resolve's evicts entries before they were ever attended.
#include "client/working_set/cuda/kernels/entry.cuh"
#include "client/working_set/cuda/kernels/kernels.h"

namespace oasiskv::gpu {
namespace {

constexpr uint32_t kThreads = 128;

__device__ uint32_t SourceItems(const Plan& plan, const PlanGroup& group) {
  const bool promoted =
      group.count > 0 && (plan.items[group.first].flags & kItemPromoted) != 0;  // always the first
  return group.count - (promoted ? 1 : 0);
}

// By one thread.
__device__ void CountAttended(SlotUse* use, uint64_t clock, SlotCounters* of_slot) {
  if (use->fresh > 0) atomicAdd(&of_slot->used, static_cast<unsigned long long>(use->fresh));
  *use = SlotUse{.fresh = 0, .attended = static_cast<uint32_t>(clock)};
}

__global__ void CommitKernel(Shape shape, uint32_t layer, LayerMemory mem, Rows rows, Plan plan,
                             const HeadSource* sources, SlotCounters* counters, ErrorWord* error) {
  const uint32_t row = blockIdx.x;
  if (row >= ActiveRows(rows)) return;
  const uint32_t slot = static_cast<uint32_t>(rows.slots[row]);
  SlotState* const state = &mem.state[slot];
  SlotUse* const use = mem.use == nullptr ? nullptr : &mem.use[slot];
  SlotCounters* const of_slot = &counters[slot];
  if (state->pending == 0) {
    if (threadIdx.x == 0 && use != nullptr && !plan.resolve) {
      CountAttended(use, state->clock, of_slot);
    }
    return;
  }
  const uint64_t now = state->clock + 1;
  const PlanGroup* const groups = plan.groups + size_t{row} * shape.kv_heads;
  // Entries that came after this clock are unread.
  const uint32_t attended =
      plan.resolve && mem.entered != nullptr ? use->attended : static_cast<uint32_t>(state->clock);
  __shared__ uint32_t entered, lost, unread;
  if (threadIdx.x == 0) entered = lost = unread = 0;

  bool stale = false;
  for (uint32_t head = threadIdx.x; head < shape.kv_heads; head += kThreads) {
    if (SourceItems(plan, groups[head]) == 0) continue;
    if (GrantHolds(sources[size_t{slot} * shape.kv_heads + head])) continue;
    stale = true;
    ReportError(error, ErrorKind::kStale, layer, slot, head);
  }
  stale = __syncthreads_or(stale);

  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t head = threadIdx.x / 32; head < shape.kv_heads; head += kThreads / 32) {
    const PlanGroup group = groups[head];
    const size_t place = (size_t{slot} * shape.kv_heads + head) * shape.resident;
    for (uint32_t i = lane; i < group.count; i += 32) {
      const PlanItem item = plan.items[group.first + i];
      const bool promoted = (item.flags & kItemPromoted) != 0;
      const bool fails = !promoted && (stale || (item.flags & (kItemSkipped | kItemRefused)) != 0);
      if (mem.entered != nullptr && (item.flags & kItemRefused) == 0) {
        uint32_t* const since = &mem.entered[place + item.page];
        if (*since > attended) atomicAdd(&unread, 1u);
        *since = promoted || fails ? 0 : static_cast<uint32_t>(now);
      }
      if (fails) {
        atomicAdd(&lost, 1u);
        continue;
      }
      mem.map[place + item.page] = item.block;
      mem.stamps[place + item.page] = now;
      if (!promoted) atomicAdd(&entered, 1u);
    }
  }
  __syncthreads();  // every thread has read the state, and the counts are whole
  if (threadIdx.x != 0) return;

  if (use != nullptr) {
    if (!plan.resolve) CountAttended(use, state->clock, of_slot);
    use->fresh += entered - unread;
  }
  if (entered > 0) {
    atomicAdd(plan.resolve ? &of_slot->demanded : &of_slot->admitted,
              static_cast<unsigned long long>(entered));
  }
  if (lost > 0) atomicAdd(&of_slot->skipped, static_cast<unsigned long long>(lost));
  if (state->promoted >= 0) {
    atomicAdd(&of_slot->promoted, static_cast<unsigned long long>(shape.kv_heads));
    state->complete += 1;
    state->local_tokens = 0;
    state->promoted = -1;
  }
  state->clock = now;
  state->pending = 0;
}

}  // namespace

LaunchError Commit(const Shape& shape, uint32_t layer, const LayerMemory& mem, const Rows& rows,
                   const Plan& plan, const HeadSource* sources, SlotCounters* counters,
                   ErrorWord* error, Stream stream) {
  if (rows.max_rows == 0) return nullptr;
  CommitKernel<<<rows.max_rows, kThreads, 0, stream>>>(shape, layer, mem, rows, plan, sources,
                                                       counters, error);
  return Launched();
}

}  // namespace oasiskv::gpu
