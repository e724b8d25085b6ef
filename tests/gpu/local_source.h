// A fake request whose frames are memory of this process, as those of a shm reader are.
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
class LocalSource : public FakeSource {
 public:
  static constexpr uint64_t kEpoch = 77;

  LocalSource(const Geometry& geometry, uint64_t tokens, uint64_t seed, uint32_t grain = 1)
      : FakeSource(geometry, tokens, seed, grain) {
    const uint32_t blocks = geometry.BlocksFor(tokens);
    bytes_ = (blocks + 1) * geometry.frame_stride();
    void* const memory =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                         [bytes = bytes_](std::byte* p) { ::munmap(p, bytes); });
    for (uint32_t b = 0; b < blocks; ++b) {
      for (uint32_t l = 0; l < geometry.layers; ++l) {
        for (uint32_t h = 0; h < geometry.kv_heads; ++h) {
          const auto entry = kv().Entry(b, l, h);
          std::memcpy(Frame(b) + geometry.entry_offset(LayerIndex(l), HeadIndex(h)), entry.data(),
                      entry.size());
        }
      }
      frames_.push_back(Frame(b));
    }
    word_ = reinterpret_cast<uint64_t*>(Frame(blocks));
    SetWord(kEpoch);
  }

  void SetWord(uint64_t word) {
    std::atomic_ref<uint64_t>(*word_).store(word, std::memory_order_release);
  }

  absl::StatusOr<std::vector<LocalPart>> LocalEntries() const override {
    return std::vector<LocalPart>{{.first_head = 0,
                                   .head_count = geometry().kv_heads,
                                   .entry_offset = 0,
                                   .layer_stride = geometry().layer_entries_bytes(),
                                   .memory = {.frames = frames_,
                                              .grant_word = word_,
                                              .epoch = kEpoch,
                                              .mappings = {{memory_.get(), bytes_}},
                                              .keep = memory_}}};
  }

 private:
  std::byte* Frame(uint32_t block) const {
    return memory_.get() + block * geometry().frame_stride();
  }

  uint64_t bytes_ = 0;
  std::shared_ptr<std::byte> memory_;
  std::vector<const std::byte*> frames_;
  uint64_t* word_ = nullptr;
};

}  // namespace oasiskv
