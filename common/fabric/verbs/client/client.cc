// A verbs connection and its transfers: checks batches, cuts them into parcels, and leaves the rest
// to the engine.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/fabric/coalesce.h"
#include "common/fabric/verbs/client/engine.h"
#include "common/fabric/verbs/verbs.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

// Thread contract: as Transfer.
class VerbsTransfer final : public Transfer {
 public:
  VerbsTransfer(std::shared_ptr<Engine> engine, std::shared_ptr<Batch> batch)
      : engine_(std::move(engine)), batch_(std::move(batch)) {}
  ~VerbsTransfer() override { Cancel(); }

  bool Done() override { return batch_->ended.load(std::memory_order_acquire); }
  absl::Status Wait() override { return engine_->Wait(batch_); }
  void Cancel() override {
    if (!Done()) engine_->Cancel(batch_);
  }
  TransferTimes Times() const override { return engine_->Times(*batch_); }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<Batch> batch_;
};

// Thread contract: as BufferRegistration.
class VerbsBuffer final : public BufferRegistration {
 public:
  VerbsBuffer(std::shared_ptr<Engine> engine, std::shared_ptr<Region> region)
      : engine_(std::move(engine)), region_(std::move(region)) {}
  ~VerbsBuffer() override { engine_->RemoveRegion(region_.get()); }

 private:
  const std::shared_ptr<Engine> engine_;  // outlives the region, which is registered in its domain
  const std::shared_ptr<Region> region_;
};

constexpr Access AccessOf(const ReadPiece*) { return Access::kRead; }
constexpr Access AccessOf(const WritePiece*) { return Access::kWrite; }

// Thread contract: as Connection.
class VerbsConnection final : public Connection {
 public:
  VerbsConnection(Access access, std::shared_ptr<Engine> engine,
                  std::shared_ptr<ControlPlane> control)
      : access_(access), engine_(std::move(engine)), control_(std::move(control)) {
    for (const RemoteMemory& arena : engine_->server().arenas) {
      smallest_arena_ = std::min(smallest_arena_, arena.bytes);
    }
  }
  // The daemon takes its queue pairs down, after which no write of ours can reach it.
  ~VerbsConnection() override {
    engine_->Stop();
    control_->Close(connection_id());
  }

  std::unique_ptr<Transfer> Read(std::shared_ptr<const GrantView> grant,
                                 std::span<const ReadPiece> pieces,
                                 MonotonicTime deadline) override {
    return Start(std::move(grant), pieces, deadline, Priority::kOnPath);
  }
  std::unique_ptr<Transfer> ReadWithPriority(std::shared_ptr<const GrantView> grant,
                                             std::span<const ReadPiece> pieces,
                                             MonotonicTime deadline, Priority priority) override {
    return Start(std::move(grant), pieces, deadline, priority);
  }
  std::unique_ptr<Transfer> Write(std::shared_ptr<const GrantView> grant,
                                  std::span<const WritePiece> pieces,
                                  MonotonicTime deadline) override {
    return Start(std::move(grant), pieces, deadline, Priority::kOnPath);
  }
  absl::StatusOr<std::unique_ptr<BufferRegistration>> RegisterBuffer(
      std::span<std::byte> memory) override {
    OASISKV_ASSIGN_OR_RETURN(std::shared_ptr<Region> region, engine_->AddRegion(memory));
    return std::make_unique<VerbsBuffer>(engine_, std::move(region));
  }
  absl::StatusOr<std::unique_ptr<BufferRegistration>> RegisterDeviceBuffer(
      const DeviceBuffer& memory) override {
    OASISKV_ASSIGN_OR_RETURN(std::shared_ptr<Region> region, engine_->AddDeviceRegion(memory));
    return std::make_unique<VerbsBuffer>(engine_, std::move(region));
  }
  void FenceWriter(GrantId grant) override {
    // When writes may be adrift in the network the promise cannot be given; the end of this
    // connection stands in for it.
    if (engine_->CloseGate(grant)) control_->Fence(connection_id(), grant);
  }
  absl::Status Health() override { return engine_->Health(); }
  absl::string_view fabric() const override { return "verbs"; }
  ConnectionId connection_id() const override { return engine_->server().connection; }
  std::string Describe() const override { return engine_->Describe(); }
  ConnectionStats Stats() const override { return engine_->Stats(); }

