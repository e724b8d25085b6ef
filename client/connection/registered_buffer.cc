#include <utility>

#include "client/connection/core.h"
#include "common/status_macros.h"
#include "oasiskv/buffer.h"

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

absl::StatusOr<RegisteredBuffer> RegisterBuffer(std::shared_ptr<Core> core,
                                                std::span<std::byte> memory) {
  OASISKV_ASSIGN_OR_RETURN(std::shared_ptr<RegistryEntry> buffer, core->buffers().Register(memory));
  return RegisteredBuffer(
      std::make_unique<RegisteredBuffer::Impl>(std::move(core), std::move(buffer)));
}

}  // namespace client
}  // namespace oasiskv
