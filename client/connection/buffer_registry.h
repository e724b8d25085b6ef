// The buffers that a client's user has registered, and their registrations with the current
// connection.
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

// One registered stretch of memory; whoever holds it keeps it registered. The registration keeps
// what it needs of its connection.
struct RegistryEntry {
  explicit RegistryEntry(std::span<std::byte> what) : memory(what) {}
  const std::span<std::byte> memory;
  // Guarded by the registry's mutex, except in the destructor.
  std::unique_ptr<fabric::BufferRegistration> registration;
};

// Thread contract: safe for concurrent use.
class BufferRegistry {
 public:
  // Registers `memory` with the current session, if there is one that lives, and with every later
  // one. The same stretch twice is one registration. Errors: INVALID_ARGUMENT (empty or
  // null), those of the fabric (CAPACITY: the limit on locked memory).
  absl::StatusOr<std::shared_ptr<RegistryEntry>> Register(std::span<std::byte> memory);
  // Registers everything with a new session. What fails is logged: fetches into it are copied.
  void MoveTo(const std::shared_ptr<Session>& session);
  bool Direct(const RegistryEntry& buffer) const;

 private:
  mutable Mutex mutex_;
  std::weak_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<RegistryEntry>> buffers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv::client
