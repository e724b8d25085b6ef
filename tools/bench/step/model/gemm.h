// Y[rows][out] = X[rows][in] W[out][in]^T in BF16 through cuBLASLt, the algorithm chosen by timing.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/handles.h"

namespace oasiskv::bench::step {

// Thread contract: one thread. The handle and the workspace that all products of one stream share.
class GemmLibrary {
 public:
  static absl::StatusOr<std::unique_ptr<GemmLibrary>> Create();
  ~GemmLibrary();
  GemmLibrary(const GemmLibrary&) = delete;
  GemmLibrary& operator=(const GemmLibrary&) = delete;
  cublasLtHandle_t handle() const { return handle_; }
  void* workspace() const { return workspace_.data(); }
  static constexpr uint64_t kWorkspaceBytes = uint64_t{32} << 20;

 private:
  GemmLibrary() = default;
  cublasLtHandle_t handle_ = nullptr;
  cuda::DeviceBuffer workspace_;
};

struct GemmShape {
  uint32_t rows = 0, in = 0, out = 0;
  uint32_t in_stride = 0;   // elements between rows of X; 0: in
  uint32_t batch = 1;       // products with matrices one after the other (experts)
  uint32_t processors = 0;  // multiprocessors that it should use; 0: all
};

// Thread contract: one thread; Run may be captured.
class Gemm {
 public:
  // Times the library's candidates with `weights` taken in turns, so that no matrix is read from
  // the cache, and keeps the fastest.
  static absl::StatusOr<Gemm> Create(const GemmLibrary& library, const GemmShape& shape,
                                     std::span<const std::byte* const> weights, const void* x,
                                     void* y, cudaStream_t stream);
  Gemm() = default;
  Gemm(Gemm&& other) noexcept { *this = std::move(other); }
  Gemm& operator=(Gemm&& other) noexcept;
  ~Gemm();

  absl::Status Run(const void* weights, const void* x, void* y, cudaStream_t stream) const;
  double tuned_seconds() const { return tuned_seconds_; }
  uint64_t weight_bytes() const { return uint64_t{2} * shape_.in * shape_.out * shape_.batch; }

 private:
  absl::Status Describe();
  absl::Status Call(const cublasLtMatmulAlgo_t& algorithm, const void* weights, const void* x,
                    void* y, cudaStream_t stream) const;

  const GemmLibrary* library_ = nullptr;
  GemmShape shape_;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, y_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
  double tuned_seconds_ = 0;
};

}  // namespace oasiskv::bench::step
