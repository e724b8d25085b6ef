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

// Whose bytes memory holds that consists of what `a` and what `b` says.
Owner Join(Owner a, Owner b) {
  if (a == b || b == Owner::kNobody) return a;
  return a == Owner::kNobody ? b : Owner::kSeveral;
}

}  // namespace

SlabAllocator::SlabAllocator(Pool& pool, ClearFrames clear)
    : pool_(pool), clear_(clear), slabs_(pool.slabs_total()) {}

absl::Status SlabAllocator::Allocate(uint64_t stride, uint32_t count, Owner owner,
                                     std::vector<Frame>& out, std::vector<Frame>& dirty) {
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
  if (Join(only_owner_, owner) != only_owner_) {
    only_owner_ = Join(only_owner_, owner);
    // From the second tenant on, what the first has left is worth clearing.
    if (only_owner_ == Owner::kSeveral) QueueAll();
  }
  const size_t dirty_before = dirty.size();
  Request request{owner, count, out, dirty};
  const uint64_t free_here = c.slabs * c.capacity - c.used;
  const uint64_t free_slabs =
      pool_.slabs_free() / c.span;  // what adjacency leaves of it is seen below
  if (free_here + free_slabs * c.capacity >= count) {
    if (out.capacity() < before + count) {
      out.reserve(std::max(before + count, before + before / 4));  // many small Extends stay linear
    }
    // One run for all of it, else long runs and whole slabs, and scattered frames last.
    for (uint32_t slab : c.partial) {
      if (slabs_[slab].free < count) continue;
      Run run = NextFreeRun(slabs_[slab], 0);
      while (run.length != 0 && run.length < count) {
        run = NextFreeRun(slabs_[slab], run.first + run.length);
      }
      if (run.length == 0) continue;
      UseFrames(slab, c, {run.first, count}, request);
      break;
    }
    UsePartial(c, kGoodRun, request);
    uint32_t slab = 0;
    while (request.left > 0 && TakeSlab(stride, c, slab)) {
      UseFrames(slab, c, {0, std::min(request.left, c.capacity)}, request);
    }
    UsePartial(c, 1, request);
  }
  if (request.left == 0) return absl::OkStatus();
  // Something was taken where free slabs are enough, but not side by side, or where the scrubber
  // holds some.
  const std::vector<Frame> taken(out.begin() + static_cast<ptrdiff_t>(before), out.end());
  // Nobody has cleared these, so they still hold what they held, whoever that was.
  for (size_t i = dirty_before; i < dirty.size(); ++i) {
    Owners(slabs_[dirty[i].slab])[dirty[i].index] = static_cast<uint32_t>(Owner::kSeveral);
  }
  out.resize(before);
  dirty.resize(dirty_before);
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
  uint64_t bytes = slabs_.size() * sizeof(Slab) + cell_bytes_ + pool_.metadata_bytes() +
                   to_scrub_.size() * sizeof(uint32_t);
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
  Owner holder = Owner::kNobody;
  for (uint32_t s = slab_number; s < slab_number + c.span; ++s) {
    holder = Join(holder, slabs_[s].rest);
    slabs_[s].rest = Owner::kNobody;
  }
  Slab& slab = slabs_[slab_number];
  slab.stride = stride;
  slab.capacity = c.capacity;
  slab.free = c.capacity;
  slab.single_ref = 0;
  const uint64_t outside = c.span * pool_.slab_bytes() - c.capacity * stride;
  if (outside > 0) slab.rest = holder;
  if (c.capacity > 1) {
    slab.cells = std::make_unique<uint32_t[]>(CellWords(c.capacity));
    cell_bytes_ += CellWords(c.capacity) * sizeof(uint32_t);
    uint32_t* map = FreeMap(slab);
    for (uint32_t i = 0; i < c.capacity; ++i) map[i / 32] |= uint32_t{1} << (i % 32);
  }
  std::fill_n(Owners(slab), c.capacity, static_cast<uint32_t>(holder));
  if (c.capacity > 1) Queue(slab_number, holder);
  ++c.slabs;
  overhead_bytes_ += outside;
  return true;
}

void SlabAllocator::UseFrames(uint32_t slab_number, Class& c, Run run, Request& request) {
  Slab& slab = slabs_[slab_number];
  uint32_t* refs = Refs(slab);
  uint32_t* owners = Owners(slab);
  for (uint32_t i = run.first; i < run.first + run.length; ++i) {
    refs[i] = 1;
    if (slab.capacity > 1) FreeMap(slab)[i / 32] &= ~(uint32_t{1} << (i % 32));
    request.out.push_back({slab_number, i});
    if (MustClear(Owner(owners[i]), request.owner)) request.dirty.push_back({slab_number, i});
    owners[i] = static_cast<uint32_t>(request.owner);
  }
  slab.free -= run.length;
  request.left -= run.length;
  c.used += run.length;
  used_bytes_ += run.length * slab.stride;
  if (slab.free == 0) {
    c.partial.erase(slab_number);
  } else {
    c.partial.insert(slab_number);
  }
}

