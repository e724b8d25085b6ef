// A fake request whose heads lie in the frames of several shards, all memory of this process.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/working_set/working_set_fake.h"

namespace oasiskv {

// Thread contract: see FakeSource.
//
// What a decode rank has that attached a range of a shard's heads, or several shards of a tensor-
// parallel prefill: every part has frames of its own layout, in which other ranks' heads stand
// before and after the rank's, and a grant of its own.
class PartsSource : public FakeSource {
 public:
  PartsSource(const Geometry& geometry, uint64_t tokens, uint64_t seed, uint32_t parts)
      : FakeSource(geometry, tokens, seed) {
    uint32_t first = 0;
    for (uint32_t p = 0; p < parts; ++p) {
      const uint32_t end = geometry.kv_heads * (p + 1) / parts;
      AddPart(first, end - first, /*before=*/(p + 1) % 3, /*after=*/p % 2, /*epoch=*/100 + p);
      first = end;
    }
  }

  void SetWord(uint32_t part, uint64_t word) {
    std::atomic_ref<uint64_t>(*words_[part]).store(word, std::memory_order_release);
  }

  absl::StatusOr<std::vector<LocalPart>> LocalEntries() const override { return parts_; }

 private:
  void AddPart(uint32_t first, uint32_t heads, uint32_t before, uint32_t after, uint64_t epoch) {
    const Geometry& g = geometry();
    const uint64_t entry = g.entry_bytes(), stride = (before + heads + after) * entry;
    // Frames begin a cache line apart from what a multiple of a page would be.
    const uint64_t frame = (g.layers * stride + 4095) / 4096 * 4096 + 64;
    const uint32_t blocks = g.BlocksFor(token_count());
    const uint64_t bytes = blocks * frame + 4096;
    void* const mapped =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    const std::shared_ptr<std::byte> memory(static_cast<std::byte*>(mapped),
                                            [bytes](std::byte* p) { ::munmap(p, bytes); });
    std::memset(memory.get(), 0xee, bytes);  // heads of other ranks
    LocalPart part{.first_head = first,
                   .head_count = heads,
                   .entry_offset = before * entry,
                   .layer_stride = stride,
                   .memory = {.frames = {},
                              .grant_word = nullptr,
                              .epoch = epoch,
                              .mappings = {{memory.get(), bytes}},
                              .keep = memory}};
    for (uint32_t b = 0; b < blocks; ++b) {
      std::byte* const at = memory.get() + b * frame;
      for (uint32_t l = 0; l < g.layers; ++l) {
        for (uint32_t h = 0; h < heads; ++h) {
          const auto bytes_of = kv().Entry(b, l, first + h);
          std::memcpy(at + part.entry_offset + l * stride + h * entry, bytes_of.data(), entry);
        }
      }
      part.memory.frames.push_back(at);
    }
    words_.push_back(reinterpret_cast<uint64_t*>(memory.get() + blocks * frame));
    part.memory.grant_word = words_.back();
    parts_.push_back(std::move(part));
    SetWord(static_cast<uint32_t>(words_.size() - 1), epoch);
  }

  std::vector<LocalPart> parts_;
  std::vector<uint64_t*> words_;  // of each part, in its memory
};

}  // namespace oasiskv
