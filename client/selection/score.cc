#include "client/selection/score.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "client/selection/element.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace oasiskv {
namespace {

constexpr uint32_t kLanes = 16;
constexpr uint32_t kHeadsAtOnce = 4;  // accumulators of four heads fit the registers of AVX2

// Sums of up to kHeadsAtOnce heads against one block.
using BlockSums = float[kHeadsAtOnce];

// How a summary's box is shrunk. `full` leaves it as it is: the arithmetic would not, since 0 times
// an infinity is a NaN.
struct Box {
  explicit Box(double bound_weight)
      : full(bound_weight == 1.0),
        near(static_cast<float>((1.0 + bound_weight) / 2)),
        far(static_cast<float>((1.0 - bound_weight) / 2)) {}
  void Shrink(float& low, float& high) const {
    if (full) return;
    const float min = low, max = high;
    low = near * min + far * max;
    high = near * max + far * min;
  }
  const bool full;
  const float near, far;
};

// A kernel gives the bounds of `heads` query heads, [head][head_dim] at `queries`, against one
// summary.
using Kernel = void (*)(ElementType type, uint32_t head_dim, const Box& box,
                        const std::byte* summary, const float* queries, uint32_t heads,
                        BlockSums& sums);

float Fold(float (&lanes)[kLanes]) {
  for (uint32_t width = kLanes / 2; width > 0; width /= 2) {
    for (uint32_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

void ScalarKernel(ElementType type, uint32_t head_dim, const Box& box, const std::byte* summary,
                  const float* queries, uint32_t heads, BlockSums& sums) {
  for (uint32_t h = 0; h < heads; ++h) {
    const float* q = queries + uint64_t{h} * head_dim;
    float lanes[kLanes] = {};
    for (uint32_t d = 0; d < head_dim; ++d) {
      float low = LoadElement(type, summary, d);
      float high = LoadElement(type, summary, uint64_t{head_dim} + d);
      box.Shrink(low, high);
      float& lane = lanes[d % kLanes];
      lane = std::fma(q[d], std::signbit(q[d]) ? low : high, lane);
    }
    sums[h] = Fold(lanes);
  }
}

#if defined(__x86_64__)

// Where a product and a sum are rounded apart, only -ffp-contract=off (CMakeLists.txt) keeps the
// compiler from fusing them, intrinsics or not.
#define OASISKV_AVX2 __attribute__((target("avx2,fma,f16c")))

OASISKV_AVX2 inline __m256 Load8(ElementType type, const std::byte* base, uint64_t index) {
  if (type == ElementType::kFloat32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(base) + index);
  }
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(base + index * 2));
  if (type == ElementType::kFloat16) return _mm256_cvtph_ps(bits);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// The dimensions after the last whole group of lanes, padded with zeros: adding their 0 changes no
// sum, since a sum that began at 0.0 is never -0.0.
struct Tail {
  Tail(ElementType type, uint32_t head_dim, const Box& box, const std::byte* summary)
      : first(head_dim - head_dim % kLanes), count(head_dim % kLanes) {
    for (uint32_t i = 0; i < count; ++i) {
      low[i] = LoadElement(type, summary, first + i);
      high[i] = LoadElement(type, summary, uint64_t{head_dim} + first + i);
      box.Shrink(low[i], high[i]);
    }
  }
  void Query(const float* q, float (&out)[kLanes]) const {
    std::copy_n(q + first, count, out);
    std::fill(out + count, out + kLanes, 0.0f);
  }
  const uint32_t first, count;
  float low[kLanes] = {};
  float high[kLanes] = {};
};

OASISKV_AVX2 inline __m256 Bound8(__m256 sum, __m256 q, __m256 low, __m256 high) {
  return _mm256_fmadd_ps(q, _mm256_blendv_ps(high, low, q), sum);
}

OASISKV_AVX2 inline void Shrink8(const Box& box, __m256& low, __m256& high) {
  if (box.full) return;
  const __m256 near = _mm256_set1_ps(box.near), far = _mm256_set1_ps(box.far);
  const __m256 min = low, max = high;
  low = _mm256_add_ps(_mm256_mul_ps(near, min), _mm256_mul_ps(far, max));
  high = _mm256_add_ps(_mm256_mul_ps(near, max), _mm256_mul_ps(far, min));
}

template <uint32_t kHeads>
OASISKV_AVX2 void Avx2Heads(ElementType type, uint32_t head_dim, const Box& box,
                            const std::byte* summary, const float* queries, BlockSums& sums) {
  __m256 left[kHeads], right[kHeads];  // lanes 0-7 and 8-15
  for (uint32_t h = 0; h < kHeads; ++h) left[h] = right[h] = _mm256_setzero_ps();
  uint32_t d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) {
    __m256 low0 = Load8(type, summary, d), low1 = Load8(type, summary, d + 8);
    __m256 high0 = Load8(type, summary, head_dim + d);
    __m256 high1 = Load8(type, summary, head_dim + d + 8);
    Shrink8(box, low0, high0);
    Shrink8(box, low1, high1);
    for (uint32_t h = 0; h < kHeads; ++h) {
      const float* q = queries + uint64_t{h} * head_dim + d;
      left[h] = Bound8(left[h], _mm256_loadu_ps(q), low0, high0);
      right[h] = Bound8(right[h], _mm256_loadu_ps(q + 8), low1, high1);
    }
  }
  if (d < head_dim) {
    const Tail tail(type, head_dim, box, summary);
    float q[kLanes];
    for (uint32_t h = 0; h < kHeads; ++h) {
      tail.Query(queries + uint64_t{h} * head_dim, q);
      left[h] = Bound8(left[h], _mm256_loadu_ps(q), _mm256_loadu_ps(tail.low),
                       _mm256_loadu_ps(tail.high));
      right[h] = Bound8(right[h], _mm256_loadu_ps(q + 8), _mm256_loadu_ps(tail.low + 8),
                        _mm256_loadu_ps(tail.high + 8));
    }
  }
  for (uint32_t h = 0; h < kHeads; ++h) {
    float lanes[kLanes];
    _mm256_storeu_ps(lanes, left[h]);
    _mm256_storeu_ps(lanes + 8, right[h]);
    sums[h] = Fold(lanes);
  }
}

void Avx2Kernel(ElementType type, uint32_t head_dim, const Box& box, const std::byte* summary,
                const float* queries, uint32_t heads, BlockSums& sums) {
  switch (heads) {
    case 1:
      return Avx2Heads<1>(type, head_dim, box, summary, queries, sums);
    case 2:
      return Avx2Heads<2>(type, head_dim, box, summary, queries, sums);
    case 3:
      return Avx2Heads<3>(type, head_dim, box, summary, queries, sums);
    default:
      return Avx2Heads<4>(type, head_dim, box, summary, queries, sums);
  }
}

#endif  // defined(__x86_64__)

Kernel KernelFor(ScoreKernel kernel) {
#if defined(__x86_64__)
  if (kernel == ScoreKernel::kAvx2) return Avx2Kernel;
#endif
  return ScalarKernel;
}

float Max(float so_far, float next) {
  return next > so_far || next != next ? next : so_far;  // a NaN stays, whichever side it is on
}

float Combine(GroupCombine combine, float so_far, float next) {
  return combine == GroupCombine::kMax ? Max(so_far, next) : so_far + next;
}

// Each head against its own best block. `bounds` holds a few heads' sums of all blocks.
void ScoreNormalized(Kernel run, const ScoreInput& in, float* scores, std::vector<float>& bounds) {
  const Box box(in.bound_weight);
  bounds.resize(uint64_t{in.blocks} * kHeadsAtOnce);
  for (uint32_t first = 0; first < in.group; first += kHeadsAtOnce) {
    const uint32_t heads = std::min(kHeadsAtOnce, in.group - first);
    BlockSums best;
    std::fill_n(best, kHeadsAtOnce, -std::numeric_limits<float>::infinity());
    for (uint32_t b = 0; b < in.blocks; ++b) {
      BlockSums sums;
      run(in.element_type, in.head_dim, box, in.summaries + int64_t{b} * in.block_stride,
          in.queries + uint64_t{first} * in.head_dim, heads, sums);
      for (uint32_t h = 0; h < heads; ++h) {
        bounds[uint64_t{b} * kHeadsAtOnce + h] = sums[h];
        if (sums[h] > best[h]) best[h] = sums[h];  // never a NaN
      }
    }
    for (uint32_t b = 0; b < in.blocks; ++b) {
      for (uint32_t h = 0; h < heads; ++h) {
        const float bound = bounds[uint64_t{b} * kHeadsAtOnce + h];
        const float below = bound == best[h] ? 0.0f : bound - best[h];  // infinities are equal too
        scores[b] = first + h == 0 ? below : Max(scores[b], below);
      }
    }
  }
}

// A number that grows with the score; 0 for NaN, below every number's.
uint32_t OrderOf(float score) {
  if (score != score) return 0;
  score += 0.0f;  // -0.0 becomes 0.0
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof(bits));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace

bool ScoreKernelSupported(ScoreKernel kernel) {
  if (kernel == ScoreKernel::kScalar) return true;
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

void ScoreBlocksWith(ScoreKernel kernel, const ScoreInput& in, float* scores,
                     std::vector<float>& scratch) {
  const Kernel run = KernelFor(kernel);
  if (in.combine == GroupCombine::kNormalizedMax) {
    return ScoreNormalized(run, in, scores, scratch);
  }
  const Box box(in.bound_weight);
  for (uint32_t b = 0; b < in.blocks; ++b) {
    const std::byte* summary = in.summaries + int64_t{b} * in.block_stride;
    float score = 0.0f;
    for (uint32_t first = 0; first < in.group; first += kHeadsAtOnce) {
      const uint32_t heads = std::min(kHeadsAtOnce, in.group - first);
      BlockSums sums;
      run(in.element_type, in.head_dim, box, summary, in.queries + uint64_t{first} * in.head_dim,
          heads, sums);
      for (uint32_t h = 0; h < heads; ++h) {
        score = first + h == 0 ? sums[0] : Combine(in.combine, score, sums[h]);
      }
    }
    if (in.combine == GroupCombine::kMean) score /= static_cast<float>(in.group);
    scores[b] = score;
  }
}

void ScoreBlocks(const ScoreInput& input, float* scores, std::vector<float>& scratch) {
  static const ScoreKernel best =
      ScoreKernelSupported(ScoreKernel::kAvx2) ? ScoreKernel::kAvx2 : ScoreKernel::kScalar;
  ScoreBlocksWith(best, input, scores, scratch);
}

uint32_t TopK(const float* scores, uint32_t n, uint32_t k, int32_t* out,
              std::vector<uint64_t>& scratch) {
  const uint32_t found = std::min(n, k);
  // Score above, complement of the index below: one comparison settles score and tie.
  scratch.resize(n);
  for (uint32_t i = 0; i < n; ++i) {
    scratch[i] = (static_cast<uint64_t>(OrderOf(scores[i])) << 32) | (0xffffffffu - i);
  }
  if (found < n) {
    std::nth_element(scratch.begin(), scratch.begin() + found, scratch.end(), std::greater<>());
  }
  std::sort(scratch.begin(), scratch.begin() + found, std::greater<>());
  for (uint32_t i = 0; i < found; ++i) {
    out[i] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(scratch[i]));
  }
  std::fill(out + found, out + k, -1);
  return found;
}

}  // namespace oasiskv
