// The engine's half that hands work requests to the device.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fabric/verbs/engine.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

// Of the window, in quarters, what a priority may fill.
constexpr std::array<uint32_t, 3> kShareQuarters = {4, 3, 2};
// On the wire: the base header and the one that names address, key and length.
constexpr uint64_t kRequestHeaderBytes = 28;
// A request cut shorter than this to fill an area up is not worth its price.
constexpr uint64_t kMinCutBytes = 4096;

}  // namespace

void Engine::Enqueue(const std::shared_ptr<Batch>& batch) {
  if (std::exchange(batch->queued, true)) return;
  queues_[static_cast<size_t>(batch->priority)].push_back(batch);
}

void Engine::Pump() {
  if (!lost_.ok()) return;
  const auto window = static_cast<uint32_t>(window_ * pairs_.size());
  for (size_t priority = 0; priority < queues_.size(); ++priority) {
    auto& queue = queues_[priority];
    const uint32_t limit = std::max(1u, window * kShareQuarters[priority] / 4);
    while (!queue.empty()) {
      std::shared_ptr<Batch> batch = queue.front();
      if (batch->Over() || batch->parcels.empty()) {
        batch->queued = false;
        queue.pop_front();
        continue;
      }
      // A lower priority would find no more room than this one.
      if (outstanding_ >= limit) return;
      const std::optional<uint32_t> pair = FreestPair(window_);
      if (!pair.has_value()) return;
      const uint32_t room = std::min(window_ - pairs_[*pair].outstanding, limit - outstanding_);
      if (!PostChunk(batch, *pair, room)) return;
      queue.pop_front();
      if (batch->parcels.empty()) {
        batch->queued = false;
      } else {
        queue.push_back(std::move(batch));
      }
    }
  }
}

std::optional<uint32_t> Engine::FreestPair(uint32_t limit) {
  std::optional<uint32_t> best;
  for (uint32_t i = 0; i < pairs_.size(); ++i) {
    if (pairs_[i].broken || pairs_[i].outstanding >= limit) continue;
    if (!best.has_value() || pairs_[i].outstanding < pairs_[*best].outstanding) best = i;
  }
  return best;
}

Engine::Chunk* Engine::TakeChunk(ChunkKind kind, uint32_t pair) {
  if (free_chunks_.empty()) return nullptr;
  Chunk& chunk = chunks_[free_chunks_.back()];
  free_chunks_.pop_back();
  chunk.kind = kind;
  chunk.pair = pair;
  return &chunk;
}

void Engine::GiveChunk(Chunk& chunk) {
  if (chunk.area.has_value()) bounce_->Give(*chunk.area);
  ++chunk.generation;
  chunk.count = 0;
  chunk.bytes = chunk.bounced = 0;
  chunk.failed = chunk.direct = false;
  chunk.area.reset();
  chunk.batch.reset();
  chunk.regions.clear();
  free_chunks_.push_back(static_cast<uint32_t>(&chunk - chunks_.data()));
}

// The plain case, done tightly since it is what a fetch of many entries consists of: whole
// stretches of the first parcel whose buffers lie in one registered region.
void Engine::FillPlain(Batch& batch, Chunk& chunk, uint32_t most) {
  if (batch.parcels.empty() || batch.region == nullptr || batch.next_offset != 0) return;
  const Region& region = *batch.region;
  const uint32_t key = region.key->lkey;
  std::vector<Stretch>& parcel = batch.parcels.front();
  const Stretch* const first = parcel.data() + batch.next;
  const Stretch* const end = first + std::min<size_t>(parcel.size() - batch.next, most);
  uint64_t room = options_.window_bytes - std::min(options_.window_bytes, bytes_in_flight_);
  Request* request = chunk.requests.data();
  const Stretch* stretch = first;
  for (; stretch != end; ++stretch, ++request) {
    if (stretch->bytes > std::min(kMaxRequestBytes, room) ||
        !region.Holds(stretch->local, stretch->bytes)) {
      break;
    }
    room -= stretch->bytes;
    chunk.bytes += stretch->bytes;
    request->stretch = *stretch;
    request->bounce = nullptr;
    request->local_key = key;
  }
  if (stretch == first) return;
  chunk.count = static_cast<uint32_t>(stretch - first);
  chunk.direct = true;
  chunk.regions.push_back(batch.region);
  batch.next += chunk.count;
  LeaveFinishedParcel(batch);
}

