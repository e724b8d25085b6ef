// The score kernels for summaries in E4M3, compiled apart.
#pragma once

#include <cstdint>

namespace oasiskv::gpu {

struct ScoreArgs;
using ScoreKernelPointer = void (*)(ScoreArgs);

// `heads`: query heads of a pass, as HeadsOfPass has them. `shrunk`: the box is.
ScoreKernelPointer ScoreKernelOfFloat8(uint32_t heads, bool shrunk);

}  // namespace oasiskv::gpu
