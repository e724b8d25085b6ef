// One batch of a reader, from the fabric's transfer to the answer for the caller.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "client/connection/core.h"
#include "common/fabric/fabric.h"
#include "oasiskv/reader.h"

namespace oasiskv::client {

// The grant that fetches are made under, shared by a reader and its fetches; it is given back when
// the last of them goes.
//
// Thread contract: safe for concurrent use.
struct ReadRight {
  std::shared_ptr<Core> core;
  std::shared_ptr<Session> session;
  std::shared_ptr<GrantState> grant;
  std::shared_ptr<const fabric::GrantView> view;
  std::atomic<bool> released{false};

  ~ReadRight();
  // OK while a batch may be started, and after its data have arrived: while it may count.
  absl::Status Check() const;
};

// An entry whose checksum is known.
struct EntryCheck {
  std::byte* at = nullptr;
  uint32_t crc = 0;
  uint32_t index = 0;  // in the caller's list
  uint32_t block = 0, layer = 0, head = 0;
};

// A duplicate that is copied from its first occurrence once that has arrived.
struct EntryCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
};

struct FetchPlan {
  std::vector<fabric::ReadPiece> pieces;
  std::vector<EntryCheck> checks;
  std::vector<EntryCopy> copies;
  uint32_t entry_bytes = 0;  // of checks and copies
};

// Thread contract: Done, Wait and Cancel by one thread at a time; CancelFromRelease by any.
class FetchState {
 public:
  // Starts the batch; what fails at once is kept as its answer. Pre-condition: right->Check() was
  // OK just now.
  FetchState(std::shared_ptr<ReadRight> right, FetchPlan plan, MonotonicTime deadline);
  // A batch that failed before anything was started.
  FetchState(std::shared_ptr<ReadRight> right, const absl::Status& error);
  ~FetchState();

  bool Done();
  absl::Status Wait();
  void Cancel();
  // Cancels unless a thread is inside a call above; that thread's answer will be STALE.
  void CancelFromRelease();

 private:
  class Owned;
  void Finish(const absl::Status& ended);
  absl::Status VerifyAndCopy();

  const std::shared_ptr<ReadRight> right_;
  std::atomic<bool> owned_{false};
  // By the thread that owns the state.
  bool finished_ = false;
  absl::Status result_;
  BatchDeadline deadline_;
  FetchPlan plan_;
  std::unique_ptr<fabric::Transfer> transfer_;
};

}  // namespace oasiskv::client