void Engine::LeaveFinishedParcel(Batch& batch) {
  if (batch.next < batch.parcels.front().size()) return;
  batch.next = 0;
  batch.parcels.pop_front();
  batch.changed.NotifyAll();  // room for a parcel
}

// Any case: long stretches are cut, buffers that are not registered go through an area of our own.
bool Engine::NextRequest(Batch& batch, Chunk& chunk) {
  if (batch.parcels.empty()) return false;
  std::vector<Stretch>& parcel = batch.parcels.front();
  const Stretch& stretch = parcel[batch.next];
  std::byte* const local = stretch.local + batch.next_offset;
  uint64_t bytes = std::min(stretch.bytes - batch.next_offset, kMaxRequestBytes);
  const uint64_t before = bytes_in_flight_ + chunk.bytes;
  if (before > 0 && before + bytes > options_.window_bytes) return false;

  Request& request = chunk.requests[chunk.count];
  if (batch.region == nullptr || !batch.region->Holds(local, bytes)) {
    batch.region = regions_.Find(local, bytes);
  }
  if (batch.region != nullptr) {
    request.bounce = nullptr;
    request.local_key = batch.region->key->lkey;
    chunk.direct = true;
    if (chunk.regions.empty() || chunk.regions.back() != batch.region) {
      chunk.regions.push_back(batch.region);
    }
  } else {
    if (!chunk.area.has_value()) chunk.area = bounce_->Take();
    if (!chunk.area.has_value()) return false;
    const uint64_t room = BouncePool::kAreaBytes - chunk.bounced;
    if (room < bytes && room < kMinCutBytes) return false;
    bytes = std::min(bytes, room);
    request.bounce = bounce_->area(*chunk.area) + chunk.bounced;
    request.local_key = bounce_->key();
    chunk.bounced += bytes;
    if (batch.access == Access::kWrite) std::memcpy(request.bounce, local, bytes);
  }
  request.stretch = {stretch.remote + batch.next_offset, bytes, local, stretch.key};
  ++chunk.count;
  chunk.bytes += bytes;
  batch.next_offset += bytes;
  if (batch.next_offset < stretch.bytes) return true;
  batch.next_offset = 0;
  ++batch.next;
  LeaveFinishedParcel(batch);
  return true;
}

bool Engine::PostChunk(const std::shared_ptr<Batch>& batch, uint32_t pair, uint32_t room) {
  Chunk* chunk = TakeChunk(ChunkKind::kData, pair);
  if (chunk == nullptr) return false;
  const uint32_t most = std::min(kChunkRequests, room);
  FillPlain(*batch, *chunk, most);
  while (chunk->count < most && NextRequest(*batch, *chunk)) {
  }
  if (chunk->count == 0) {
    GiveChunk(*chunk);
    return false;
  }
  chunk->batch = batch;
  ++batch->chunks;
  if (chunk->direct) ++batch->direct_chunks;
  batch->pairs_used |= uint32_t{1} << pair;
  bytes_in_flight_ += chunk->bytes;
  stats_.requests += chunk->count;
  stats_.request_bytes += chunk->count * kRequestHeaderBytes;
  if (batch->AllPosted()) {
    batch->posted = Clock::Real().Now();
    batch->times.post = batch->posted - batch->prepared;
  }
  Post(*chunk, batch->access == Access::kRead ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE);
  return true;
}

