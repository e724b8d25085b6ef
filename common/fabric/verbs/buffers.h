// Where the device puts what it reads: the caller's memory where that is registered, else memory of
// our own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/fabric/verbs/handles.h"
#include "common/fabric/verbs/port.h"
#include "common/mapped_memory.h"

namespace oasiskv::fabric::verbs {

// A registered stretch of the caller's memory. Work requests in flight share it, so that it stays
// registered until the device has done with it.
struct Region {
  std::byte* begin = nullptr;
  uint64_t bytes = 0;
  MemoryRegion key;

  bool Holds(const std::byte* from, uint64_t length) const {
    // Wraps around to beyond the end for what lies before the beginning.
    const uint64_t at = reinterpret_cast<uintptr_t>(from) - reinterpret_cast<uintptr_t>(begin);
    return at <= bytes && length <= bytes - at;
  }
};

// Thread contract: not safe for concurrent use.
//
// The registered stretches, found by address. Nothing gets in by itself: a cache that registers
// what it meets and is not told of an unmap goes on reading into pages that the caller no longer
// sees.
class RegionTable {
 public:
  void Add(std::shared_ptr<Region> region) { regions_.emplace(region->begin, std::move(region)); }
  void Remove(const Region* region);
  // The stretch that holds all of the bytes, or null.
  const std::shared_ptr<Region>& Find(const std::byte* from, uint64_t length) const;

 private:
  std::multimap<const std::byte*, std::shared_ptr<Region>> regions_;
};

// Thread contract: not safe for concurrent use.
//
// Registered areas of our own. A chunk of work requests takes one when it meets the first buffer
// that is not registered, and packs all such bytes into it.
class BouncePool {
 public:
  static constexpr uint64_t kAreaBytes = 128 << 10;  // sixteen entries of 8 KiB
  static constexpr uint32_t kAreas = 32;

  static absl::StatusOr<BouncePool> Create(const Port& port, ibv_pd* domain);

  std::optional<uint32_t> Take();
  void Give(uint32_t area) { free_.push_back(area); }
  std::byte* area(uint32_t i) const { return memory_.data() + i * kAreaBytes; }
  uint32_t key() const { return key_->lkey; }

 private:
  BouncePool(UniqueFd fd, Mapping memory, MemoryRegion key);

  UniqueFd fd_;
  Mapping memory_;
  MemoryRegion key_;
  std::vector<uint32_t> free_;
};

}  // namespace oasiskv::fabric::verbs
