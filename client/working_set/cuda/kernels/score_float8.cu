#include "client/working_set/cuda/kernels/score_kernel.cuh"

namespace oasiskv::gpu {

ScoreKernelPointer ScoreKernelOfFloat8(uint32_t heads, bool shrunk) {
  if (heads == 4) {
    return shrunk ? ScoreKernel<Element::kFloat8, 4, true>
                  : ScoreKernel<Element::kFloat8, 4, false>;
  }
  return shrunk ? ScoreKernel<Element::kFloat8, 8, true> : ScoreKernel<Element::kFloat8, 8, false>;
}

}  // namespace oasiskv::gpu
