// Tenants as frames remember them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "server/pool/slab_allocator.h"

namespace oasiskv::server {

// Thread contract: not safe for concurrent use (the core's mutex guards it).
//
// No number is ever given to two tenants. Anybody can make up tenants, so only the last
// kRemembered are known: one that returns later gets another number, and its old bytes are cleared
// as if they were a stranger's.
class TenantOwners {
 public:
  static constexpr size_t kRemembered = 4096;

  Owner Of(const std::string& tenant) {
    if (const auto it = owners_.find(tenant); it != owners_.end()) return it->second;
    if (owners_.size() >= kRemembered) owners_.clear();
    // The numbers have an end, behind which every frame is cleared.
    const Owner owner =
        next_ == static_cast<uint32_t>(Owner::kSeveral) ? Owner::kSeveral : Owner(next_++);
    return owners_[tenant] = owner;
  }

 private:
  uint32_t next_ = static_cast<uint32_t>(Owner::kNobody) + 1;
  absl::flat_hash_map<std::string, Owner> owners_;
};

}  // namespace oasiskv::server
