// What operators see: capacity, counters, lists of sequences and grants.
#include "server/core/kv_core.h"

namespace oasiskv::server {

CapacityInfo KvCore::Capacity() const {
  MutexLock lock(mutex_);
  CapacityInfo info;
  info.pool_bytes = pool_->pool_bytes();
  info.free_bytes = allocator_.free_bytes();
  info.used_bytes = allocator_.used_bytes();
  info.quarantined_bytes = allocator_.quarantined_bytes();
  info.overhead_bytes = allocator_.overhead_bytes();
  info.metadata_bytes = allocator_.metadata_bytes();
  info.slab_bytes = pool_->slab_bytes();
  info.slabs_total = pool_->slabs_total();
  info.slabs_free = pool_->slabs_free();
  info.arenas = static_cast<uint32_t>(pool_->arenas().size());
  info.huge_pages = pool_->huge_pages();
  info.huge_pages_fell_back = pool_->huge_pages_fell_back();
  for (const auto& [id, sequence] : sequences_.all()) {
    info.metadata_bytes += sequence->body->frames.capacity() * sizeof(Frame) +
                           sequence->committed.bytes() + sequence->written.bytes();
    switch (sequence->state) {
      case SequenceState::kOpen:
        ++info.sequences_open;
        break;
      case SequenceState::kSealed:
        ++info.sequences_sealed;
        break;
      case SequenceState::kReleased:
        ++info.sequences_released;
        break;
      case SequenceState::kAborted:
        break;
    }
  }
  info.grants_reader = grants_->readers();
  info.grants_writer = grants_->writers();
  for (const SlabClassStats& c : allocator_.Classes()) {
    info.classes.push_back({c.stride, c.slabs, c.frames, c.frames_used});
  }
  return info;
}

CoreCounters KvCore::Counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

std::vector<SequenceInfo> KvCore::Sequences(SequenceId after, uint32_t limit,
                                            const std::string& tenant) const {
  std::vector<SequenceInfo> out;
  MutexLock lock(mutex_);
  const MonotonicTime now = clock_.Now();
  for (auto it = sequences_.all().upper_bound(after);
       it != sequences_.all().end() && out.size() < limit; ++it) {
    const Sequence& sequence = *it->second;
    const SequenceBody& body = *sequence.body;
    if (!tenant.empty() && body.identity.tenant != tenant) continue;
    SequenceInfo info;
    info.id = body.id;
    info.name = body.name;
    info.identity = body.identity;
    info.geometry = body.geometry;
    info.state = sequence.state;
    info.blocks = sequence.blocks;
    info.readers = sequence.readers;
    info.bytes = sequence.blocks * body.geometry.frame_stride();
    info.token_count = sequence.token_count;
    info.committed_layer_blocks = sequence.state == SequenceState::kOpen
                                      ? sequence.committed.count()
                                      : uint64_t{sequence.blocks} * body.geometry.layers;
    info.age = now - sequence.opened;
    out.push_back(std::move(info));
  }
  return out;
}

std::vector<GrantInfo> KvCore::Grants(GrantId after, uint32_t limit) const {
  std::vector<GrantInfo> out;
  MutexLock lock(mutex_);
  const Duration served = served_.At(clock_.Now());
  for (auto it = grants_->all().upper_bound(after);
       it != grants_->all().end() && out.size() < limit; ++it) {
    const Grant& grant = *it->second;
    const bool live = grant.phase == Grant::Phase::kLive;
    if (!live && !grant.quarantined) continue;  // on its way out
    GrantInfo info;
    info.id = grant.id;
    info.writer = grant.writer();
    info.quarantined = grant.quarantined;
    info.sequence = grant.body->id;
    info.sequence_name = grant.body->name;
    info.holder = grant.holder;
    info.lease_left = live ? std::max(grant.expires - served, Duration(0)) : Duration(0);
    info.frames = grant.frames;
    info.first_head = grant.first_head;
    info.head_count = grant.head_count;
    out.push_back(std::move(info));
  }
  return out;
}

fabric::ExportedMemory KvCore::Export() const {
  fabric::ExportedMemory memory;
  for (const Arena& arena : pool_->arenas()) {
    memory.arenas.push_back({arena.id(), arena.fd(), arena.base(), arena.bytes()});
  }
  MutexLock lock(mutex_);
  memory.words_fd = grants_->words().fd();
  memory.words_bytes = grants_->words().bytes();
  memory.incarnation = incarnation_;
  return memory;
}

}  // namespace oasiskv::server
