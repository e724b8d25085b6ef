// Tells on which multiprocessors a launch ran.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace oasiskv::gpu_test {

// `ctas` CTAs that stay for some microseconds; CTA i writes its multiprocessor's number to seen[i].
cudaError_t NoteProcessors(uint32_t ctas, uint32_t* seen, cudaStream_t stream);

}  // namespace oasiskv::gpu_test
