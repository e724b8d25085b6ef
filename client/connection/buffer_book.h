// The buffers that a client's user has registered, and their registrations with the connection of
// the moment.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connection/session.h"
#include "common/fabric/fabric.h"
#include "common/mutex.h"

namespace oasiskv::client {

// One registered stretch; whoever holds it keeps it registered. Its registration goes with it, and
// keeps of its connection what it needs.
struct BookedBuffer {
  explicit BookedBuffer(std::span<std::byte> what) : memory(what) {}
  const std::span<std::byte> memory;
  // Guarded by the book's mutex, except in the destructor.
  std::unique_ptr<fabric::BufferRegistration> registration;
};

// Thread contract: safe for concurrent use.
class BufferBook {
 public:
  // Registers `memory` with the session of the moment, if there is one that lives, and with every
  // later one. The same stretch twice is one registration. Errors: INVALID_ARGUMENT (empty or
  // null), those of the fabric (CAPACITY: the limit on locked memory).
  absl::StatusOr<std::shared_ptr<BookedBuffer>> Register(std::span<std::byte> memory);
  // Registers everything with a new session. What fails is logged: fetches into it are copied.
  void MoveTo(const std::shared_ptr<Session>& session);
  bool Direct(const BookedBuffer& buffer) const;

 private:
  mutable Mutex mutex_;
  std::weak_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<BookedBuffer>> buffers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv::client
