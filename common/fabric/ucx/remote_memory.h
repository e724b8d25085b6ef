// One-sided operations of UCX, and keys to memory of the other side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct ucp_ep;
struct ucp_mem;
struct ucp_rkey;

namespace oasiskv::fabric::ucx {

class Worker;

// Thread contract: used by the thread that owns the worker.
//
// OnDone comes exactly once, possibly before the call that began the operation returns; then the
// operation is deleted. Until then UCX reads or writes the local memory.
class Operation {
 public:
  virtual ~Operation() = default;
  // Empty when it succeeded, else UCX's words.
  virtual void OnDone(absl::string_view error) = 0;
};

// Thread contract: used by the thread that owns the worker.
//
// A move-only owner of a key, which must go before its endpoint.
class RemoteKey {
 public:
  // Errors: INTERNAL with UCX's words.
  static absl::StatusOr<RemoteKey> Unpack(ucp_ep* endpoint, std::span<const std::byte> packed);
  RemoteKey(RemoteKey&& other) noexcept : key_(std::exchange(other.key_, nullptr)) {}
  RemoteKey& operator=(RemoteKey&&) = delete;
  ~RemoteKey();

  ucp_rkey* get() const { return key_; }

 private:
  explicit RemoteKey(ucp_rkey* key) : key_(key) {}
  ucp_rkey* key_ = nullptr;
};

// A place at the other side.
struct RemotePlace {
  uint64_t address = 0;
  const RemoteKey* key = nullptr;
};

// `local` lies in memory that was registered with the worker as `registered`.
void Get(ucp_ep* endpoint, std::span<std::byte> local, ucp_mem* registered, RemotePlace from,
         std::unique_ptr<Operation> operation);
void Put(ucp_ep* endpoint, std::span<const std::byte> local, ucp_mem* registered, RemotePlace into,
         std::unique_ptr<Operation> operation);
// Done when all that was put on the endpoint before is in the other side's memory.
void Flush(ucp_ep* endpoint, std::unique_ptr<Operation> operation);

}  // namespace oasiskv::fabric::ucx
