#include "server/lease/grant_words.h"

#include <sys/random.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "common/status_macros.h"

namespace oasiskv::server {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "readers see the words in shared memory");
static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));

uint64_t RandomBits() {
  uint64_t bits = 0;
  while (::getrandom(&bits, sizeof(bits), 0) != static_cast<ssize_t>(sizeof(bits))) {
  }
  return bits;
}

absl::StatusOr<GrantWords> GrantWords::Create(uint32_t slots) {
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t bytes = (uint64_t{slots} * sizeof(uint64_t) + page - 1) / page * page;
  GrantWords table;
  OASISKV_ASSIGN_OR_RETURN(table.fd_, CreateMemfd("oasiskv-grant-words", bytes, PageKind::kNormal));
  OASISKV_ASSIGN_OR_RETURN(table.mapping_,
                           Mapping::Map(table.fd_.get(), bytes, Protection::kReadWrite));
  auto* words = reinterpret_cast<std::atomic<uint64_t>*>(table.mapping_.data());
  for (uint32_t i = 0; i < slots; ++i) {
    new (&words[i]) std::atomic<uint64_t>(0);
    table.free_.push_back(WordSlot(i));
  }
  table.words_ = {words, slots};
  return table;
}

std::optional<WordSlot> GrantWords::TakeSlot() {
  if (free_.empty()) return std::nullopt;
  const WordSlot slot = free_.front();
  free_.pop_front();
  return slot;
}

void GrantWords::Publish(WordSlot slot, Epoch epoch) {
  words_[slot.value()].store(epoch.value(), std::memory_order_release);
}

void GrantWords::Revoke(WordSlot slot, fabric::RevokeReason reason, Epoch epoch) {
  words_[slot.value()].store(fabric::RevokedWord(reason, epoch), std::memory_order_release);
}

uint64_t GrantWords::Read(WordSlot slot) const {
  return words_[slot.value()].load(std::memory_order_acquire);
}

}  // namespace oasiskv::server
