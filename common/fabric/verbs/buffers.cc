#include "common/fabric/verbs/buffers.h"

#include "common/fabric/verbs/memory.h"
#include "common/status_macros.h"

namespace oasiskv::fabric::verbs {

void RegionTable::Remove(const Region* region) {
  auto [it, end] = regions_.equal_range(region->begin);
  for (; it != end; ++it) {
    if (it->second.get() != region) continue;
    regions_.erase(it);
    return;
  }
}

const std::shared_ptr<Region>& RegionTable::Find(const std::byte* from, uint64_t length) const {
  static const std::shared_ptr<Region>& none = *new std::shared_ptr<Region>;
  auto it = regions_.upper_bound(from);
  if (it == regions_.begin()) return none;
  --it;
  return it->second->Holds(from, length) ? it->second : none;
}

absl::StatusOr<BouncePool> BouncePool::Create(const Port& port, ibv_pd* domain) {
  constexpr uint64_t kBytes = kAreas * kAreaBytes;
  OASISKV_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd("oasiskv-bounce", kBytes, PageKind::kNormal));
  OASISKV_ASSIGN_OR_RETURN(Mapping memory, Mapping::Map(fd.get(), kBytes, Protection::kReadWrite));
  OASISKV_ASSIGN_OR_RETURN(
      MemoryRegion key,
      RegisterMemory(port, domain, {memory.data(), kBytes},
                     {"the connection's own buffers", IBV_ACCESS_LOCAL_WRITE, true, kBytes}));
  return BouncePool(std::move(fd), std::move(memory), std::move(key));
}

BouncePool::BouncePool(UniqueFd fd, Mapping memory, MemoryRegion key)
    : fd_(std::move(fd)), memory_(std::move(memory)), key_(std::move(key)) {
  for (uint32_t i = kAreas; i-- > 0;) free_.push_back(i);
}

std::optional<uint32_t> BouncePool::Take() {
  if (free_.empty()) return std::nullopt;
  const uint32_t area = free_.back();
  free_.pop_back();
  return area;
}

}  // namespace oasiskv::fabric::verbs
