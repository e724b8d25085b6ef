// The caller's memory, made known to the network's device.
#pragma once

#include <memory>

#include "oasiskv/export.h"

namespace oasiskv {

// Thread contract: a move-only owner, used by one thread at a time.
//
// A stretch of the caller's memory that fetches land in without a copy where the fabric would make
// one (verbs); elsewhere it does nothing. Made by Client::RegisterBuffer or Reader::RegisterBuffer;
// it holds for every reader of that client, and is renewed on each new connection to the daemon.
//
// Lifetime: the memory stays mapped while the handle lives, and the handle goes before the memory
// is unmapped or freed. It may go while fetches are in flight: they end as they would have.
// Registered memory is pinned (it counts against RLIMIT_MEMLOCK), and a child after fork() must not
// use it. Buffers should not overlap; what lies in two of them may be copied after all.
class OASISKV_EXPORT RegisteredBuffer {
 public:
  RegisteredBuffer();  // of nothing
  RegisteredBuffer(RegisteredBuffer&&) noexcept;
  RegisteredBuffer& operator=(RegisteredBuffer&&) noexcept;
  ~RegisteredBuffer();

  // Whether fetches land in it without a copy of the fabric's own, over the connection of this
  // moment. False over shm and ucx, without a connection, and after a reconnect that could not
  // register it (which is logged; fetches then work by way of a copy).
  bool direct() const;

  class OASISKV_HIDDEN Impl;
  explicit OASISKV_HIDDEN RegisteredBuffer(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace oasiskv
