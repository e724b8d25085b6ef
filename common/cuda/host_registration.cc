#include "common/cuda/host_registration.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/cuda/status.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::cuda {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{1} << 30;

using Range = std::pair<uintptr_t, uintptr_t>;

struct Registry {
  Mutex mutex;
  std::map<Range, std::weak_ptr<const HostRegistration>> known ABSL_GUARDED_BY(mutex);
};

Registry& TheRegistry() {
  static Registry* const registry = new Registry;  // registrations may outlive static objects
  return *registry;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const HostRegistration>> HostRegistration::Get(
    std::span<const std::byte> bytes, std::shared_ptr<const void> keep) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(bytes.data());
  const Range range{first / page * page, (first + bytes.size() + page - 1) / page * page};
  Registry& registry = TheRegistry();
  // Held while pinning: a second caller for the same bytes waits instead of failing.
  MutexLock lock(registry.mutex);
  if (auto known = registry.known[range].lock()) return known;
  std::shared_ptr<HostRegistration> made(new HostRegistration(std::move(keep)));
  OASISKV_RETURN_IF_ERROR(made->Register(reinterpret_cast<std::byte*>(range.first),
                                         reinterpret_cast<std::byte*>(range.second)));
  registry.known[range] = made;
  std::erase_if(registry.known, [](const auto& item) { return item.second.expired(); });
  return made;
}

absl::Status HostRegistration::Register(std::byte* begin, std::byte* end) {
  begin_ = begin;
  for (std::byte* at = begin; at < end;) {
    const uint64_t size = std::min<uint64_t>(kChunkBytes, end - at);
    const cudaError_t error = cudaHostRegister(
        at, size, cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly);
    if (error != cudaSuccess) {
      return Annotate(ToStatus(error, "cudaHostRegister"),
                      absl::StrFormat("pinning %d bytes at %p for the GPU", size, at));
    }
    chunks_.push_back(at);
    void* seen = nullptr;
    OASISKV_CUDA_RETURN(cudaHostGetDevicePointer(&seen, at, 0));
    if (seen != at) {
      return MakeError(ErrorCode::kUnsupported,
                       "the GPU sees registered host memory at another address than the host "
                       "(cudaDevAttrCanUseHostPointerForRegisteredMem is 0)");
    }
    at += size;
  }
  return absl::OkStatus();
}

HostRegistration::~HostRegistration() {
  for (std::byte* chunk : chunks_) cudaHostUnregister(chunk);
}

}  // namespace oasiskv::cuda
