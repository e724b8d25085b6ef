// Open, Extend, Commit and Seal.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "server/core/kv_core.h"

namespace oasiskv::server {
namespace {

absl::Status Bad(const std::string& text) { return MakeError(ErrorCode::kInvalidArgument, text); }

absl::Status CheckSpec(const OpenSpec& spec, const CoreOptions& options) {
  OASISKV_RETURN_IF_ERROR(CheckNames(spec.name, spec.identity, 1));
  OASISKV_RETURN_IF_ERROR(spec.geometry.Validate());
  if (spec.blocks > options.max_blocks_per_sequence) {
    return Bad(absl::StrFormat("blocks=%d exceeds --max_blocks_per_sequence=%d", spec.blocks,
                               options.max_blocks_per_sequence));
  }
  return absl::OkStatus();
}

// [first, first + count) within `limit`, without wrapping.
bool Inside(uint32_t first, uint32_t count, uint32_t limit) {
  return uint64_t{first} + count <= limit;
}

absl::Status CheckCommit(const Sequence& sequence, std::span<const LayerBlocks> ranges,
                         std::span<const uint32_t> checksums) {
  const Geometry& g = sequence.body->geometry;
  if (ranges.empty()) return Bad("commit without ranges; name at least one");
  uint64_t covered = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const LayerBlocks& r = ranges[i];
    if (r.layer_count == 0 || r.block_count == 0) {
      return Bad(absl::StrFormat("commit range %d is empty (%d layers, %d blocks)", i,
                                 r.layer_count, r.block_count));
    }
    if (!Inside(r.first_layer, r.layer_count, g.layers) ||
        !Inside(r.first_block, r.block_count, sequence.blocks)) {
      return MakeError(
          ErrorCode::kOutOfRange,
          absl::StrFormat("commit range %d: layers [%d, %d) of %d, blocks [%d, %d) of %d", i,
                          r.first_layer, uint64_t{r.first_layer} + r.layer_count, g.layers,
                          r.first_block, uint64_t{r.first_block} + r.block_count, sequence.blocks));
    }
    covered += uint64_t{r.layer_count} * r.block_count;
  }
  const uint64_t whole = uint64_t{g.layers} * sequence.blocks;
  if (covered > whole) {
    return Bad(
        absl::StrFormat("commit ranges overlap: they name %d layer-blocks, the sequence has "
                        "%d; name each once",
                        covered, whole));
  }
  const uint64_t needed = sequence.with_checksums ? covered * g.kv_heads : 0;
  if (checksums.size() != needed) {
    return Bad(absl::StrFormat("%d checksums given, %d needed (%s)", checksums.size(), needed,
                               sequence.with_checksums
                                   ? "one for every entry of the ranges"
                                   : "the sequence was opened without checksums"));
  }
  return absl::OkStatus();
}

// Where the daemon sees each write, what was not written is not committed: it would show a reader
// what the frame held before (rule 7 of server/lease/README.md).
absl::Status CheckWritten(const Sequence& sequence, std::span<const LayerBlocks> ranges) {
  if (!sequence.sees_writes) return absl::OkStatus();
  const Geometry& g = sequence.body->geometry;
  const uint32_t entries = g.layer_entries_bytes();
  const uint32_t summaries = g.layer_summaries_bytes();
  for (const LayerBlocks& r : ranges) {
    const uint32_t end = r.first_layer + r.layer_count;
    const uint32_t base = g.summaries_offset();
    for (uint32_t b = r.first_block; b < r.first_block + r.block_count; ++b) {
      const bool whole =
          sequence.written.Covers(b, r.first_layer * entries, end * entries) &&
          sequence.written.Covers(b, base + r.first_layer * summaries, base + end * summaries);
      if (whole) continue;
      return MakeError(
          ErrorCode::kNotCommitted,
          absl::StrFormat("commit of layers [%d, %d) of block %d of \"%s\": not all of their "
                          "entries and summaries were written; write them first, in pieces that "
                          "touch (at most %d separate ones a block are kept)",
                          r.first_layer, end, b, sequence.body->name, WrittenMap::kMostPieces));
    }
  }
  return absl::OkStatus();
}

// Stores the checksums of what is not committed yet; committed entries cannot change.
void StoreChecksums(Sequence& sequence, std::span<const LayerBlocks> ranges,
                    std::span<const uint32_t> checksums) {
  const Geometry& g = sequence.body->geometry;
  size_t from = 0;
  for (const LayerBlocks& r : ranges) {
    for (uint32_t b = r.first_block; b < r.first_block + r.block_count; ++b) {
      for (uint32_t l = r.first_layer; l < r.first_layer + r.layer_count; ++l) {
        if (sequence.committed.FirstMissing(b, l, l)) {
          std::copy_n(checksums.begin() + static_cast<ptrdiff_t>(from), g.kv_heads,
                      sequence.checksums->begin() +
                          static_cast<ptrdiff_t>((size_t{b} * g.layers + l) * g.kv_heads));
        }
        from += g.kv_heads;
      }
    }
    sequence.committed.Set(r);
  }
}

absl::Status CheckTopK(const FirstTopK& topk, const Geometry& g, uint32_t blocks) {
  const uint64_t needed = uint64_t{g.layers} * g.kv_heads * topk.k * sizeof(int32_t);
  if (topk.indices.size() != needed) {
    return Bad(absl::StrFormat("first_topk has %d bytes; %d layers x %d heads x k=%d int32 take %d",
                               topk.indices.size(), g.layers, g.kv_heads, topk.k, needed));
  }
  for (size_t i = 0; i < topk.indices.size() / sizeof(int32_t); ++i) {
    int32_t block = 0;
    std::memcpy(&block, topk.indices.data() + i * sizeof(block), sizeof(block));
    if (block < -1 || block >= static_cast<int64_t>(blocks)) {
      return MakeError(ErrorCode::kOutOfRange,
                       absl::StrFormat("first_topk[layer %d][head %d][%d] is block %d; the "
                                       "sequence has %d (-1: none)",
                                       i / topk.k / g.kv_heads, i / topk.k % g.kv_heads, i % topk.k,
                                       block, blocks));
    }
  }
  return absl::OkStatus();
}

// Not 0.
uint64_t SealHash(uint64_t token_count, const FirstTopK& topk, const std::string& blob) {
  return absl::HashOf(token_count, topk.k, topk.indices, blob) | 1;
}

}  // namespace