 private:
  template <typename Piece>
  std::unique_ptr<Transfer> Start(std::shared_ptr<const GrantView> grant,
                                  std::span<const Piece> pieces, MonotonicTime deadline,
                                  Priority priority);
  template <typename Piece>
  absl::Status Check(const GrantView* grant, std::span<const Piece> pieces, MonotonicTime now,
                     MonotonicTime deadline) const;
  template <typename Piece>
  absl::Status CheckAddresses(const GrantView& grant, std::span<const Piece> pieces) const;
  absl::Status CheckWordSlot(const GrantView& grant) const;
  template <typename Piece>
  bool AllGood(const GrantView& grant, std::span<const Piece> pieces) const;
  template <typename Piece>
  void Hand(const std::shared_ptr<Batch>& batch, std::span<const Piece> pieces,
            std::vector<Stretch>& parcel);

  const Access access_;
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<ControlPlane> control_;
  uint64_t smallest_arena_ = std::numeric_limits<uint64_t>::max();
};

// What CheckPieces and CheckAddresses ask of a piece, in one small loop. False says only that they
// are to be asked.
template <typename Piece>
bool VerbsConnection::AllGood(const GrantView& grant, std::span<const Piece> pieces) const {
  const FrameAddress* const frames = grant.frames.data();
  const uint64_t blocks = grant.frames.size();
  const uint64_t frame_bytes = grant.frame_bytes;
  const uint64_t arenas = engine_->server().arenas.size();
  if (frame_bytes > smallest_arena_) return false;
  const uint64_t last_begin = smallest_arena_ - frame_bytes;
  for (const Piece& piece : pieces) {
    const RemoteRange& range = RemoteOf(piece);
    if (range.block >= blocks || range.length == 0 || LocalOf(piece) == nullptr ||
        uint64_t{range.offset} + range.length > frame_bytes) {
      return false;
    }
    const FrameAddress& frame = frames[range.block];
    if (frame.arena.value() >= arenas || frame.offset > last_begin) return false;
  }
  return true;
}

