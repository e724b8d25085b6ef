#include "common/fabric/verbs/client/poster.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

// What each priority may fill of the window, in quarters.
constexpr std::array<uint32_t, 3> kShareQuarters = {4, 3, 2};
// What one work request moves at most, so that a large stretch holds up nobody for long.
constexpr uint64_t kMaxRequestBytes = 256 << 10;
// On the wire: the base header and the one that names address, key and length.
constexpr uint64_t kRequestHeaderBytes = 28;
// A request is not cut shorter than this to fill the rest of a bounce area.
constexpr uint64_t kMinCutBytes = 4096;
// Memory of parcels that are done, kept for the next.
constexpr size_t kMaxSpares = 2 * kMaxParcels;

}  // namespace

Poster::Poster(const Link& link, Traffic& flight, const RegionTable& regions)
    : link_(link), traffic_(flight), regions_(regions) {
  for (uint32_t i = 0; i < kChunkRequests; ++i) {
    list_[i].next = i + 1 < kChunkRequests ? &list_[i + 1] : nullptr;
    list_[i].sg_list = &pieces_[i];
    list_[i].num_sge = 1;
    list_[i].opcode = list_opcode_;
  }
}

void Poster::Enqueue(const std::shared_ptr<Batch>& batch) {
  if (std::exchange(batch->queued, true)) return;
  queues_[static_cast<size_t>(batch->priority)].push_back(batch);
}

void Poster::Clear() {
  for (auto& queue : queues_) queue.clear();
}

void Poster::TakeSpare(std::vector<Stretch>& parcel) {
  if (spares_.empty()) return;
  parcel = std::move(spares_.back());
  spares_.pop_back();
}

absl::Status Poster::Pump() {
  if (!traffic_.lost.ok()) return absl::OkStatus();
  const auto window = static_cast<uint32_t>(link_.window() * traffic_.pairs.size());
  for (size_t priority = 0; priority < queues_.size(); ++priority) {
    auto& queue = queues_[priority];
    const uint32_t limit = std::max(1u, window * kShareQuarters[priority] / 4);
    while (!queue.empty()) {
      if (Batch& first = *queue.front(); first.Over() || first.parcels.empty()) {
        first.queued = false;
        queue.pop_front();
        continue;
      }
      // A lower priority would find no more room than this one.
      if (traffic_.outstanding >= limit) return absl::OkStatus();
      const std::optional<uint32_t> pair = traffic_.FreestPair(link_.window());
      if (!pair.has_value()) return absl::OkStatus();
      const uint32_t room = std::min(link_.window() - traffic_.pairs[*pair].outstanding,
                                     limit - traffic_.outstanding);
      const std::shared_ptr<Batch> batch = queue.front();
      Chunk* const chunk = FillChunk(*batch, *pair, room);
      if (chunk == nullptr) return absl::OkStatus();
      OASISKV_RETURN_IF_ERROR(PostChunk(*chunk, batch));
      if (batch->parcels.empty()) {
        batch->queued = false;
        queue.pop_front();
      } else if (queue.size() > 1) {
        queue.pop_front();
        queue.push_back(batch);
      }
    }
  }
  return absl::OkStatus();
}

// Null when there is no room: for a chunk, for bytes in the window, or in the bounce areas.
Chunk* Poster::FillChunk(Batch& batch, uint32_t pair, uint32_t room) {
  Chunk* chunk = traffic_.Take(ChunkKind::kData, pair);
  if (chunk == nullptr) return nullptr;
  const uint32_t most = std::min(kChunkRequests, room);
  bool plain = true;
  while (chunk->count < most) {
    if (plain && FillPlain(batch, *chunk, most)) continue;
    plain = chunk->count == 0;  // from the second on it is known where the buffers lie
    if (!NextRequest(batch, *chunk)) break;
  }
  if (chunk->count > 0) return chunk;
  traffic_.Give(*chunk);
  return nullptr;
}

absl::Status Poster::PostChunk(Chunk& chunk, const std::shared_ptr<Batch>& batch) {
  chunk.batch = batch;
  ++batch->chunks;
  if (chunk.direct) ++batch->direct_chunks;
  batch->pairs_used |= uint32_t{1} << chunk.pair;
  traffic_.bytes += chunk.bytes;
  traffic_.stats.requests += chunk.count;
  traffic_.stats.request_bytes += chunk.count * kRequestHeaderBytes;
  if (batch->AllPosted()) {
    batch->posted = Clock::Real().Now();
    batch->times.post = batch->posted - batch->prepared;
  }
  return Post(chunk, batch->access == Access::kRead ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE);
}