absl::StatusOr<Grant*> KvCore::FindWriter(GrantKey key, SequenceOp op) {
  OASISKV_ASSIGN_OR_RETURN(Grant * grant,
                           grants_->Find(key.id, key.epoch, GrantTable::AfterSeal::kWrongState));
  if (!grant->writer()) {
    return MakeError(ErrorCode::kPermissionDenied,
                     absl::StrFormat("grant %x is a reader's: no %s", key.id.value(), OpName(op)));
  }
  // A seal still has to be checked; the state moves there.
  SequenceState state = grant->sequence->state;
  OASISKV_RETURN_IF_ERROR(Advance(state, op, grant->sequence->body->name));
  return grant;
}

Grant* KvCore::FindRepeated(CallToken token, fabric::Access access, const std::string& name,
                            const Identity& identity) const {
  Grant* grant = grants_->FindToken(token);
  if (grant == nullptr || grant->phase != Grant::Phase::kLive || grant->access != access ||
      grant->body->name != name || grant->body->identity != identity) {
    return nullptr;
  }
  return grant;
}

void KvCore::Answer(Grant& grant, Duration lease) {
  ++grant.answers;
  grants_->Prolong(grant, served_.At(clock_.Now()) + lease);
}

std::optional<OpenResult> KvCore::AnswerRepeatedOpen(const OpenSpec& spec, Duration lease) {
  Grant* grant = FindRepeated(spec.token, fabric::Access::kWrite, spec.name, spec.identity);
  if (grant == nullptr) return std::nullopt;
  Answer(*grant, lease);
  return OpenResult{grant->body->id, Describe(*grant, lease)};
}

Grant* KvCore::FindAbandoned(const OpenSpec& spec) const {
  Grant* grant = FindRepeated(spec.token, fabric::Access::kWrite, spec.name, spec.identity);
  return grant != nullptr && grant->connection != spec.connection ? grant : nullptr;
}

uint32_t KvCore::Abandon(Grant& grant, Ending& ending) {
  // Its holder never had it, so that no write can be on its way.
  grants_->Fenced(grant.connection, grant.id);
  ++counters_.sequences_aborted;
  return AbortSequence(*grant.sequence, ending);
}

