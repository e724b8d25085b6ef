#include "client/connection/buffer_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/connection/core.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "oasiskv/buffer.h"
#include "oasiskv/error.h"

namespace oasiskv {

// Thread contract: as RegisteredBuffer.
class RegisteredBuffer::Impl {
 public:
  Impl(std::shared_ptr<client::Core> its_core, std::shared_ptr<client::RegistryEntry> its_buffer)
      : core(std::move(its_core)), buffer(std::move(its_buffer)) {}
  const std::shared_ptr<client::Core> core;
  const std::shared_ptr<client::RegistryEntry> buffer;
};

RegisteredBuffer::RegisteredBuffer() = default;
RegisteredBuffer::RegisteredBuffer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RegisteredBuffer::RegisteredBuffer(RegisteredBuffer&&) noexcept = default;
RegisteredBuffer& RegisteredBuffer::operator=(RegisteredBuffer&&) noexcept = default;
RegisteredBuffer::~RegisteredBuffer() = default;

bool RegisteredBuffer::direct() const {
  return impl_ != nullptr && impl_->core->buffers().Direct(*impl_->buffer);
}

namespace client {

absl::StatusOr<std::shared_ptr<RegistryEntry>> BufferRegistry::Register(
    std::span<std::byte> memory) {
  if (memory.data() == nullptr || memory.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("a buffer of ", memory.size(), " bytes at ",
                                  memory.data() == nullptr ? "null" : "an address",
                                  " cannot be registered; give memory of at least one byte"));
  }
  std::vector<std::shared_ptr<RegistryEntry>>
      kept;  // may be the last to hold one: not under the lock
  MutexLock lock(mutex_);
  std::erase_if(buffers_, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : buffers_) {
    std::shared_ptr<RegistryEntry> buffer = weak.lock();
    if (buffer == nullptr) continue;
    if (buffer->memory.data() == memory.data() && buffer->memory.size() == memory.size()) {
      return buffer;
    }
    kept.push_back(std::move(buffer));
  }
  auto made = std::make_shared<RegistryEntry>(memory);
  if (auto session = session_.lock(); session != nullptr && session->alive()) {
    OASISKV_ASSIGN_OR_RETURN(made->registration, session->reader().RegisterBuffer(memory));
  }
  buffers_.push_back(made);
  return made;
}

void BufferRegistry::MoveTo(const std::shared_ptr<Session>& session) {
  std::vector<std::shared_ptr<RegistryEntry>> kept;  // as above
  size_t failed = 0;
  absl::Status first;
  {
    MutexLock lock(mutex_);
    session_ = session;
    for (const auto& weak : buffers_) {
      std::shared_ptr<RegistryEntry> buffer = weak.lock();
      if (buffer == nullptr) continue;
      buffer->registration.reset();  // first: both at once might be more than may be locked
      auto made = session->reader().RegisterBuffer(buffer->memory);
      if (made.ok()) {
        buffer->registration = *std::move(made);
      } else if (failed++ == 0) {
        first = made.status();
      }
      kept.push_back(std::move(buffer));
    }
  }
  if (failed == 0) return;
  LogWarning("client", absl::StrCat(failed, " of ", kept.size(),
                                    " registered buffers could not be registered with the new "
                                    "connection, fetches into them are copied: ",
                                    first.message()));
}

bool BufferRegistry::Direct(const RegistryEntry& buffer) const {
  MutexLock lock(mutex_);
  const auto session = session_.lock();
  return buffer.registration != nullptr && session != nullptr && session->alive();
}

absl::StatusOr<RegisteredBuffer> RegisterBuffer(std::shared_ptr<Core> core,
                                                std::span<std::byte> memory) {
  OASISKV_ASSIGN_OR_RETURN(std::shared_ptr<RegistryEntry> buffer, core->buffers().Register(memory));
  return RegisteredBuffer(
      std::make_unique<RegisteredBuffer::Impl>(std::move(core), std::move(buffer)));
}

}  // namespace client
}  // namespace oasiskv
