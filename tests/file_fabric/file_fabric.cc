#include "tests/file_fabric/file_fabric.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/fabric/coalesce.h"
#include "common/mapped_memory.h"
#include "common/mutex.h"
#include "common/pause_point.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::testing {
namespace {

using namespace fabric;  // NOLINT: nearly every name of this file is from there

// Thread contract: as Endpoint. Paths of the grant words and of each arena, in that order.
class FileEndpoint final : public Endpoint {
 public:
  explicit FileEndpoint(const ExportedMemory& memory) {
    std::vector<std::string> paths = {PathOf(memory.words_fd)};
    for (const ExportedMemory::Arena& arena : memory.arenas) paths.push_back(PathOf(arena.fd));
    address_ = absl::StrJoin(paths, ",");
  }
  absl::string_view fabric() const override { return "file"; }
  std::string address() const override { return address_; }
  EndpointStats Stats() const override { return {}; }

 private:
  static std::string PathOf(int fd) { return absl::StrCat("/proc/", ::getpid(), "/fd/", fd); }
  std::string address_;
};

// Thread contract: as Transfer. Of a batch that ran in the calling thread.
class EndedTransfer final : public Transfer {
 public:
  explicit EndedTransfer(absl::Status status) : status_(std::move(status)) {}
  bool Done() override { return true; }
  absl::Status Wait() override { return status_; }
  void Cancel() override {}
  TransferTimes Times() const override { return {}; }

 private:
  const absl::Status status_;
};

absl::Status ReadAt(const UniqueFd& file, uint64_t offset, std::byte* into, uint64_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::pread(file.get(), into, bytes, static_cast<off_t>(offset));
    if (got <= 0) {
      return MakeError(ErrorCode::kPeerLost, absl::StrCat("pread: ", std::strerror(errno)));
    }
    offset += static_cast<uint64_t>(got);
    into += got;
    bytes -= static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

// Thread contract: as Connection.
class FileConnection final : public Connection {
 public:
  static absl::StatusOr<std::unique_ptr<Connection>> Connect(const FabricOptions&,
                                                             const ConnectTarget& target) {
    auto out = std::make_unique<FileConnection>();
    const std::vector<std::string> paths = absl::StrSplit(target.endpoint.address, ',');
    for (const std::string& path : paths) {
      UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      if (!file) {
        return MakeError(ErrorCode::kPeerLost, absl::StrCat(path, ": ", std::strerror(errno)));
      }
      out->files_.push_back(std::move(file));
    }
    return out;
  }

  std::unique_ptr<Transfer> Read(std::shared_ptr<const GrantView> grant,
                                 std::span<const ReadPiece> pieces,
                                 MonotonicTime deadline) override {
    absl::Status status = Move(*grant, pieces, deadline);
    MutexLock lock(mutex_);
    ++stats_.reads;
    stats_.pieces += pieces.size();
    if (status.ok()) ++stats_.grant_checks;
    return std::make_unique<EndedTransfer>(std::move(status));
  }
  std::unique_ptr<Transfer> Write(std::shared_ptr<const GrantView>, std::span<const WritePiece>,
                                  MonotonicTime) override {
    return std::make_unique<EndedTransfer>(
        MakeError(ErrorCode::kUnsupported, "the file fabric reads only"));
  }
  void FenceWriter(GrantId) override {}
  absl::Status Health() override { return absl::OkStatus(); }
  absl::string_view fabric() const override { return "file"; }
  ConnectionId connection_id() const override { return ConnectionId(0); }
  std::string Describe() const override { return absl::StrCat(files_.size(), " files"); }
  ConnectionStats Stats() const override {
    MutexLock lock(mutex_);
    return stats_;
  }

 private:
  absl::Status Move(const GrantView& grant, std::span<const ReadPiece> pieces,
                    MonotonicTime deadline) {
    OASISKV_RETURN_IF_ERROR(CheckPieces(grant, pieces));
    RunIterator<ReadPiece> runs(grant, pieces, FrameSpan::kAcrossFrames);
    Run<ReadPiece> run;
    while (runs.Next(run)) {
      if (Clock::Real().Now() > deadline) {
        return MakeError(ErrorCode::kDeadlineExceeded, "the batch's deadline passed");
      }
      const UniqueFd& arena = files_.at(1 + run.address.arena.value());
      OASISKV_RETURN_IF_ERROR(ReadAt(arena, run.address.offset, run.local, run.bytes));
    }
    OASISKV_PAUSE_POINT("file.before_grant_word");
    uint64_t word = 0;  // after the data, or it vouches for nothing
    OASISKV_RETURN_IF_ERROR(ReadAt(files_.front(), grant.word_slot.value() * sizeof(word),
                                   reinterpret_cast<std::byte*>(&word), sizeof(word)));
    return CheckGrantWord(word, grant.epoch);
  }

  std::vector<UniqueFd> files_;
  mutable Mutex mutex_;
  ConnectionStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

const Fabric& FileFabric() {
  static constexpr Fabric kFabric = {
      .name = "file",
      .reason = "the daemon's memory can be opened",
      .check_serve = [](const FabricOptions&) { return absl::OkStatus(); },
      // The table's functions take the memory by value.
      .serve = [](const FabricOptions&,
                  ExportedMemory memory,  // NOLINT(performance-unnecessary-value-param)
                  GrantAuthority&) -> absl::StatusOr<std::unique_ptr<Endpoint>> {
        return std::make_unique<FileEndpoint>(memory);
      },
      .check_connect = [](const FabricOptions&) { return absl::OkStatus(); },
      .connect = FileConnection::Connect,
  };
  return kFabric;
}

}  // namespace oasiskv::testing
