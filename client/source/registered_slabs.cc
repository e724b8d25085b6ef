#include "client/source/registered_slabs.h"

#include <algorithm>
#include <utility>

namespace oasiskv::client {
namespace {

// Each slab is as large as all before it together, within these limits: a small request pins little,
// a large one registers rarely.
constexpr uint64_t kFirstSlabBytes = uint64_t{1} << 20;
constexpr uint64_t kMostSlabBytes = uint64_t{16} << 20;

}  // namespace

std::byte* RegisteredSlabs::Take() {
  MutexLock lock(mutex_);
  if (free_.empty()) Grow();
  std::byte* const place = free_.back();
  free_.pop_back();
  return place;
}

void RegisteredSlabs::Give(std::byte* place) {
  MutexLock lock(mutex_);
  free_.push_back(place);
}

uint64_t RegisteredSlabs::slab_bytes() const {
  MutexLock lock(mutex_);
  return slab_bytes_;
}

void RegisteredSlabs::Grow() {
  const uint64_t places = std::max<uint64_t>(
      1, std::clamp(slab_bytes_, kFirstSlabBytes, kMostSlabBytes) / place_bytes_);
  const uint64_t bytes = places * place_bytes_;
  Slab slab;
  slab.memory.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
  if (register_slab_) slab.registrations = register_slab_({slab.memory.get(), bytes});
  for (uint64_t i = places; i-- > 0;) free_.push_back(slab.memory.get() + i * place_bytes_);
  slab_bytes_ += bytes;
  slabs_.push_back(std::move(slab));
}

}  // namespace oasiskv::client
