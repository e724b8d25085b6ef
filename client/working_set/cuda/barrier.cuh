// Barriers in the shared memory of a cluster's CTAs, on which some threads arrive and others wait.
#pragma once

#include <cstdint>

namespace oasiskv::gpu {

using Barrier = uint64_t;

__device__ inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// One thread, before all others of the cluster see the barrier.
__device__ inline void InitBarrier(Barrier* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}
__device__ inline void FenceBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// On the barrier at the same place in CTA `rank` of the cluster. What this thread has seen and done
// before is seen by those who wait.
__device__ inline void Arrive(Barrier* barrier, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(remote)
               : "r"(SharedAddress(barrier)), "r"(rank));
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote)
               : "memory");
}

// Until all arrivals of the barrier's use number `use` (0, 1, ...) are there; a thread that waits
// for a use has seen all uses before it.
__device__ inline void Wait(Barrier* barrier, uint32_t use) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(use & 1)
        : "memory");
  }
}

// The same among the threads of one CTA.
__device__ inline void ArriveInCta(Barrier* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
}
__device__ inline void WaitInCta(Barrier* barrier, uint32_t use) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(use & 1)
        : "memory");
  }
}

// The barriers of one CTA's hardware, numbered from 1; `threads` wait or arrive in whole warps. A
// warp that has not come together yet would arrive as soon as its first lane does, before the others
// have written what the barrier is to publish.
__device__ inline void NamedWait(uint32_t id, uint32_t threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace oasiskv::gpu