// The plain case, done tightly since it is what a fetch of many entries consists of: whole
// stretches of the first parcel, as many as a chunk takes, whose buffers all lie in the region that
// the last one lay in. False when they do not, or are too long: NextRequest is for that.
bool Poster::FillPlain(Batch& batch, Chunk& chunk, uint32_t most) {
  if (batch.parcels.empty() || batch.region == nullptr || batch.next_offset != 0) return false;
  const Region& region = *batch.region;
  const uint32_t key = region.key->lkey;
  std::vector<Stretch>& parcel = batch.parcels.front();
  const Stretch* const first = parcel.data() + batch.next;
  const Stretch* const end =
      first + std::min<size_t>(parcel.size() - batch.next, most - chunk.count);
  // As AddRequest. Two small loops, each with all it needs in registers: what they span, then the
  // work requests.
  const std::byte* low = first->local;
  const std::byte* high = low;
  uint64_t longest = 0;
  uint64_t bytes = 0;
  for (const Stretch* one = first; one != end; ++one) {
    low = std::min<const std::byte*>(low, one->local);
    high = std::max<const std::byte*>(high, one->local + one->bytes);
    longest = std::max(longest, one->bytes);
    bytes += one->bytes;
  }
  if (longest > kMaxRequestBytes ||
      traffic_.bytes + chunk.bytes + bytes > link_.options().window_bytes ||
      !region.Holds(low, static_cast<uint64_t>(high - low))) {
    return false;
  }
  const auto filled = static_cast<uint32_t>(end - first);
  std::copy(first, end, chunk.stretches.data() + chunk.count);
  ibv_sge* piece = pieces_.data() + chunk.count;
  ibv_send_wr* work = list_.data() + chunk.count;
  uint64_t id = chunk.id + chunk.count;
  for (const Stretch* one = first; one != end; ++one, ++piece, ++work, ++id) {
    piece->addr = reinterpret_cast<uint64_t>(one->local);
    piece->length = static_cast<uint32_t>(one->bytes);
    piece->lkey = key;
    work->wr_id = id;
    work->wr.rdma.remote_addr = one->remote;
    work->wr.rdma.rkey = one->key;
  }
  chunk.count += filled;
  chunk.bytes += bytes;
  chunk.direct = true;
  if (chunk.regions.empty() || chunk.regions.back() != batch.region) {
    chunk.regions.push_back(batch.region);
  }
  batch.next += filled;
  LeaveFinishedParcel(batch);
  return true;
}

// Any case: long stretches are cut, buffers that are not registered go through an area of our own.
bool Poster::NextRequest(Batch& batch, Chunk& chunk) {
  if (batch.parcels.empty()) return false;
  std::vector<Stretch>& parcel = batch.parcels.front();
  const Stretch& stretch = parcel[batch.next];
  std::byte* const local = stretch.local + batch.next_offset;
  uint64_t bytes = std::min(stretch.bytes - batch.next_offset, kMaxRequestBytes);
  const uint64_t before = traffic_.bytes + chunk.bytes;
  if (before > 0 && before + bytes > link_.options().window_bytes) return false;

  std::byte* bounce = nullptr;
  uint32_t key = 0;
  if (batch.region == nullptr || !batch.region->Holds(local, bytes)) {
    batch.region = regions_.Find(local, bytes);
  }
  if (batch.region != nullptr) {
    key = batch.region->key->lkey;
    chunk.direct = true;
    if (chunk.regions.empty() || chunk.regions.back() != batch.region) {
      chunk.regions.push_back(batch.region);
    }
  } else {
    if (!chunk.area.has_value()) chunk.area = traffic_.bounce.Take();
    if (!chunk.area.has_value()) return false;
    const uint64_t room = BouncePool::kAreaBytes - chunk.bounced;
    if (room < bytes && room < kMinCutBytes) return false;
    bytes = std::min(bytes, room);
    bounce = traffic_.bounce.area(*chunk.area) + chunk.bounced;
    key = traffic_.bounce.key();
    chunk.bounced += bytes;
    if (batch.access == Access::kWrite) std::memcpy(bounce, local, bytes);
  }
  AddRequest(chunk, {stretch.remote + batch.next_offset, bytes, local, stretch.key}, bounce, key);
  chunk.bytes += bytes;
  batch.next_offset += bytes;
  if (batch.next_offset < stretch.bytes) return true;
  batch.next_offset = 0;
  ++batch.next;
  LeaveFinishedParcel(batch);
  return true;
}

void Poster::LeaveFinishedParcel(Batch& batch) {
  if (batch.next < batch.parcels.front().size()) return;
  batch.next = 0;
  if (spares_.size() < kMaxSpares) spares_.push_back(std::move(batch.parcels.front()));
  batch.parcels.erase(batch.parcels.begin());
  batch.changed.NotifyAll();  // room for a parcel
}

