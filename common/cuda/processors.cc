#include "common/cuda/processors.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::cuda {
namespace {

constexpr unsigned kFirstDriver = 12050;  // the newest of the functions below

// The driver's functions, looked up at run time so that programs start without a driver.
struct Driver {
  PFN_cuDeviceGetDevResource_v12040 resource_of_device = nullptr;
  PFN_cuDevSmResourceSplitByCount_v12040 split = nullptr;
  PFN_cuDevResourceGenerateDesc_v12040 describe = nullptr;
  PFN_cuGreenCtxCreate_v12040 create = nullptr;
  PFN_cuGreenCtxDestroy_v12040 destroy = nullptr;
  PFN_cuGreenCtxStreamCreate_v12050 create_stream = nullptr;
  PFN_cuGetErrorString_v6000 text_of = nullptr;
};

template <typename Function>
absl::Status Find(const char* name, Function* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  OASISKV_CUDA_RETURN(
      cudaGetDriverEntryPointByVersion(name, &found, kFirstDriver, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess || found == nullptr) {
    int version = 0;
    cudaDriverGetVersion(&version);
    return MakeError(
        ErrorCode::kUnsupported,
        absl::StrFormat("%s is not in this driver, which is for CUDA %d.%d; dividing a "
                        "GPU's multiprocessors needs a driver for CUDA 12.5",
                        name, version / 1000, version % 1000 / 10));
  }
  *function = reinterpret_cast<Function>(found);
  return absl::OkStatus();
}

absl::StatusOr<Driver> FindDriver() {
  Driver d;
  OASISKV_RETURN_IF_ERROR(Find("cuDeviceGetDevResource", &d.resource_of_device));
  OASISKV_RETURN_IF_ERROR(Find("cuDevSmResourceSplitByCount", &d.split));
  OASISKV_RETURN_IF_ERROR(Find("cuDevResourceGenerateDesc", &d.describe));
  OASISKV_RETURN_IF_ERROR(Find("cuGreenCtxCreate", &d.create));
  OASISKV_RETURN_IF_ERROR(Find("cuGreenCtxDestroy", &d.destroy));
  OASISKV_RETURN_IF_ERROR(Find("cuGreenCtxStreamCreate", &d.create_stream));
  OASISKV_RETURN_IF_ERROR(Find("cuGetErrorString", &d.text_of));
  return d;
}

// Looked up once for the process.
const absl::StatusOr<Driver>& TheDriver() {
  static const auto* const driver = new absl::StatusOr<Driver>(FindDriver());
  return *driver;
}

absl::Status Check(const Driver& driver, CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* text = nullptr;
  driver.text_of(result, &text);
  return MakeError(
      result == CUDA_ERROR_NOT_SUPPORTED ? ErrorCode::kUnsupported : ErrorCode::kInternal,
      absl::StrFormat("%s: %s", call, text != nullptr ? text : "unknown error"));
}

}  // namespace

absl::StatusOr<Processors> Processors::Create(int device, std::span<CUdevResource> resources) {
  OASISKV_ASSIGN_OR_RETURN(const Driver driver, TheDriver());
  CUdevResourceDesc description = nullptr;
  OASISKV_RETURN_IF_ERROR(Check(
      driver,
      driver.describe(&description, resources.data(), static_cast<unsigned>(resources.size())),
      "cuDevResourceGenerateDesc"));
  CUgreenCtx context = nullptr;
  OASISKV_RETURN_IF_ERROR(
      Check(driver, driver.create(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM),
            "cuGreenCtxCreate"));
  Processors made;
  made.context_ = context;
  for (const CUdevResource& r : resources) made.count_ += r.sm.smCount;
  return made;
}

absl::StatusOr<std::vector<Processors>> Processors::Divide(int device,
                                                           std::span<const uint32_t> parts) {
  OASISKV_ASSIGN_OR_RETURN(const Driver driver, TheDriver());
  // The device's own context must exist: a green context is a part of it.
  const DeviceScope scope(device);
  OASISKV_CUDA_RETURN(cudaFree(nullptr));
  CUdevResource all, rest;
  OASISKV_RETURN_IF_ERROR(Check(driver,
                                driver.resource_of_device(device, &all, CU_DEV_RESOURCE_TYPE_SM),
                                "cuDeviceGetDevResource"));
  const uint32_t unit = std::max(1u, all.sm.minSmPartitionSize);
  uint64_t wanted = 0;
  std::vector<size_t> units;
  for (const uint32_t part : parts) {
    units.push_back(std::max<size_t>(1, (uint64_t{part} + unit - 1) / unit));
    wanted += units.back();
  }
  std::vector<CUdevResource> groups(std::min<uint64_t>(wanted, all.sm.smCount));
  auto count = static_cast<unsigned>(groups.size());
  if (wanted * unit < all.sm.smCount) {
    OASISKV_RETURN_IF_ERROR(Check(driver, driver.split(groups.data(), &count, &all, &rest, 0, unit),
                                  "cuDevSmResourceSplitByCount"));
  }
  if (wanted * unit >= all.sm.smCount || count < wanted || rest.sm.smCount == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("%d multiprocessors in %d parts were asked for: device %d has "
                                     "%d, in units of %d, and at least one unit must be left over",
                                     wanted * unit, parts.size(), device, all.sm.smCount, unit));
  }
  std::vector<Processors> made;
  size_t at = 0;
  for (const size_t size : units) {
    OASISKV_ASSIGN_OR_RETURN(Processors part, Create(device, std::span(groups).subspan(at, size)));
    made.push_back(std::move(part));
    at += size;
  }
  OASISKV_ASSIGN_OR_RETURN(Processors others, Create(device, std::span(&rest, 1)));
  made.push_back(std::move(others));
  return made;
}

Processors::~Processors() {
  if (context_ != nullptr) TheDriver()->destroy(static_cast<CUgreenCtx>(context_));
}

absl::StatusOr<Stream> Processors::StreamOf(int priority) const {
  OASISKV_ASSIGN_OR_RETURN(const Driver driver, TheDriver());
  CUstream stream = nullptr;
  OASISKV_RETURN_IF_ERROR(Check(driver,
                                driver.create_stream(&stream, static_cast<CUgreenCtx>(context_),
                                                     CU_STREAM_NON_BLOCKING, priority),
                                "cuGreenCtxStreamCreate"));
  return Stream::Adopt(stream);
}

}  // namespace oasiskv::cuda
