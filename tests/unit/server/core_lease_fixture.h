// Grants as their holders see them: words and memory through mappings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/mapped_memory.h"
#include "tests/unit/server/core_fixture.h"

namespace oasiskv::server {

class LeaseFixture : public CoreFixture {
 protected:
  // Words as a reader sees them, through a read-only mapping of its own.
  uint64_t MappedWord(const wire::Grant& grant) {
    if (!words_) {
      const fabric::ExportedMemory memory = core_->Export();
      absl::StatusOr<UniqueFd> fd = ReopenReadOnly(memory.words_fd);
      EXPECT_TRUE(fd.ok()) << fd.status();
      words_ = *Mapping::Map(fd->get(), memory.words_bytes, Protection::kReadOnly);
    }
    return reinterpret_cast<const uint64_t*>(words_->data())[grant.word_slot.value()];
  }
  std::byte* Memory(FrameAddress frame) {
    return core_->Export().arenas[frame.arena.value()].base + frame.offset;
  }
  OpenResult MustOpenMapped(const std::string& name, uint32_t blocks, ConnectionId connection) {
    OpenSpec spec = Spec(name, blocks);
    spec.connection = connection;
    if (connection != ConnectionId()) core_->ConnectionOpened(connection);
    return MustOpen(spec);
  }
  uint64_t Quarantined() { return core_->Capacity().quarantined_bytes; }

  std::optional<Mapping> words_;
};

}  // namespace oasiskv::server
