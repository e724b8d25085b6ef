#include "server/pool/slab_allocator.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "absl/strings/str_format.h"
#include "oasiskv/error.h"

namespace oasiskv::server {
namespace {

// A run this long is as good as an untouched slab: what is gained by longer ones is lost in slabs
// taken from other strides.
constexpr uint32_t kGoodRun = 8;

uint32_t MapWords(uint32_t capacity) { return (capacity + 31) / 32; }

}  // namespace

SlabAllocator::SlabAllocator(Pool& pool) : pool_(pool), slabs_(pool.slabs_total()) {}

absl::Status SlabAllocator::Allocate(uint64_t stride, uint32_t count, std::vector<Frame>& out) {
  if (count == 0) return absl::OkStatus();
  const uint64_t slab_bytes = pool_.slab_bytes();
  const uint64_t span = (stride + slab_bytes - 1) / slab_bytes;
  if (stride == 0 || span > pool_.slabs_per_arena()) return Full(stride, count);
  const size_t before = out.size();
  auto [it, created] = classes_.try_emplace(stride);
  Class& c = it->second;
  if (created) {
    c.span = static_cast<uint32_t>(span);
    c.capacity = span > 1 ? 1 : static_cast<uint32_t>(slab_bytes / stride);
  }
  uint32_t left = count;
  const uint64_t free_here = c.slabs * c.capacity - c.used;
  const uint64_t free_slabs =
      pool_.slabs_free() / c.span;  // what adjacency leaves of it is seen below
  if (free_here + free_slabs * c.capacity >= count) {
    if (out.capacity() < before + count) {
      out.reserve(std::max(before + count, before + before / 4));  // many small Extends stay linear
    }
    // One run for all of it, else long runs and whole slabs, and scattered frames last.
    for (uint32_t slab : c.partial) {
      if (slabs_[slab].free < left) continue;
      Run run = NextFreeRun(slabs_[slab], 0);
      while (run.length != 0 && run.length < left) {
        run = NextFreeRun(slabs_[slab], run.first + run.length);
      }
      if (run.length == 0) continue;
      UseFrames(slab, c, {run.first, left}, out);
      left = 0;
      break;
    }
    UsePartial(c, kGoodRun, left, out);
    uint32_t slab = 0;
    while (left > 0 && TakeSlab(stride, c, slab)) {
      const uint32_t n = std::min(left, c.capacity);
      UseFrames(slab, c, {0, n}, out);
      left -= n;
    }
    UsePartial(c, 1, left, out);
  }
  if (left == 0) return absl::OkStatus();
  // Only frames of several slabs come here with something taken: free slabs enough, but not side by
  // side.
  const std::vector<Frame> taken(out.begin() + static_cast<ptrdiff_t>(before), out.end());
  out.resize(before);
  if (c.slabs == 0) classes_.erase(it);
  Unref(taken);
  return Full(stride, count);
}

void SlabAllocator::Ref(std::span<const Frame> frames) {
  for (Frame f : frames) {
    Slab& slab = slabs_[f.slab];
    uint32_t& ref = Refs(slab)[f.index];
    if (ref == (kQuarantineBit | 1)) quarantined_bytes_ -= slab.stride;
    ++ref;
  }
}

void SlabAllocator::Unref(std::span<const Frame> frames) {
  for (Frame f : frames) {
    Slab& slab = slabs_[f.slab];
    uint32_t& ref = Refs(slab)[f.index];
    --ref;
    if (ref == (kQuarantineBit | 1)) quarantined_bytes_ += slab.stride;
    if (ref == 0) FreeFrame(f);
  }
}

void SlabAllocator::Quarantine(std::span<const Frame> frames) {
  for (Frame f : frames) {
    Slab& slab = slabs_[f.slab];
    uint32_t& ref = Refs(slab)[f.index];
    ref |= kQuarantineBit;
    if (ref == (kQuarantineBit | 1)) quarantined_bytes_ += slab.stride;
  }
}

void SlabAllocator::Unquarantine(std::span<const Frame> frames) {
  for (Frame f : frames) {
    Slab& slab = slabs_[f.slab];
    uint32_t& ref = Refs(slab)[f.index];
    if (ref == (kQuarantineBit | 1)) quarantined_bytes_ -= slab.stride;
    ref &= ~kQuarantineBit;
  }
}

FrameAddress SlabAllocator::Address(Frame frame) const {
  FrameAddress address = pool_.SlabAddress(frame.slab);
  address.offset += frame.index * slabs_[frame.slab].stride;
  return address;
}

std::byte* SlabAllocator::Data(Frame frame) const {
  return pool_.SlabData(frame.slab) + frame.index * slabs_[frame.slab].stride;
}

uint64_t SlabAllocator::free_bytes() const {
  uint64_t bytes = pool_.slabs_free() * pool_.slab_bytes();
  for (const auto& [stride, c] : classes_) bytes += (c.slabs * c.capacity - c.used) * stride;
  return bytes;
}

uint64_t SlabAllocator::metadata_bytes() const {
  uint64_t bytes = slabs_.size() * sizeof(Slab) + cell_bytes_ + pool_.metadata_bytes();
  for (const auto& [stride, c] : classes_) {
    bytes += sizeof(stride) + sizeof(c) + c.partial.size() * sizeof(uint32_t);
  }
  return bytes;
}

std::vector<SlabClassStats> SlabAllocator::Classes() const {
  std::vector<SlabClassStats> out;
  for (const auto& [stride, c] : classes_) {
    out.push_back({stride, c.slabs, c.slabs * c.capacity, c.used});
  }
  return out;
}

SlabAllocator::Run SlabAllocator::NextFreeRun(Slab& slab, uint32_t from) {
  const uint32_t* map = FreeMap(slab);
  // The first position >= from whose bit is `value`; capacity when there is none.
  auto find = [&](uint32_t at, bool value) {
    while (at < slab.capacity) {
      uint32_t word = value ? map[at / 32] : ~map[at / 32];
      word &= ~uint32_t{0} << (at % 32);
      if (word != 0) {
        return std::min(slab.capacity,
                        at / 32 * 32 + static_cast<uint32_t>(std::countr_zero(word)));
      }
      at = (at / 32 + 1) * 32;
    }
    return slab.capacity;
  };
  const uint32_t first = find(from, true);
  return {first, find(first, false) - first};
}

bool SlabAllocator::TakeSlab(uint64_t stride, Class& c, uint32_t& slab_number) {
  const std::optional<uint32_t> taken = pool_.Take(c.span);
  if (!taken) return false;
  slab_number = *taken;
  Slab& slab = slabs_[slab_number];
  slab.stride = stride;
  slab.capacity = c.capacity;
  slab.free = c.capacity;
  slab.single_ref = 0;
  if (c.capacity > 1) {
    const uint32_t words = c.capacity + MapWords(c.capacity);
    slab.cells = std::make_unique<uint32_t[]>(words);
    cell_bytes_ += words * sizeof(uint32_t);
    uint32_t* map = FreeMap(slab);
    for (uint32_t i = 0; i < c.capacity; ++i) map[i / 32] |= uint32_t{1} << (i % 32);
  }
  ++c.slabs;
  overhead_bytes_ += c.span * pool_.slab_bytes() - c.capacity * stride;
  return true;
}

void SlabAllocator::UseFrames(uint32_t slab_number, Class& c, Run run, std::vector<Frame>& out) {
  Slab& slab = slabs_[slab_number];
  uint32_t* refs = Refs(slab);
  for (uint32_t i = run.first; i < run.first + run.length; ++i) {
    refs[i] = 1;
    if (slab.capacity > 1) FreeMap(slab)[i / 32] &= ~(uint32_t{1} << (i % 32));
    out.push_back({slab_number, i});
  }
  slab.free -= run.length;
  c.used += run.length;
  used_bytes_ += run.length * slab.stride;
  if (slab.free == 0) {
    c.partial.erase(slab_number);
  } else {
    c.partial.insert(slab_number);
  }
}

void SlabAllocator::UsePartial(Class& c, uint32_t min_run, uint32_t& left,
                               std::vector<Frame>& out) {
  uint32_t next = 0;
  while (left > 0) {
    const auto it = c.partial.lower_bound(next);
    if (it == c.partial.end()) return;
    const uint32_t number = *it;  // the slab may leave the set below
    next = number + 1;
    Slab& slab = slabs_[number];
    for (Run run = NextFreeRun(slab, 0); left > 0 && run.length > 0;
         run = NextFreeRun(slab, run.first + run.length)) {
      if (run.length < std::min(min_run, left)) continue;
      const uint32_t n = std::min(run.length, left);
      UseFrames(number, c, {run.first, n}, out);
      left -= n;
    }
  }
}

void SlabAllocator::FreeFrame(Frame frame) {
  Slab& slab = slabs_[frame.slab];
  const auto it = classes_.find(slab.stride);
  Class& c = it->second;
  --c.used;
  ++slab.free;
  used_bytes_ -= slab.stride;
  if (slab.free < slab.capacity) {
    FreeMap(slab)[frame.index / 32] |= uint32_t{1} << (frame.index % 32);
    if (slab.free == 1) c.partial.insert(frame.slab);
    return;
  }
  c.partial.erase(frame.slab);
  overhead_bytes_ -= c.span * pool_.slab_bytes() - c.capacity * slab.stride;
  if (slab.cells != nullptr) {
    cell_bytes_ -= (slab.capacity + MapWords(slab.capacity)) * sizeof(uint32_t);
  }
  slab = Slab();
  pool_.Give(frame.slab, c.span);
  if (--c.slabs == 0) classes_.erase(it);
}

absl::Status SlabAllocator::Full(uint64_t stride, uint32_t count) const {
  if (stride > pool_.arena_bytes()) {
    return MakeError(
        ErrorCode::kCapacity,
        absl::StrFormat("one frame takes %d bytes, an arena has %d; raise --arena_bytes or "
                        "--pool_bytes",
                        stride, pool_.arena_bytes()));
  }
  uint64_t frames_free = 0;
  if (const auto it = classes_.find(stride); it != classes_.end()) {
    frames_free = it->second.slabs * it->second.capacity - it->second.used;
  }
  return MakeError(
      ErrorCode::kCapacity,
      absl::StrFormat("%d frames of %d bytes (%d bytes) asked; free: %d frames of that size and %d "
                      "slabs of %d bytes, %d bytes of %d in all; release sequences, ask another "
                      "daemon or raise --pool_bytes",
                      count, stride, count * stride, frames_free, pool_.slabs_free(),
                      pool_.slab_bytes(), free_bytes(), pool_.pool_bytes()));
}

}  // namespace oasiskv::server
