// The client's half of the shm fabric: copies out of (and into) the daemon's arenas, mapped here.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fabric/coalesce.h"
#include "common/fabric/fabric.h"
#include "common/fabric/write_gate.h"
#include "common/mapped_memory.h"
#include "common/mutex.h"

namespace oasiskv::fabric::shm {

// Thread contract: safe for concurrent use.
//
// A batch runs in the thread that asks for it and has ended when Read or Write returns, so
// transfers need no buffers, no queue and no cancelling. One sleeping thread watches the socket: it
// notices the daemon's end and sends the fences that the socket had no room for. The mappings live
// as long as the connection, also after the daemon died (its memory stays while it is mapped);
// destroying the connection unmaps first and closes the socket last, which is what tells the daemon
// that they are gone.
class ShmConnection : public Connection {
 public:
  static absl::StatusOr<std::unique_ptr<ShmConnection>> Connect(const std::string& socket_path,
                                                                uint64_t incarnation,
                                                                Access access);
  ~ShmConnection() override;

  std::unique_ptr<Transfer> Read(std::shared_ptr<const GrantView> grant,
                                 std::span<const ReadPiece> pieces,
                                 MonotonicTime deadline) override;
  std::unique_ptr<Transfer> Write(std::shared_ptr<const GrantView> grant,
                                  std::span<const WritePiece> pieces,
                                  MonotonicTime deadline) override;
  void FenceWriter(GrantId grant) override;
  absl::Status Health() override;
  bool local() const override { return true; }
  absl::StatusOr<LocalMemory> Local(const GrantView& grant) const override;
  absl::string_view fabric() const override { return "shm"; }
  ConnectionId connection_id() const override { return id_; }
  std::string Describe() const override;
  ConnectionStats Stats() const override;

 private:
  // One batch's progress, for its times and for the statistics.
  struct Progress {
    MonotonicTime checked;
    uint64_t runs = 0;
    uint64_t bytes = 0;
    bool word_checked = false;
  };

  ShmConnection(std::string path, Access access, ConnectionId id, UniqueFd socket, UniqueFd wake,
                std::vector<Mapping> arenas, Mapping words);

  template <typename Piece>
  std::unique_ptr<Transfer> RunBatch(const GrantView* grant, std::span<const Piece> pieces,
                                     MonotonicTime deadline);
  template <typename Piece>
  absl::Status Move(const GrantView* grant, std::span<const Piece> pieces, MonotonicTime start,
                    MonotonicTime deadline, Progress& progress);
  template <typename Piece>
  absl::Status CopyRuns(const GrantView& grant, std::span<const Piece> pieces,
                        MonotonicTime deadline, Progress& progress);
  template <typename Piece>
  absl::StatusOr<std::byte*> MappedRun(const Run<Piece>& run) const;
  absl::Status CheckWord(const GrantView& grant) const;
  void CountEnd(const absl::Status& status);

  struct PopulatePosition {
    size_t arena = 0;
    uint64_t offset = 0;
  };

  void WatchSocket();
  bool PopulateNext(PopulatePosition& at) const;
  bool SendPendingFences();
  bool HasPendingFences();
  void MarkLost();

  const std::string path_;
  const Access access_;
  const ConnectionId id_;
  const UniqueFd socket_;  // destroyed after the mappings
  const UniqueFd wake_;    // eventfd: stop, or fences are pending
  const std::vector<Mapping> arenas_;
  const Mapping words_;

  WriteGate gate_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> lost_{false};
  Mutex fences_mutex_;
  std::deque<GrantId> pending_fences_ ABSL_GUARDED_BY(fences_mutex_);

  struct Counters {
    std::atomic<uint64_t> reads{0}, writes{0}, pieces{0}, requests{0}, bytes_read{0},
        bytes_written{0}, grant_checks{0}, stale{0}, expired{0}, deadline{0}, failed{0};
  };
  Counters counters_;

  std::thread watcher_;
};

}  // namespace oasiskv::fabric::shm
