#include "common/mapped_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/str_format.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

// A field of /proc/meminfo in its own unit (kB, or a count); 0 when absent.
uint64_t MemInfo(absl::string_view field) {
  std::ifstream file("/proc/meminfo");
  std::string key, rest;
  uint64_t value = 0;
  while (file >> key >> value) {
    std::getline(file, rest);
    if (key == absl::StrFormat("%s:", field)) return value;
  }
  return 0;
}

absl::Status ErrnoError(absl::string_view what, int error) {
  return MakeError(error == ENOMEM ? ErrorCode::kCapacity : ErrorCode::kInternal,
                   absl::StrFormat("%s: %s", what, std::strerror(error)));
}

}  // namespace

void UniqueFd::Reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

uint64_t HugePageBytes() { return MemInfo("Hugepagesize") * 1024; }

absl::StatusOr<UniqueFd> CreateMemfd(absl::string_view name, uint64_t bytes, PageKind pages) {
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (pages == PageKind::kHuge) {
    const uint64_t page = HugePageBytes();
    if (page == 0) {
      return MakeError(ErrorCode::kCapacity,
                       "this kernel has no huge pages (no Hugepagesize in /proc/meminfo)");
    }
    if (bytes % page != 0) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          absl::StrFormat("%d bytes of huge pages asked for; it must be a multiple of %d", bytes,
                          page));
    }
    const uint64_t free_pages = MemInfo("HugePages_Free");
    if (free_pages < bytes / page) {
      return MakeError(ErrorCode::kCapacity,
                       absl::StrFormat("%d huge pages of %d bytes needed, %d free; raise them with "
                                       "'sysctl vm.nr_hugepages=N'",
                                       bytes / page, page, free_pages));
    }
    flags |= MFD_HUGETLB;
  } else if (const uint64_t available = MemInfo("MemAvailable") * 1024; available < bytes) {
    return MakeError(ErrorCode::kCapacity,
                     absl::StrFormat("%d bytes of memory asked for, %d available on this machine",
                                     bytes, available));
  }
  UniqueFd fd(::memfd_create(std::string(name).c_str(), flags));
  if (!fd) return ErrnoError("memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoError(absl::StrFormat("memfd of %d bytes", bytes), errno);
  }
  // The size is final: no side gets a SIGBUS because another one truncated the file. No seal comes
  // after these: a writer could else forbid every later writer to map the file.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoError("sealing a memfd's size", errno);
  }
  // A reader's descriptor must not be reopened for writing by another user through /proc.
  if (::fchmod(fd.get(), S_IRUSR) != 0) return ErrnoError("fchmod of a memfd", errno);
  return fd;
}

absl::StatusOr<UniqueFd> ReopenReadOnly(int memfd) {
  const std::string path = absl::StrFormat("/proc/self/fd/%d", memfd);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return ErrnoError(absl::StrFormat("open(%s, O_RDONLY)", path), errno);
  return fd;
}

absl::StatusOr<Mapping> Mapping::Map(int fd, uint64_t bytes, Protection protection) {
  if (bytes == 0)
    return MakeError(ErrorCode::kInvalidArgument, "a mapping of 0 bytes was asked for");
  const int prot = protection == Protection::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = ::mmap(nullptr, bytes, prot, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return ErrnoError(absl::StrFormat("mmap of %d bytes", bytes), errno);
  return Mapping(static_cast<std::byte*>(data), bytes);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Reset();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void Mapping::Reset() {
  if (data_ != nullptr) ::munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

}  // namespace oasiskv