// Hands a chunk over as one list, which rings the device once. False, with the connection lost,
// when the device refuses.
bool Engine::Post(Chunk& chunk, ibv_wr_opcode opcode) {
  const uint64_t id =
      (uint64_t{chunk.generation} << 32) | (static_cast<uint64_t>(&chunk - chunks_.data()) << 8);
  // What is the same in every list was filled in when the engine was made.
  for (uint32_t i = 0; i < chunk.count; ++i) {
    const Request& request = chunk.requests[i];
    std::byte* const local = request.bounce != nullptr ? request.bounce : request.stretch.local;
    pieces_[i] = {reinterpret_cast<uint64_t>(local), static_cast<uint32_t>(request.stretch.bytes),
                  request.local_key};
    ibv_send_wr& work = list_[i];
    work.wr_id = id | i;
    work.opcode = opcode;
    work.wr.rdma.remote_addr = request.stretch.remote;
    work.wr.rdma.rkey = request.stretch.key;
  }
  ibv_send_wr& last = list_[chunk.count - 1];
  ibv_send_wr* const after = std::exchange(last.next, nullptr);
  last.send_flags = IBV_SEND_SIGNALED;
  Pair& pair = pairs_[chunk.pair];
  pair.outstanding += chunk.count;
  outstanding_ += chunk.count;
  ibv_send_wr* refused = nullptr;
  const int error = ::ibv_post_send(pair.handle.get(), list_.data(), &refused);
  last.next = after;
  last.send_flags = 0;
  if (error == 0) return true;
  // The part that was taken comes back flushed, or is given up with the queue pair: see SweepPairs.
  Lose(MakeError(ErrorCode::kInternal, absl::StrCat("the RDMA device '", port_.device,
                                                    "' takes no work: ", std::strerror(error))));
  return false;
}

bool Engine::PostWordRead(ChunkKind kind, const std::shared_ptr<Batch>& batch, WordSlot slot,
                          uint32_t pair) {
  Chunk* chunk = TakeChunk(kind, pair);
  if (chunk == nullptr) return false;
  auto* into = words_.data() + (chunk - chunks_.data()) * sizeof(uint64_t);
  chunk->batch = batch;
  chunk->count = 1;
  chunk->requests[0] = {{server_.words.address + slot.value() * sizeof(uint64_t), sizeof(uint64_t),
                         into, server_.words.key},
                        nullptr,
                        words_key_->lkey};
  return Post(*chunk, IBV_WR_RDMA_READ);
}

// A writer's word is read on every queue pair that carried writes: the answer to a read comes after
// what was written before it on the same queue pair is in memory, and says nothing of the others.
void Engine::PostWordReads() {
  std::vector<std::shared_ptr<Batch>> later;
  for (std::shared_ptr<Batch>& batch : std::exchange(to_check_, {})) {
    if (batch->Over()) continue;
    uint32_t pairs = batch->access == Access::kWrite ? batch->pairs_used : 0;
    if (pairs == 0) {
      const std::optional<uint32_t> any = FreestPair(depth_);
      if (any.has_value()) pairs = uint32_t{1} << *any;
    }
    bool room = pairs != 0 && free_chunks_.size() >= pairs_.size();
    for (uint32_t i = 0; i < pairs_.size(); ++i) {
      if ((pairs >> i & 1) != 0 && pairs_[i].outstanding >= depth_) room = false;
    }
    if (!room) {
      later.push_back(std::move(batch));
      continue;
    }
    for (uint32_t i = 0; i < pairs_.size() && !batch->Over(); ++i) {
      if ((pairs >> i & 1) == 0) continue;
      ++batch->word_reads;
      PostWordRead(ChunkKind::kWord, batch, batch->grant->word_slot, i);
    }
  }
  to_check_.insert(to_check_.end(), later.begin(), later.end());
}

}  // namespace oasiskv::fabric::verbs
