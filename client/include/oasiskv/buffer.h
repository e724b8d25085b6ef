// Memory of the caller, registered with the RDMA device.
#pragma once

#include <memory>

#include "oasiskv/export.h"

namespace oasiskv {

// Thread contract: a move-only owner, used by one thread at a time.
//
// A range of the caller's memory. With verbs, fetches into it need no copy; with the other fabrics
// it does nothing. Made by Client::RegisterBuffer or Reader::RegisterBuffer; it holds for every
// reader of that client, and is renewed on each new connection to the daemon.
//
// Lifetime: destroy the handle before the memory is unmapped or freed. This may happen while
// fetches are in flight: they end as they would have. Registered memory is pinned (it counts
// against RLIMIT_MEMLOCK), and a child after fork() must not use it. Buffers should not overlap;
// fetches into bytes of two buffers may be copied.
class OASISKV_EXPORT RegisteredBuffer {
 public:
  RegisteredBuffer();  // empty
  RegisteredBuffer(RegisteredBuffer&&) noexcept;
  RegisteredBuffer& operator=(RegisteredBuffer&&) noexcept;
  ~RegisteredBuffer();

  // Whether, over the present connection, fetches land in it without a copy. False with shm and
  // ucx, without a connection, and after a reconnect that could not register it (which is logged;
  // fetches then go through a copy).
  bool direct() const;

  class OASISKV_HIDDEN Impl;
  explicit OASISKV_HIDDEN RegisteredBuffer(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace oasiskv