uint32_t KvCore::AbandonOpen(CallToken token) {
  Ending ending;
  uint32_t revoked = 0;
  {
    MutexLock lock(mutex_);
    Grant* grant = grants_->FindToken(token);
    if (grant == nullptr || !grant->writer()) return 0;
    if (grant->phase == Grant::Phase::kLive) {
      revoked = Abandon(*grant, ending);
    } else {
      grants_->Fenced(grant->connection, grant->id);
    }
  }
  Finish(ending);
  return revoked;
}

absl::StatusOr<OpenResult> KvCore::Open(const OpenSpec& spec) {
  OASISKV_RETURN_IF_ERROR(CheckSpec(spec, options_));
  OASISKV_RETURN_IF_ERROR(CheckAttachable(spec.geometry, spec.checksums, spec.blocks, 0));
  OASISKV_ASSIGN_OR_RETURN(const Duration lease, LeaseOf(spec.lease));
  auto body = std::make_shared<SequenceBody>();
  body->name = spec.name;
  body->identity = spec.identity;
  body->geometry = spec.geometry;
  NewFrames fresh;
  Ending ending;
  {
    MutexLock lock(mutex_);
    if (Grant* grant = FindAbandoned(spec)) Abandon(*grant, ending);
  }
  Finish(ending);
  {
    MutexLock lock(mutex_);
    if (auto repeated = AnswerRepeatedOpen(spec, lease)) return *std::move(repeated);
    absl::Status status = CheckOpen(spec);
    if (status.ok()) status = Allocate(*body, spec.blocks, fresh);
    if (!status.ok()) return Refused(status);
    if (fresh.dirty.empty()) return OpenLocked(spec, lease, body, fresh);
  }
  Clear(fresh.dirty);
  MutexLock lock(mutex_);
  return OpenLocked(spec, lease, body, fresh);
}

absl::Status KvCore::CheckOpen(const OpenSpec& spec) const {
  if (draining_) return MakeError(ErrorCode::kDraining, "the daemon drains; open on another one");
  if (spec.connection != ConnectionId() && !grants_->IsOpen(spec.connection)) {
    return MakeError(ErrorCode::kPeerLost,
                     "writer_connection names no connection that can write and is still open; "
                     "connect again");
  }
  OASISKV_RETURN_IF_ERROR(sequences_.CheckInsert(spec.identity.tenant, spec.name));
  return grants_->CheckRoom();
}

absl::StatusOr<OpenResult> KvCore::OpenLocked(const OpenSpec& spec, Duration lease,
                                              const std::shared_ptr<SequenceBody>& body,
                                              NewFrames& fresh) {
  // Again: the mutex was free while frames were cleared.
  if (auto repeated = AnswerRepeatedOpen(spec, lease)) {
    allocator_.Unref(fresh.frames);
    return *std::move(repeated);
  }
  if (absl::Status status = CheckOpen(spec); !status.ok()) {
    allocator_.Unref(fresh.frames);
    return Refused(status);
  }
  body->frames = std::move(fresh.frames);
  Sequence& sequence = sequences_.Insert(body);
  sequence.with_checksums = spec.checksums;
  sequence.sees_writes = spec.connection == ConnectionId();
  const uint64_t checksum_bytes = ChecksumBytes(sequence, spec.blocks);
  if (absl::Status s = sequences_.Charge(sequence, checksum_bytes); !s.ok()) {
    sequences_.Erase(sequence);
    allocator_.Unref(body->frames);
    return Refused(s);
  }
  sequence.checksums->resize(checksum_bytes / sizeof(uint32_t));
  sequence.blocks = spec.blocks;
  sequence.committed.Resize(spec.blocks);
  sequence.opened = clock_.Now();
  Grant want;
  want.access = fabric::Access::kWrite;
  want.sequence = &sequence;
  want.frames = spec.blocks;
  want.head_count = spec.geometry.kv_heads;
  want.holder = spec.holder.substr(0, kMaxNameBytes);
  want.connection = spec.connection;
  want.expires = served_.At(sequence.opened) + lease;
  want.token = spec.token;
  const Grant& grant = grants_->Give(std::move(want));
  sequence.writer = grant.id;
  ++counters_.opens;
  return OpenResult{body->id, Describe(grant, lease)};
}