void SlabAllocator::UsePartial(Class& c, uint32_t min_run, Request& request) {
  uint32_t next = 0;
  while (request.left > 0) {
    const auto it = c.partial.lower_bound(next);
    if (it == c.partial.end()) return;
    const uint32_t number = *it;  // the slab may leave the set below
    next = number + 1;
    Slab& slab = slabs_[number];
    for (Run run = NextFreeRun(slab, 0); request.left > 0 && run.length > 0;
         run = NextFreeRun(slab, run.first + run.length)) {
      if (run.length < std::min(min_run, request.left)) continue;
      UseFrames(number, c, {run.first, std::min(run.length, request.left)}, request);
    }
  }
}

void SlabAllocator::FreeFrame(Frame frame) {
  Slab& slab = slabs_[frame.slab];
  --classes_.find(slab.stride)->second.used;
  used_bytes_ -= slab.stride;
  Queue(frame.slab, Owner(Owners(slab)[frame.index]));
  ReturnFrame(frame);
}

void SlabAllocator::ReturnFrame(Frame frame) {
  Slab& slab = slabs_[frame.slab];
  const auto it = classes_.find(slab.stride);
  Class& c = it->second;
  if (++slab.free < slab.capacity) {
    FreeMap(slab)[frame.index / 32] |= uint32_t{1} << (frame.index % 32);
    if (slab.free == 1) c.partial.insert(frame.slab);
    return;
  }
  c.partial.erase(frame.slab);
  Owner holder = slab.rest;
  for (uint32_t i = 0; i < slab.capacity; ++i) holder = Join(holder, Owner(Owners(slab)[i]));
  overhead_bytes_ -= c.span * pool_.slab_bytes() - c.capacity * slab.stride;
  if (slab.cells != nullptr) cell_bytes_ -= CellWords(slab.capacity) * sizeof(uint32_t);
  const bool queued = slab.queued;
  slab = Slab();
  slab.queued = queued;
  for (uint32_t s = frame.slab; s < frame.slab + c.span; ++s) {
    slabs_[s].rest = holder;
    Queue(s, holder);
  }
  pool_.Give(frame.slab, c.span);
  if (--c.slabs == 0) classes_.erase(it);
}

bool SlabAllocator::MustClear(Owner holder, Owner owner) const {
  switch (clear_) {
    case ClearFrames::kNever:
      return false;
    case ClearFrames::kTenant:
      return holder != Owner::kNobody && (holder != owner || owner == Owner::kSeveral);
    case ClearFrames::kAlways:
      return holder != Owner::kNobody;
  }
  return true;
}

void SlabAllocator::Queue(uint32_t slab_number, Owner holder) {
  const bool worth = clear_ == ClearFrames::kAlways ||
                     (clear_ == ClearFrames::kTenant && only_owner_ == Owner::kSeveral);
  if (!worth || holder == Owner::kNobody || slabs_[slab_number].queued) return;
  slabs_[slab_number].queued = true;
  to_scrub_.push_back(slab_number);
}

void SlabAllocator::QueueAll() {
  for (uint32_t s = 0; s < slabs_.size(); ++s) Queue(s, Owner::kSeveral);
}

std::optional<SlabAllocator::Dirty> SlabAllocator::HoldDirty(uint64_t most_bytes) {
  while (!to_scrub_.empty()) {
    const uint32_t number = to_scrub_.front();
    Slab& slab = slabs_[number];
    Dirty out;
    out.slab = number;
    if (slab.stride != 0) {
      HoldDirtyFrames(most_bytes, out);
      if (!out.frames.empty()) return out;  // the slab stays first: there may be more of it
    }
    to_scrub_.pop_front();
    slab.queued = false;
    if (slab.stride == 0 && slab.rest != Owner::kNobody && pool_.Hold(number)) {
      out.memory.emplace_back(pool_.SlabData(number), pool_.slab_bytes());
      return out;
    }
  }
  return std::nullopt;
}

void SlabAllocator::HoldDirtyFrames(uint64_t most_bytes, Dirty& out) {
  Slab& slab = slabs_[out.slab];
  if (slab.capacity == 1) return;  // in use
  const uint64_t most = std::max<uint64_t>(1, most_bytes / slab.stride);
  for (Run run = NextFreeRun(slab, 0); run.length > 0;
       run = NextFreeRun(slab, run.first + run.length)) {
    for (uint32_t i = run.first; i < run.first + run.length; ++i) {
      if (out.frames.size() == most) return;
      if (Owner(Owners(slab)[i]) == Owner::kNobody) continue;
      FreeMap(slab)[i / 32] &= ~(uint32_t{1} << (i % 32));
      if (--slab.free == 0) classes_.find(slab.stride)->second.partial.erase(out.slab);
      const Frame frame{out.slab, i};
      out.frames.push_back(frame);
      out.memory.emplace_back(Data(frame), slab.stride);
    }
  }
}

void SlabAllocator::Cleared(const Dirty& dirty) {
  Slab& slab = slabs_[dirty.slab];
  if (dirty.frames.empty()) {
    slab.rest = Owner::kNobody;
    pool_.Unhold(dirty.slab);
  }
  for (const Frame frame : dirty.frames) {
    Owners(slab)[frame.index] = static_cast<uint32_t>(Owner::kNobody);
    ReturnFrame(frame);
  }
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
