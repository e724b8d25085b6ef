#include "common/fabric/ucx/bounce.h"

namespace oasiskv::fabric::ucx {

std::optional<uint64_t> BounceRing::Take(uint64_t bytes) {
  if (bytes == 0 || bytes > size_) return std::nullopt;
  const uint64_t need = (bytes + kAlign - 1) / kAlign * kAlign;
  uint64_t at = 0;
  if (!taken_.empty()) {
    const uint64_t oldest = taken_.front().begin;
    at = taken_.back().end;
    if (at > oldest) {
      // Behind the newest, or at the start again.
      if (need > size_ - at) at = 0;
      if (at == 0 && need > oldest) return std::nullopt;
    } else if (need > oldest - at) {
      return std::nullopt;
    }
  }
  taken_.push_back({at, at + need, false});
  return at;
}

void BounceRing::Give(uint64_t offset) {
  for (Stretch& stretch : taken_) {
    if (stretch.begin != offset || stretch.back) continue;
    stretch.back = true;
    break;
  }
  while (!taken_.empty() && taken_.front().back) taken_.pop_front();
}

}  // namespace oasiskv::fabric::ucx
