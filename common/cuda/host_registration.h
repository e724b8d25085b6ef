// Memory of this process that its GPUs can read, registered once for all who ask.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace oasiskv::cuda {

// Thread contract: immutable; destroyed by any thread.
//
// While it lives, every device reads the bytes at the host's address. Registered in chunks, and for
// reading only, since CUDA refuses a mapping without write permission otherwise.
class HostRegistration {
 public:
  // The registration of exactly these bytes (rounded to pages): made now, or shared with those who
  // asked before. `keep` holds the mapping, and is dropped after it was unregistered. Pinning takes
  // about 0.1 s per GiB.
  static absl::StatusOr<std::shared_ptr<const HostRegistration>> Get(
      std::span<const std::byte> bytes, std::shared_ptr<const void> keep);
  ~HostRegistration();
  HostRegistration(const HostRegistration&) = delete;
  HostRegistration& operator=(const HostRegistration&) = delete;

  const std::byte* begin() const { return begin_; }

 private:
  explicit HostRegistration(std::shared_ptr<const void> keep) : keep_(std::move(keep)) {}
  absl::Status Register(std::byte* begin, std::byte* end);

  const std::shared_ptr<const void> keep_;
  std::byte* begin_ = nullptr;
  std::vector<std::byte*> chunks_;
};

}  // namespace oasiskv::cuda