// To the chunk that is made just now: in its own memory, and as a work request in `list_`, where
// what is the same in every list was filled in when the engine was made.
void Poster::AddRequest(Chunk& chunk, const Stretch& stretch, std::byte* bounce,
                        uint32_t local_key) {
  const uint32_t i = chunk.count++;
  chunk.stretches[i] = stretch;
  if (bounce != nullptr) {
    chunk.bounces[i] = bounce;
    chunk.bounced_requests |= uint32_t{1} << i;
  }
  pieces_[i] = {reinterpret_cast<uint64_t>(bounce != nullptr ? bounce : stretch.local),
                static_cast<uint32_t>(stretch.bytes), local_key};
  ibv_send_wr& work = list_[i];
  work.wr_id = chunk.id + i;
  work.wr.rdma.remote_addr = stretch.remote;
  work.wr.rdma.rkey = stretch.key;
}

// Hands a chunk over as one list, which rings the device once.
absl::Status Poster::Post(Chunk& chunk, ibv_wr_opcode opcode) {
  if (std::exchange(list_opcode_, opcode) != opcode) {
    for (ibv_send_wr& work : list_) work.opcode = opcode;
  }
  ibv_send_wr& last = list_[chunk.count - 1];
  ibv_send_wr* const after = std::exchange(last.next, nullptr);
  last.send_flags = IBV_SEND_SIGNALED;
  Pair& pair = traffic_.pairs[chunk.pair];
  pair.outstanding += chunk.count;
  traffic_.outstanding += chunk.count;
  ibv_send_wr* refused = nullptr;
  const int error = ::ibv_post_send(pair.handle.get(), list_.data(), &refused);
  last.next = after;
  last.send_flags = 0;
  if (error == 0) return absl::OkStatus();
  // The part that was taken comes back flushed, or is given up with the queue pair: see Sweeper.
  return MakeError(ErrorCode::kInternal, absl::StrCat("the RDMA device '", link_.port().device,
                                                      "' takes no work: ", std::strerror(error)));
}

absl::Status Poster::PostWordRead(ChunkKind kind, const std::shared_ptr<Batch>& batch,
                                  WordSlot slot, uint32_t pair) {
  Chunk* chunk = traffic_.Take(kind, pair);
  if (chunk == nullptr) return absl::OkStatus();  // all places are in use
  std::byte* const into = link_.word(static_cast<uint64_t>(chunk - traffic_.chunks.data()));
  const RemoteMemory& words = link_.server().words;
  chunk->batch = batch;
  AddRequest(*chunk,
             {words.address + slot.value() * sizeof(uint64_t), sizeof(uint64_t), into, words.key},
             nullptr, link_.words_key());
  return Post(*chunk, IBV_WR_RDMA_READ);
}

// A writer's word is read on every queue pair that carried writes: the answer to a read comes after
// what was written before it on the same queue pair is in memory, and says nothing of the others.
absl::Status Poster::PostWordReads() {
  checks_.swap(traffic_.to_check);
  for (std::shared_ptr<Batch>& batch : checks_) {
    if (batch->Over()) continue;
    uint32_t pairs = batch->access == Access::kWrite ? batch->pairs_used : 0;
    if (pairs == 0) {
      const std::optional<uint32_t> any = traffic_.FreestPair(link_.depth());
      if (any.has_value()) pairs = uint32_t{1} << *any;
    }
    bool room = pairs != 0 && traffic_.free_chunks.size() >= traffic_.pairs.size();
    for (uint32_t i = 0; i < traffic_.pairs.size(); ++i) {
      if ((pairs >> i & 1) != 0 && traffic_.pairs[i].outstanding >= link_.depth()) room = false;
    }
    if (!room) {
      traffic_.to_check.push_back(std::move(batch));  // later
      continue;
    }
    for (uint32_t i = 0; i < traffic_.pairs.size(); ++i) {
      if ((pairs >> i & 1) == 0) continue;
      ++batch->word_reads;
      absl::Status status = PostWordRead(ChunkKind::kWord, batch, batch->grant->word_slot, i);
      if (status.ok()) continue;
      checks_.clear();
      return status;
    }
  }
  checks_.clear();
  return absl::OkStatus();
}

absl::Status Poster::PostKeepalive() {
  const std::optional<uint32_t> pair = traffic_.FreestPair(link_.depth());
  if (!pair.has_value()) return absl::OkStatus();
  return PostWordRead(ChunkKind::kKeepalive, nullptr, WordSlot(0), *pair);
}

}  // namespace oasiskv::fabric::verbs
