#include "server/pool/touch.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "oasiskv/error.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace oasiskv::server {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{32} << 20;  // a multiple of every page size in use

std::string OnlineNodes() {
  std::ifstream file("/sys/devices/system/node/online");
  std::string text;
  std::getline(file, text);
  return text.empty() ? "unknown" : text;
}

// 0 or an errno.
int TouchChunk(std::byte* data, uint64_t bytes, uint64_t page) {
  while (true) {
    if (::madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return errno;
    break;  // a kernel before 5.14
  }
  for (uint64_t at = 0; at < bytes; at += page) {
    *reinterpret_cast<volatile uint8_t*>(data + at) = 0;
  }
  return 0;
}

}  // namespace

absl::Status BindToNumaNode(std::byte* data, uint64_t bytes, int node) {
  constexpr int kMaskBits = 1024;  // the kernel's own limit on x86-64
  constexpr int kWordBits = 8 * sizeof(unsigned long);
  if (node < 0 || node >= kMaskBits) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrFormat("--numa_node=%d: this machine has the nodes %s; give one of them, or -1",
                        node, OnlineNodes()));
  }
  unsigned long mask[kMaskBits / kWordBits] = {};
  mask[node / kWordBits] = 1UL << (node % kWordBits);
  if (::syscall(SYS_mbind, data, bytes, MPOL_BIND, mask, kMaskBits + 1, 0) != 0) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrFormat("--numa_node=%d: mbind: %s; this machine has the nodes %s; give one of "
                        "them, or -1",
                        node, std::strerror(errno), OnlineNodes()));
  }
  return absl::OkStatus();
}

absl::Status TouchPages(std::byte* data, uint64_t bytes, int threads) {
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  std::atomic<uint64_t> next{0};
  std::atomic<int> error{0};
  auto work = [&] {
    while (error.load(std::memory_order_relaxed) == 0) {
      const uint64_t at = next.fetch_add(kChunkBytes);
      if (at >= bytes) return;
      if (int e = TouchChunk(data + at, std::min(kChunkBytes, bytes - at), page); e != 0) {
        error.store(e);
      }
    }
  };
  const uint64_t chunks = (bytes + kChunkBytes - 1) / kChunkBytes;
  const uint64_t helpers =
      std::min<uint64_t>(static_cast<uint64_t>(std::max(threads, 1)), chunks) - 1;
  std::vector<std::thread> pool;
  for (uint64_t i = 0; i < helpers; ++i) pool.emplace_back(work);
  work();
  for (std::thread& t : pool) t.join();
  if (error.load() != 0) {
    return MakeError(
        ErrorCode::kCapacity,
        absl::StrFormat("touching %d bytes of the pool: %s; lower --pool_bytes, or free memory "
                        "(on the node of --numa_node, when given)",
                        bytes, std::strerror(error.load())));
  }
  return absl::OkStatus();
}

}  // namespace oasiskv::server