// Every frame lies in an arena that the daemon named: the device would refuse the rest, but by
// breaking the connection. Looks at the pieces' frames or at all of them, whichever are fewer.
template <typename Piece>
absl::Status VerbsConnection::CheckAddresses(const GrantView& grant,
                                             std::span<const Piece> pieces) const {
  const ServerHello& server = engine_->server();
  const bool by_piece = pieces.size() < grant.frames.size();
  for (size_t i = 0; i < (by_piece ? pieces.size() : grant.frames.size()); ++i) {
    const size_t block = by_piece ? RemoteOf(pieces[i]).block : i;
    const FrameAddress frame = grant.frames[block];
    const uint64_t arena =
        frame.arena.value() < server.arenas.size() ? server.arenas[frame.arena.value()].bytes : 0;
    if (frame.offset > arena || grant.frame_bytes > arena - frame.offset) {
      return MakeError(ErrorCode::kOutOfRange,
                       absl::StrCat("block ", block, " of the grant lies at ", frame.offset,
                                    " in arena ", frame.arena.value(), " of ", arena, " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status VerbsConnection::CheckWordSlot(const GrantView& grant) const {
  const ServerHello& server = engine_->server();
  if (grant.word_slot.value() >= server.words.bytes / sizeof(uint64_t)) {
    return MakeError(ErrorCode::kOutOfRange,
                     absl::StrCat("the grant's word has number ", grant.word_slot.value(), " of ",
                                  server.words.bytes / sizeof(uint64_t)));
  }
  return absl::OkStatus();
}

template <typename Piece>
absl::Status VerbsConnection::Check(const GrantView* grant, std::span<const Piece> pieces,
                                    MonotonicTime now, MonotonicTime deadline) const {
  constexpr bool kWrites = AccessOf(static_cast<const Piece*>(nullptr)) == Access::kWrite;
  if (grant == nullptr) return MakeError(ErrorCode::kInvalidArgument, "a batch without a grant");
  if ((grant->access == Access::kWrite) != kWrites) {
    return MakeError(ErrorCode::kPermissionDenied,
                     kWrites ? "a write under a reader's grant; open the sequence to write"
                             : "a read under a writer's grant; attach the sequence to read");
  }
  if ((access_ == Access::kWrite) != kWrites) {
    return MakeError(
        ErrorCode::kPermissionDenied,
        kWrites ? "this verbs connection was made for reading; connect with Access::kWrite"
                : "this verbs connection was made for writing; connect with Access::kRead");
  }
  if (pieces.size() >= grant->frames.size() || !AllGood(*grant, pieces)) {
    OASISKV_RETURN_IF_ERROR(CheckPieces(*grant, pieces));
    OASISKV_RETURN_IF_ERROR(CheckAddresses(*grant, pieces));
  }
  OASISKV_RETURN_IF_ERROR(CheckWordSlot(*grant));
  if (now >= deadline) {
    return MakeError(ErrorCode::kDeadlineExceeded, "the batch's deadline had passed at its start");
  }
  return absl::OkStatus();
}

template <typename Piece>
std::unique_ptr<Transfer> VerbsConnection::Start(std::shared_ptr<const GrantView> grant,
                                                 std::span<const Piece> pieces,
                                                 MonotonicTime deadline, Priority priority) {
  constexpr Access kAccess = AccessOf(static_cast<const Piece*>(nullptr));
  const MonotonicTime now = Clock::Real().Now();
  const absl::Status status = Check(grant.get(), pieces, now, deadline);
  auto batch = std::make_shared<Batch>(kAccess, priority, std::move(grant), deadline, now);
  std::vector<Stretch> parcel;
  if (!status.ok()) {
    engine_->Refuse(batch, pieces.size(), status);
  } else if (engine_->Open(batch, pieces.size(), parcel)) {
    Hand(batch, pieces, parcel);
  }
  return std::make_unique<VerbsTransfer>(engine_, std::move(batch));
}

// Runs are made while those before them are on their way already, and never more than a few parcels
// ahead of the device.
template <typename Piece>
void VerbsConnection::Hand(const std::shared_ptr<Batch>& batch, std::span<const Piece> pieces,
                           std::vector<Stretch>& parcel) {
  const ServerHello& server = engine_->server();
  RunIterator<Piece> runs(*batch->grant, pieces, FrameSpan::kAcrossFrames);
  Run<Piece> run;
  const RemoteMemory* const arenas = server.arenas.data();
  size_t left = pieces.size();
  do {
    parcel.resize(std::min(left, kParcelStretches));
    size_t count = 0;
    for (Stretch& stretch : parcel) {
      if (!runs.Next(run)) break;
      const RemoteMemory& arena = arenas[run.address.arena.value()];
      stretch.remote = arena.address + run.address.offset;
      stretch.bytes = run.bytes;
      stretch.local = const_cast<std::byte*>(run.local);
      stretch.key = arena.key;
      left -= run.pieces;
      ++count;
    }
    parcel.resize(count);
    if (!engine_->AddParcel(batch, parcel, left == 0)) return;
  } while (left > 0);
}

}  // namespace
}  // namespace oasiskv::fabric::verbs

namespace oasiskv::fabric {

absl::StatusOr<std::unique_ptr<Connection>> ConnectVerbs(const VerbsConnectOptions& options,
                                                         std::shared_ptr<ControlPlane> control) {
  OASISKV_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Engine> made, verbs::Engine::Create(options));
  std::shared_ptr<verbs::Engine> engine = std::move(made);
  OASISKV_ASSIGN_OR_RETURN(const std::string answer,
                           control->Accept(verbs::Serialize(engine->Hello())));
  OASISKV_ASSIGN_OR_RETURN(const verbs::ServerHello hello, verbs::ParseServerHello(answer));
  if (absl::Status status = engine->Start(hello); !status.ok()) {
    control->Close(hello.connection);
    return status;
  }
  return std::make_unique<verbs::VerbsConnection>(options.access, std::move(engine),
                                                  std::move(control));
}

}  // namespace oasiskv::fabric
