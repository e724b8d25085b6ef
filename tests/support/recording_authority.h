// A grant authority for fabrics that need no authorization: it records the calls it gets.
#pragma once

#include <utility>
#include <vector>

#include "common/fabric/endpoint.h"
#include "common/mutex.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric {

// Thread contract: safe for concurrent use.
class RecordingAuthority : public GrantAuthority {
 public:
  absl::StatusOr<PinnedRanges> Authorize(GrantId, Epoch, Access,
                                         std::span<const RemoteRange>) override {
    return MakeError(ErrorCode::kInternal, "a one-sided fabric asks for no authorization");
  }
  uint64_t GrantWord(GrantId) const override { return 0; }
  void Written(GrantId, Epoch, std::span<const RemoteRange>) override {}
  void WriterFenced(ConnectionId connection, GrantId grant) override {
    MutexLock lock(mutex_);
    fenced_.emplace_back(connection, grant);
  }
  void ConnectionClosed(ConnectionId connection) override {
    MutexLock lock(mutex_);
    closed_.push_back(connection);
  }
  std::vector<std::pair<ConnectionId, GrantId>> fenced() const {
    MutexLock lock(mutex_);
    return fenced_;
  }
  std::vector<ConnectionId> closed() const {
    MutexLock lock(mutex_);
    return closed_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::pair<ConnectionId, GrantId>> fenced_ ABSL_GUARDED_BY(mutex_);
  std::vector<ConnectionId> closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv::fabric