absl::StatusOr<ExtendResult> KvCore::Extend(GrantKey writer, uint32_t first_block,
                                            uint32_t blocks) {
  NewFrames fresh;
  {
    MutexLock lock(mutex_);
    uint32_t missing = 0;
    absl::StatusOr<Grant*> grant = CheckExtend(writer, first_block, blocks, missing);
    absl::Status status = grant.status();
    if (status.ok()) {
      // The grant may end while Allocate waits.
      const std::shared_ptr<const SequenceBody> body = (*grant)->body;
      status = Allocate(*body, missing, fresh);
    }
    if (!status.ok()) return Refused(status);
    if (fresh.dirty.empty()) return ExtendLocked(writer, first_block, blocks, fresh);
  }
  Clear(fresh.dirty);
  MutexLock lock(mutex_);
  return ExtendLocked(writer, first_block, blocks, fresh);
}

absl::StatusOr<Grant*> KvCore::CheckExtend(GrantKey writer, uint32_t first_block, uint32_t blocks,
                                           uint32_t& missing) {
  OASISKV_ASSIGN_OR_RETURN(Grant * grant, FindWriter(writer, SequenceOp::kExtend));
  const Sequence& sequence = *grant->sequence;
  if (blocks == 0) return Bad("extend by 0 blocks; ask for at least 1");
  if (!Inside(first_block, blocks, options_.max_blocks_per_sequence)) {
    return Bad(
        absl::StrFormat("extend by %d blocks: with the %d there are it exceeds "
                        "--max_blocks_per_sequence=%d",
                        blocks, first_block, options_.max_blocks_per_sequence));
  }
  missing =
      Inside(first_block, blocks, sequence.blocks) ? 0 : first_block + blocks - sequence.blocks;
  if (missing == 0) return grant;
  if (first_block > sequence.blocks) {
    return MakeError(ErrorCode::kWrongState,
                     absl::StrFormat("extend of \"%s\" from block %d: it has %d blocks; give that "
                                     "number as expected_first_block",
                                     sequence.body->name, first_block, sequence.blocks));
  }
  if (grant->fenced && grant->connection != ConnectionId()) {
    return MakeError(ErrorCode::kWrongState,
                     absl::StrFormat("the writer of \"%s\" has fenced its grant: no more frames",
                                     sequence.body->name));
  }
  OASISKV_RETURN_IF_ERROR(CheckAttachable(sequence.body->geometry, sequence.with_checksums,
                                          sequence.blocks + missing, 0));
  return grant;
}

absl::StatusOr<ExtendResult> KvCore::ExtendLocked(GrantKey writer, uint32_t first_block,
                                                  uint32_t blocks, NewFrames& fresh) {
  // Again: the mutex was free while frames were cleared.
  uint32_t missing = 0;
  absl::StatusOr<Grant*> grant = CheckExtend(writer, first_block, blocks, missing);
  absl::Status status = grant.status();
  if (status.ok() && missing > 0 && missing != fresh.frames.size()) {
    status = MakeError(ErrorCode::kWrongState,
                       "another extend of the same sequence ran at the same time; repeat it");
  }
  if (status.ok() && missing > 0) {
    Sequence& sequence = *(*grant)->sequence;
    status = sequences_.Charge(sequence, ChecksumBytes(sequence, missing));
  }
  if (!status.ok() || missing == 0) allocator_.Unref(fresh.frames);
  if (!status.ok()) return Refused(status);
  Sequence& sequence = *(*grant)->sequence;
  std::vector<Frame>& frames = sequence.body->frames;
  if (missing > 0) {
    const size_t size = frames.size() + missing;
    // Many small Extends stay linear.
    if (frames.capacity() < size) frames.reserve(size + size / 4);
    frames.insert(frames.end(), fresh.frames.begin(), fresh.frames.end());
    sequence.blocks += missing;
    sequence.committed.Resize(sequence.blocks);
    sequence.checksums->resize(ChecksumBytes(sequence, sequence.blocks) / sizeof(uint32_t));
    grants_->Grow(**grant, sequence.blocks);
  }
  return ExtendResult{first_block, Addresses(std::span(frames).subspan(first_block, blocks))};
}

absl::Status KvCore::Commit(GrantKey writer, std::span<const LayerBlocks> ranges,
                            std::span<const uint32_t> checksums) {
  MutexLock lock(mutex_);
  absl::Status status = CommitLocked(writer, ranges, checksums);
  if (!status.ok()) return Refused(status);
  ++counters_.commits;
  return status;
}

