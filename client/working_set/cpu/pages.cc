#include "client/working_set/cpu/pages.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

constexpr uint64_t kAlignment = 64;

// a * b * c rounded up to `kAlignment`; false on overflow.
bool CheckedStride(uint64_t a, uint64_t b, uint64_t c, uint64_t* out) {
  return !__builtin_mul_overflow(a, b, out) && !__builtin_mul_overflow(*out, c, out) &&
         !__builtin_add_overflow(*out, kAlignment - 1, out) && ((*out &= ~(kAlignment - 1)), true);
}

}  // namespace

absl::StatusOr<PagePool> PagePool::Create(const Geometry& geometry, uint32_t resident_blocks,
                                          uint32_t slots, uint32_t max_blocks) {
  PagePool pool;
  pool.layers_ = geometry.layers;
  pool.slots_ = slots;
  pool.resident_blocks_ = resident_blocks;
  pool.max_blocks_ = max_blocks;
  pool.entry_bytes_ = geometry.entry_bytes();
  pool.summary_bytes_ = geometry.summary_bytes();
  uint64_t pages = 0, summaries = 0, total = 0;
  const bool fits =
      CheckedStride(geometry.kv_heads, uint64_t{resident_blocks} + 1, pool.entry_bytes_,
                    &pool.pages_stride_) &&
      CheckedStride(geometry.kv_heads, max_blocks, pool.summary_bytes_, &pool.summaries_stride_) &&
      CheckedStride(geometry.layers, slots, pool.pages_stride_, &pages) &&
      CheckedStride(geometry.layers, slots, pool.summaries_stride_, &summaries) &&
      !__builtin_add_overflow(pages, summaries, &total);
  if (!fits) {
    return MakeError(
        ErrorCode::kCapacity,
        absl::StrFormat("working set: the size of %d request slots of %d resident and %d blocks in "
                        "all (%s) exceeds 64 bits; lower max_requests, max_blocks or "
                        "resident_blocks",
                        slots, resident_blocks, max_blocks, geometry.ToString()));
  }
  pool.summaries_offset_ = pages;
  const std::string context = absl::StrFormat(
      "working set: %d request slots need %d bytes of pages (%d + 1 blocks each) and %d bytes of "
      "summaries (%d blocks each); lower max_requests, max_blocks or resident_blocks",
      slots, pages, resident_blocks, summaries, max_blocks);
  auto file = CreateMemfd("oasiskv-working-set", total, PageKind::kNormal);
  if (!file.ok()) return Annotate(file.status(), context);
  auto mapping = Mapping::Map(file->get(), total, Protection::kReadWrite);
  if (!mapping.ok()) return Annotate(mapping.status(), context);
  pool.memory_ = *std::move(mapping);
  return pool;
}

}  // namespace oasiskv
