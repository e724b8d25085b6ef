// Answers that never arrive, for tests of rule 8 of server/lease/README.md.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"

namespace oasiskv::server {

// Thread contract: safe for concurrent use.
//
// The call has been carried out; only its answer is replaced by a broken connection. At most two in
// a row of one kind, so that a client that repeats its calls gets through.
class ReplyLoss {
 public:
  // Loses about `percent` of the answers; 0: none, and costs nothing.
  ReplyLoss(uint32_t percent, uint32_t seed) : percent_(percent), random_(seed) {}

  bool Lose(absl::string_view method) {
    if (percent_ == 0) return false;
    MutexLock lock(mutex_);
    uint32_t& in_a_row = in_a_row_[std::string(method)];
    in_a_row = in_a_row < 2 && random_() % 100 < percent_ ? in_a_row + 1 : 0;
    return in_a_row > 0;
  }

 private:
  const uint32_t percent_;
  Mutex mutex_;
  std::minstd_rand random_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, uint32_t> in_a_row_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv::server
