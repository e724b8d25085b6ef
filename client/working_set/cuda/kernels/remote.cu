// The device's half of a remote fetch. One CTA each: a layer's plan is some thousand items at most.
#include "client/working_set/cuda/kernels/entry.cuh"
#include "client/working_set/cuda/kernels/remote.h"

namespace oasiskv::gpu {
namespace {

constexpr uint32_t kThreads = 1024;
constexpr uint32_t kNapNs = 500;  // a look at the host's word takes about a microsecond itself

__device__ uint64_t Now() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}
__device__ void Publish(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ uint64_t Look(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

// The host writes frame addresses while kernels run, so none may come from a cache.
__device__ bool Missing(const Shape& shape, uint32_t layer, const HeadSource* sources,
                        const PlanItem& item) {
  if ((item.flags & kItemPromoted) != 0) return false;
  const HeadSource& source = sources[size_t{item.slot} * shape.kv_heads + item.head];
  const uint64_t* const at =
      source.frames + layer * source.frames_layer_stride + static_cast<uint32_t>(item.block);
  return *reinterpret_cast<const volatile uint64_t*>(at) == 0;
}

__global__ void PostKernel(Shape shape, uint32_t layer, Plan plan, const HeadSource* sources,
                           Box box) {
  __shared__ uint32_t posted;
  const uint32_t items = min(*plan.count, plan.capacity);
  const uint64_t sequence = box.notes->sequence + 1;
  if (threadIdx.x == 0) {
    posted = 0;
    Publish(&box.header->writing, sequence);
    __threadfence_system();  // seen before any of the items
  }
  __syncthreads();  // everybody has read the sequence, too
  for (uint32_t i = threadIdx.x; i < items; i += kThreads) {
    const PlanItem item = plan.items[i];
    if (!Missing(shape, layer, sources, item)) continue;
    box.items[atomicAdd(&posted, 1u)] = item;
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  box.notes->pending = posted;
  if (posted == 0) return;
  box.notes->sequence = sequence;
  box.notes->posted_ns = Now();
  box.header->count = posted;
  box.header->layer = layer;
  __threadfence_system();
  Publish(&box.header->ready, sequence);
}

__global__ void AwaitKernel(Shape shape, uint32_t layer, Plan plan, const HeadSource* sources,
                            Box box, uint64_t limit_ns, WhenLate late, SlotCounters* counters,
                            ErrorWord* error) {
  if (box.notes->pending == 0) return;
  __shared__ bool in_time, passed;
  if (threadIdx.x == 0) {
    const uint64_t sequence = box.notes->sequence, posted_ns = box.notes->posted_ns;
    bool released = Look(&box.header->released) >= sequence;
    while (!released && Now() - posted_ns < limit_ns) {
      __nanosleep(kNapNs);
      released = Look(&box.header->released) >= sequence;
    }
    in_time = released;
    // The kernel itself may come after the limit, and find a fetch that the host has given up.
    passed = !released || Now() - posted_ns >= limit_ns;
  }
  __syncthreads();
  const uint32_t items = min(*plan.count, plan.capacity);
  for (uint32_t i = threadIdx.x; i < items; i += kThreads) {
    const PlanItem item = plan.items[i];
    if (!Missing(shape, layer, sources, item)) continue;
    plan.items[i].flags = item.flags | kItemRefused;
    if (passed && !plan.resolve) atomicAdd(&counters[item.slot].late, 1ull);
    if (!in_time && late == WhenLate::kRefuseAndReport) {
      ReportError(error, ErrorKind::kTimeout, layer, item.slot, static_cast<uint32_t>(item.block));
    }
  }
}

}  // namespace

LaunchError PostMisses(const Shape& shape, uint32_t layer, const Plan& plan,
                       const HeadSource* sources, const Box& box, Stream stream) {
  PostKernel<<<1, kThreads, 0, stream>>>(shape, layer, plan, sources, box);
  return Launched();
}

LaunchError AwaitMisses(const Shape& shape, uint32_t layer, const Plan& plan,
                        const HeadSource* sources, const Box& box, uint64_t limit_ns, WhenLate late,
                        SlotCounters* counters, ErrorWord* error, Stream stream) {
  AwaitKernel<<<1, kThreads, 0, stream>>>(shape, layer, plan, sources, box, limit_ns, late,
                                          counters, error);
  return Launched();
}

}  // namespace oasiskv::gpu
