// One batch: checked, copied between the caller's buffers and the mapped arenas, and good only if
// the grant word still says so afterwards.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/fabric/shm/connection.h"
#include "common/pause_point.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::shm {
namespace {

// Bytes copied between two looks at the clock: about 100 microseconds of copying.
constexpr uint64_t kBytesPerLook = uint64_t{1} << 20;
// What is fetched ahead of the next run while one is copied; the hardware takes over from there.
constexpr uint64_t kPrefetchBytes = 512;
constexpr uint64_t kCacheLine = 64;

// Thread contract: see Transfer.
//
// A batch that ended before it was handed out.
class EndedTransfer : public Transfer {
 public:
  EndedTransfer(absl::Status status, const TransferTimes& times)
      : status_(std::move(status)), times_(times) {}
  bool Done() override { return true; }
  absl::Status Wait() override { return status_; }
  void Cancel() override {}
  TransferTimes Times() const override { return times_; }

 private:
  const absl::Status status_;
  const TransferTimes times_;
};

absl::Status DeadlineError(uint64_t bytes) {
  return MakeError(ErrorCode::kDeadlineExceeded,
                   absl::StrFormat("the batch's deadline passed after %d bytes", bytes));
}

void CopyBytes(const ReadPiece*, std::byte* mapped, std::byte* local, uint64_t bytes) {
  std::memcpy(local, mapped, bytes);
}
void CopyBytes(const WritePiece*, std::byte* mapped, const std::byte* local, uint64_t bytes) {
  std::memcpy(mapped, local, bytes);
}

void Prefetch(const std::byte* from, uint64_t bytes) {
  for (uint64_t i = 0; i < std::min(bytes, kPrefetchBytes); i += kCacheLine) {
    __builtin_prefetch(from + i);
  }
}

constexpr Access AccessOf(const ReadPiece*) { return Access::kRead; }
constexpr Access AccessOf(const WritePiece*) { return Access::kWrite; }

}  // namespace

std::unique_ptr<Transfer> ShmConnection::Read(std::shared_ptr<const GrantView> grant,
                                              std::span<const ReadPiece> pieces,
                                              MonotonicTime deadline) {
  counters_.reads.fetch_add(1, std::memory_order_relaxed);
  return RunBatch(grant.get(), pieces, deadline);
}

std::unique_ptr<Transfer> ShmConnection::Write(std::shared_ptr<const GrantView> grant,
                                               std::span<const WritePiece> pieces,
                                               MonotonicTime deadline) {
  counters_.writes.fetch_add(1, std::memory_order_relaxed);
  return RunBatch(grant.get(), pieces, deadline);
}

template <typename Piece>
std::unique_ptr<Transfer> ShmConnection::RunBatch(const GrantView* grant,
                                                  std::span<const Piece> pieces,
                                                  MonotonicTime deadline) {
  constexpr bool kReads = std::is_same_v<Piece, ReadPiece>;
  const MonotonicTime start = Clock::Real().Now();
  Progress progress;
  progress.checked = start;
  absl::Status status = Move(grant, pieces, start, deadline, progress);
  auto add = [](std::atomic<uint64_t>& to, uint64_t n) {
    to.fetch_add(n, std::memory_order_relaxed);
  };
  add(counters_.pieces, pieces.size());
  add(counters_.requests, progress.runs);
  add(kReads ? counters_.bytes_read : counters_.bytes_written, progress.bytes);
  add(counters_.grant_checks, progress.word_checked ? 1 : 0);
  CountEnd(status);
  TransferTimes times;
  times.prepare = progress.checked - start;
  times.wire = Clock::Real().Now() - progress.checked;
  return std::make_unique<EndedTransfer>(std::move(status), times);
}

template <typename Piece>
absl::Status ShmConnection::Move(const GrantView* grant, std::span<const Piece> pieces,
                                 MonotonicTime start, MonotonicTime deadline, Progress& progress) {
  constexpr Access kAccess = AccessOf(static_cast<const Piece*>(nullptr));
  constexpr bool kWrites = kAccess == Access::kWrite;
  if (grant == nullptr) return MakeError(ErrorCode::kInvalidArgument, "a batch without a grant");
  if (grant->access != kAccess) {
    return MakeError(ErrorCode::kPermissionDenied,
                     kWrites ? "a write under a reader's grant; open the sequence to write"
                             : "a read under a writer's grant; attach the sequence to read");
  }
  if (kWrites && access_ != Access::kWrite) {
    return MakeError(ErrorCode::kPermissionDenied,
                     "this shm connection was made for reading; connect with Access::kWrite");
  }
  OASISKV_RETURN_IF_ERROR(CheckPieces(*grant, pieces));
  if (lost_.load(std::memory_order_acquire)) return Health();
  if (start >= deadline) return DeadlineError(0);

  if constexpr (kWrites) {
    const WriteGate::Pass pass(gate_, grant->id);
    if (!pass) {
      return MakeError(ErrorCode::kStale, "this client has fenced the grant: it writes no more");
    }
    // What passes here may still land after the grant is revoked; the frames wait for the fence, or
    // for our end.
    OASISKV_RETURN_IF_ERROR(CheckWord(*grant));
    OASISKV_PAUSE_POINT("shm.write.before_copy");
    OASISKV_RETURN_IF_ERROR(CopyRuns(*grant, pieces, deadline, progress));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    progress.word_checked = true;
    return CheckWord(*grant);
  } else {
    // Only to save the copy: what counts is the look at the word after the data.
    OASISKV_RETURN_IF_ERROR(CheckWord(*grant));
    OASISKV_RETURN_IF_ERROR(CopyRuns(*grant, pieces, deadline, progress));
    OASISKV_PAUSE_POINT("shm.read.before_check");
    // No load of the copy may be done after the load of the word. An acquire fence would do for
    // plain loads; the full one also holds for the string instructions that a memcpy may use, and
    // costs some nanoseconds a batch.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    progress.word_checked = true;
    return CheckWord(*grant);
  }
}