absl::Status KvCore::CommitLocked(GrantKey writer, std::span<const LayerBlocks> ranges,
                                  std::span<const uint32_t> checksums) {
  OASISKV_ASSIGN_OR_RETURN(Grant * grant, FindWriter(writer, SequenceOp::kCommit));
  Sequence& sequence = *grant->sequence;
  OASISKV_RETURN_IF_ERROR(CheckCommit(sequence, ranges, checksums));
  OASISKV_RETURN_IF_ERROR(CheckWritten(sequence, ranges));
  if (sequence.with_checksums) {
    StoreChecksums(sequence, ranges, checksums);
  } else {
    for (const LayerBlocks& r : ranges) sequence.committed.Set(r);
  }
  return absl::OkStatus();
}

absl::Status KvCore::Seal(GrantKey writer, uint64_t token_count, FirstTopK first_topk,
                          std::string blob) {
  const uint64_t hash = SealHash(token_count, first_topk, blob);
  Ending ending;
  {
    MutexLock lock(mutex_);
    if (grants_->SealedAs(writer.id, writer.epoch) == hash) return absl::OkStatus();  // a repeat
    absl::Status status = SealLocked(writer, token_count, first_topk, blob, hash, ending);
    if (!status.ok()) return Refused(status);
    ++counters_.seals;
  }
  Finish(ending);
  return absl::OkStatus();
}

absl::Status KvCore::SealLocked(GrantKey writer, uint64_t token_count, FirstTopK& first_topk,
                                std::string& blob, uint64_t hash, Ending& ending) {
  OASISKV_ASSIGN_OR_RETURN(Grant * grant, FindWriter(writer, SequenceOp::kSeal));
  Sequence& sequence = *grant->sequence;
  const Geometry& g = sequence.body->geometry;
  if (token_count == 0) return Bad("token_count is 0; abort a sequence that has no tokens");
  if (token_count > uint64_t{sequence.blocks} * g.block_tokens) {
    return MakeError(
        ErrorCode::kOutOfRange,
        absl::StrFormat("token_count=%d: the sequence's %d blocks hold %d tokens", token_count,
                        sequence.blocks, uint64_t{sequence.blocks} * g.block_tokens));
  }
  if (blob.size() > options_.max_blob_bytes) {
    return Bad(absl::StrFormat("blob has %d bytes, --max_blob_bytes=%d", blob.size(),
                               options_.max_blob_bytes));
  }
  const uint32_t needed = g.BlocksFor(token_count);
  for (uint32_t b = 0; b < needed; ++b) {
    if (const auto layer = sequence.committed.FirstMissing(b, 0, g.layers - 1)) {
      return MakeError(ErrorCode::kNotCommitted,
                       absl::StrFormat("seal of \"%s\": block %d of the %d that %d tokens need: "
                                       "layer %d is not committed",
                                       sequence.body->name, b, needed, token_count, *layer));
    }
  }
  OASISKV_RETURN_IF_ERROR(CheckTopK(first_topk, g, needed));
  const uint64_t seal_bytes = first_topk.indices.size() + blob.size();
  OASISKV_RETURN_IF_ERROR(CheckAttachable(g, sequence.with_checksums, needed, seal_bytes));
  OASISKV_RETURN_IF_ERROR(sequences_.Charge(sequence, seal_bytes));

  OASISKV_RETURN_IF_ERROR(Advance(sequence.state, SequenceOp::kSeal, sequence.body->name));
  sequence.token_count = token_count;
  grant->sealed_as = hash;
  sequence.first_topk = std::make_shared<FirstTopK>(std::move(first_topk));
  sequence.blob = std::make_shared<std::string>(std::move(blob));
  sequence.committed.Clear();
  sequence.written.Clear();
  const uint32_t spare = sequence.blocks - needed;
  sequences_.Refund(sequence, ChecksumBytes(sequence, spare));
  sequence.checksums->resize(ChecksumBytes(sequence, needed) / sizeof(uint32_t));
  if (spare > 0) ending.frames.push_back({sequence.body, needed, sequence.blocks});
  sequence.blocks = needed;
  EndGrant(*grant, GrantEnd::kSealed, ending);
  return absl::OkStatus();
}

}  // namespace oasiskv::server
