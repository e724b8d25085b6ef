// What goes over the Unix socket of the shm fabric. Both ends run on one host, so numbers are in
// the host's own order.
//
//   client -> daemon   Hello
//   daemon -> client   Welcome, then uint64_t[arenas] (bytes of each arena) with descriptors by
//   SCM_RIGHTS: the arenas
//                      in order, then the grant-word table; or Welcome and `message_bytes` of text
//                      when refused
//   client -> daemon   Fence, any number of times
//
// The socket is SOCK_SEQPACKET: a message arrives whole or not at all. The end of the socket says
// that the peer has unmapped everything, because a client unmaps before it closes and a dying
// process loses its mappings first.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace oasiskv::fabric::shm {

constexpr uint64_t kMagic =
    0x31'6d'68'73'76'6b'73'6f;  // "oskvshm1" in memory on a little-endian host
constexpr uint32_t kVersion = 1;

// The kernel passes at most 253 descriptors with one message (SCM_MAX_FD); one is the grant-word
// table's.
constexpr size_t kMaxDescriptors = 253;
constexpr size_t kMaxArenas = kMaxDescriptors - 1;
constexpr size_t kMaxMessageText = 512;

struct Hello {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t access = 0;  // fabric::Access
};
static_assert(sizeof(Hello) == 16);

struct Welcome {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t error = 0;  // oasiskv::ErrorCode; 0 when welcome
  uint64_t incarnation = 0;
  uint64_t connection = 0;
  uint64_t words_bytes = 0;
  uint32_t arenas = 0;
  uint32_t message_bytes = 0;
};
static_assert(sizeof(Welcome) == 48);

struct Fence {
  uint64_t magic = kMagic;
  uint64_t grant = 0;
};
static_assert(sizeof(Fence) == 16);

}  // namespace oasiskv::fabric::shm
