// Where a HostCache's slots lie: places of one size in slabs that the network's devices know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "common/mutex.h"
#include "oasiskv/buffer.h"

namespace oasiskv::client {

// Thread contract: safe for concurrent use.
//
// Grows by one slab at a time and gives none back before its end: registering is expensive, taking
// a place is not.
// A slab is registered when it is made, under the lock.
class RegisteredSlabs {
 public:
  // Registers a slab with every connection that fetches into it; what it gives lives as long as the
  // slab. May be empty.
  using Register = std::function<std::vector<RegisteredBuffer>(std::span<std::byte>)>;

  RegisteredSlabs(uint64_t place_bytes, Register register_slab)
      : place_bytes_(place_bytes), register_slab_(std::move(register_slab)) {}

  std::byte* Take();
  void Give(std::byte* place);
  uint64_t slab_bytes() const;  // of all slabs

 private:
  struct Unaligned {
    void operator()(std::byte* slab) const { ::operator delete(slab, kAlignment); }
  };
  struct Slab {
    std::unique_ptr<std::byte, Unaligned> memory;
    std::vector<RegisteredBuffer> registrations;  // go before the memory
  };
  static constexpr std::align_val_t kAlignment{4096};
  void Grow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t place_bytes_;
  const Register register_slab_;
  mutable Mutex mutex_;
  std::vector<Slab> slabs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::byte*> free_ ABSL_GUARDED_BY(mutex_);
  uint64_t slab_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace oasiskv::client
