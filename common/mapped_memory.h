// File descriptors and mappings as owned objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace oasiskv {

// Thread contract: not safe for concurrent use; a move-only owner of one descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset();

 private:
  int fd_ = -1;
};

// kHuge: pages of the kernel's default huge page size (2 MiB on x86-64).
enum class PageKind { kNormal, kHuge };
enum class Protection { kReadOnly, kReadWrite };

// Bytes of one huge page of the default size; 0 where the kernel has none.
uint64_t HugePageBytes();

// An anonymous shared file of `bytes` bytes, close-on-exec, owner-only mode. With kHuge `bytes`
// must be a multiple of HugePageBytes(); CAPACITY when too few huge pages are free (the message has
// both numbers and the sysctl that fixes it). With kNormal, CAPACITY when the machine's available
// memory is less than `bytes`: a later touch must never be a SIGBUS.
absl::StatusOr<UniqueFd> CreateMemfd(absl::string_view name, uint64_t bytes, PageKind pages);

// A second descriptor of the same memory that can only be mapped for reading: the kernel answers
// mmap with PROT_WRITE with EACCES.
absl::StatusOr<UniqueFd> ReopenReadOnly(int memfd);

// Thread contract: not safe for concurrent use; a move-only owner of one shared mapping.
class Mapping {
 public:
  // Maps the first `bytes` bytes of `fd`, which may be closed afterwards.
  static absl::StatusOr<Mapping> Map(int fd, uint64_t bytes, Protection protection);

  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping() { Reset(); }

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  void Reset();

 private:
  Mapping(std::byte* data, uint64_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace oasiskv
