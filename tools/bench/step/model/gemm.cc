#include "tools/bench/step/model/gemm.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/rig/timing.h"

namespace oasiskv::bench::step {
namespace {

absl::Status ToStatus(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return MakeError(ErrorCode::kInternal, absl::StrCat(call, ": cuBLASLt status ", status));
}

#define OASISKV_LT_RETURN(call) OASISKV_RETURN_IF_ERROR(ToStatus((call), #call))

absl::StatusOr<cublasLtMatrixLayout_t> Layout(uint64_t rows, uint64_t columns, int64_t stride,
                                              int32_t batch) {
  cublasLtMatrixLayout_t layout = nullptr;
  OASISKV_LT_RETURN(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, rows, columns, stride));
  const int64_t apart = stride * static_cast<int64_t>(columns);
  OASISKV_LT_RETURN(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                     &batch, sizeof(batch)));
  OASISKV_LT_RETURN(cublasLtMatrixLayoutSetAttribute(
      layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &apart, sizeof(apart)));
  return layout;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GemmLibrary>> GemmLibrary::Create() {
  std::unique_ptr<GemmLibrary> library(new GemmLibrary());
  OASISKV_LT_RETURN(cublasLtCreate(&library->handle_));
  OASISKV_ASSIGN_OR_RETURN(library->workspace_,
                           cuda::DeviceBuffer::Create(kWorkspaceBytes, "cuBLASLt workspace"));
  return library;
}

GemmLibrary::~GemmLibrary() {
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

Gemm& Gemm::operator=(Gemm&& other) noexcept {
  std::swap(library_, other.library_);
  std::swap(shape_, other.shape_);
  std::swap(product_, other.product_);
  std::swap(w_, other.w_);
  std::swap(x_, other.x_);
  std::swap(y_, other.y_);
  std::swap(algorithm_, other.algorithm_);
  std::swap(tuned_seconds_, other.tuned_seconds_);
  return *this;
}

Gemm::~Gemm() {
  if (w_ != nullptr) cublasLtMatrixLayoutDestroy(w_);
  if (x_ != nullptr) cublasLtMatrixLayoutDestroy(x_);
  if (y_ != nullptr) cublasLtMatrixLayoutDestroy(y_);
  if (product_ != nullptr) cublasLtMatmulDescDestroy(product_);
}

// The library's matrices are column-major: W is in x out and transposed, X in x rows, Y out x rows.
absl::Status Gemm::Describe() {
  OASISKV_LT_RETURN(cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  OASISKV_LT_RETURN(cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA,
                                                   &transposed, sizeof(transposed)));
  const auto processors = static_cast<int32_t>(shape_.processors);
  OASISKV_LT_RETURN(cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
                                                   &processors, sizeof(processors)));
  const auto batch = static_cast<int32_t>(shape_.batch);
  OASISKV_ASSIGN_OR_RETURN(w_, Layout(shape_.in, shape_.out, shape_.in, batch));
  OASISKV_ASSIGN_OR_RETURN(x_, Layout(shape_.in, shape_.rows, shape_.in_stride, batch));
  OASISKV_ASSIGN_OR_RETURN(y_, Layout(shape_.out, shape_.rows, shape_.out, batch));
  return absl::OkStatus();
}

absl::Status Gemm::Call(const cublasLtMatmulAlgo_t& algorithm, const void* weights, const void* x,
                        void* y, cudaStream_t stream) const {
  const float one = 1, zero = 0;
  return ToStatus(
      cublasLtMatmul(library_->handle(), product_, &one, weights, w_, x, x_, &zero, y, y_, y, y_,
                     &algorithm, library_->workspace(), GemmLibrary::kWorkspaceBytes, stream),
      "cublasLtMatmul");
}

absl::StatusOr<Gemm> Gemm::Create(const GemmLibrary& library, const GemmShape& shape,
                                  std::span<const std::byte* const> weights, const void* x, void* y,
                                  cudaStream_t stream) {
  Gemm gemm;
  gemm.library_ = &library;
  gemm.shape_ = shape;
  if (gemm.shape_.in_stride == 0) gemm.shape_.in_stride = shape.in;
  OASISKV_RETURN_IF_ERROR(gemm.Describe());

  cublasLtMatmulPreference_t preference = nullptr;
  OASISKV_LT_RETURN(cublasLtMatmulPreferenceCreate(&preference));
  const uint64_t workspace = GemmLibrary::kWorkspaceBytes;
  std::array<cublasLtMatmulHeuristicResult_t, 16> found;
  int count = 0;
  absl::Status status = ToStatus(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &workspace, sizeof(workspace)),
      "cublasLtMatmulPreferenceSetAttribute");
  if (status.ok()) {
    status = ToStatus(cublasLtMatmulAlgoGetHeuristic(
                          library.handle(), gemm.product_, gemm.w_, gemm.x_, gemm.y_, gemm.y_,
                          preference, static_cast<int>(found.size()), found.data(), &count),
                      "cublasLtMatmulAlgoGetHeuristic");
  }
  cublasLtMatmulPreferenceDestroy(preference);
  OASISKV_RETURN_IF_ERROR(status);

  bool any = false;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulAlgo_t& algorithm = found[static_cast<size_t>(i)].algo;
    if (found[static_cast<size_t>(i)].state != CUBLAS_STATUS_SUCCESS) continue;
    if (!gemm.Call(algorithm, weights[0], x, y, stream).ok()) continue;  // refuses the shape
    const size_t turns = std::max<size_t>(4, std::min<size_t>(weights.size(), 12));
    const auto all_turns = [&](uint32_t) -> absl::Status {
      for (size_t turn = 1; turn <= turns; ++turn) {
        OASISKV_RETURN_IF_ERROR(gemm.Call(algorithm, weights[turn % weights.size()], x, y, stream));
      }
      return absl::OkStatus();
    };
    OASISKV_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                             TimeRepeats(stream, /*warmups=*/0, /*repeats=*/1, all_turns));
    const double one = seconds[0] / static_cast<double>(turns);
    if (any && one >= gemm.tuned_seconds_) continue;
    any = true;
    gemm.tuned_seconds_ = one;
    gemm.algorithm_ = algorithm;
  }
  if (!any) {
    return MakeError(ErrorCode::kUnsupported,
                     absl::StrCat("cuBLASLt has no product for ", shape.rows, " rows, ", shape.in,
                                  " to ", shape.out, " columns, batch ", shape.batch));
  }
  return gemm;
}

absl::Status Gemm::Run(const void* weights, const void* x, void* y, cudaStream_t stream) const {
  return Call(algorithm_, weights, x, y, stream);
}

}  // namespace oasiskv::bench::step