template <typename Piece>
absl::Status ShmConnection::CopyRuns(const GrantView& grant, std::span<const Piece> pieces,
                                     MonotonicTime deadline, Progress& progress) {
  constexpr bool kReads = std::is_same_v<Piece, ReadPiece>;
  RunIterator<Piece> runs(grant, pieces, FrameSpan::kAcrossFrames);
  progress.checked = Clock::Real().Now();
  Run<Piece> run;
  if (!runs.Next(run)) return absl::OkStatus();
  OASISKV_ASSIGN_OR_RETURN(std::byte * mapped, MappedRun(run));
  uint64_t until_look = kBytesPerLook;
  for (bool more = true; more;) {
    const Run<Piece> now = run;
    std::byte* const at = mapped;
    more = runs.Next(run);
    if (more) {
      OASISKV_ASSIGN_OR_RETURN(mapped, MappedRun(run));
      if constexpr (kReads) {
        Prefetch(mapped, run.bytes);
      } else {
        Prefetch(run.local, run.bytes);
      }
    }
    ++progress.runs;
    for (uint64_t done = 0; done < now.bytes;) {
      const uint64_t part = std::min(now.bytes - done, until_look);
      CopyBytes(static_cast<const Piece*>(nullptr), at + done, now.local + done, part);
      done += part;
      until_look -= part;
      progress.bytes += part;
      if (until_look > 0) continue;
      until_look = kBytesPerLook;
      if (kReads) OASISKV_PAUSE_POINT("shm.read.mid_copy");
      if ((more || done < now.bytes) && Clock::Real().Now() >= deadline) {
        return DeadlineError(progress.bytes);
      }
    }
  }
  return absl::OkStatus();
}

template <typename Piece>
absl::StatusOr<std::byte*> ShmConnection::MappedRun(const Run<Piece>& run) const {
  const size_t arena = run.address.arena.value();
  if (arena < arenas_.size()) {
    const Mapping& mapping = arenas_[arena];
    if (run.address.offset <= mapping.size() && run.bytes <= mapping.size() - run.address.offset) {
      return mapping.data() + run.address.offset;
    }
  }
  return MakeError(ErrorCode::kInternal,
                   absl::StrFormat("the grant places %d bytes at offset %d of arena %d, which the "
                                   "daemon does not share; its frame list is wrong",
                                   run.bytes, run.address.offset, arena));
}

absl::StatusOr<LocalMemory> ShmConnection::Local(const GrantView& grant) const {
  OASISKV_RETURN_IF_ERROR(CheckWord(grant));
  LocalMemory local;
  local.word = reinterpret_cast<const uint64_t*>(words_.data()) + grant.word_slot.value();
  local.frames.reserve(grant.frames.size());
  for (const FrameAddress& frame : grant.frames) {
    OASISKV_ASSIGN_OR_RETURN(
        std::byte * at, MappedRun(Run<ReadPiece>{.address = frame, .bytes = grant.frame_bytes}));
    local.frames.push_back(at);
  }
  for (const Mapping& arena : arenas_) local.mappings.emplace_back(arena.data(), arena.size());
  local.mappings.emplace_back(words_.data(), words_.size());
  return local;
}

absl::Status ShmConnection::CheckWord(const GrantView& grant) const {
  const uint64_t slot = grant.word_slot.value();
  if (slot >= words_.size() / sizeof(uint64_t)) {
    return MakeError(ErrorCode::kInternal, absl::StrFormat("the grant's word is number %d of %d",
                                                           slot, words_.size() / sizeof(uint64_t)));
  }
  const auto* word = reinterpret_cast<const uint64_t*>(words_.data()) + slot;
  return CheckGrantWord(__atomic_load_n(word, __ATOMIC_ACQUIRE), grant.epoch);
}

void ShmConnection::CountEnd(const absl::Status& status) {
  if (status.ok()) return;
  const ErrorCode code = ErrorCodeOf(status);
  (code == ErrorCode::kStale              ? counters_.stale
   : code == ErrorCode::kLeaseExpired     ? counters_.expired
   : code == ErrorCode::kDeadlineExceeded ? counters_.deadline
                                          : counters_.failed)
      .fetch_add(1, std::memory_order_relaxed);
}

}  // namespace oasiskv::fabric::shm
