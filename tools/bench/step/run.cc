#include "tools/bench/step/run.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cuda/handles.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/step/budget.h"
#include "tools/bench/step/dense.h"
#include "tools/bench/step/layer_rig.h"
#include "tools/bench/step/sparse.h"

namespace oasiskv::bench::step {
namespace {

constexpr double kChurnTolerance = 0.15;

// Thread contract: one thread, on its device.
class DeviceRun {
 public:
  DeviceRun(const RunOptions& options, int device, std::function<void()> meet)
      : o_(options), device_(device) {
    rounds_ = {.rounds = o_.rounds, .steps = o_.steps, .meet = std::move(meet)};
  }
  absl::Status Run();
  DeviceResults TakeResults() { return std::move(results_); }

 private:
  void Keep(SideResult result) {
    Say(absl::StrFormat("  %.0f tokens/s, %.2f ms per step, %.3f of its bound",
                        result.tokens_per_second.median, result.step_seconds.median * 1e3,
                        result.bound_seconds / result.step_seconds.median));
    results_.sides.push_back(std::move(result));
  }
  void Say(const std::string& what) const {
    if (device_ == 0) std::fprintf(stderr, "%s\n", what.c_str());
  }
  absl::StatusOr<std::vector<uint32_t>> BatchesOf(const char* side, uint64_t request_bytes,
                                                  uint32_t query_rows) const;
  absl::Status Prepare();
  absl::Status RunDenseSide();
  absl::Status MakePool();
  absl::Status RunSparseSide();
  absl::Status RunSparse(uint32_t spare, uint32_t batch, double ratio);

  const RunOptions& o_;
  const int device_;
  RoundPlan rounds_;
  cuda::Stream stream_;
  std::unique_ptr<GemmLibrary> library_;
  std::unique_ptr<Weights> weights_;
  std::shared_ptr<const HostPool> pool_;
  Calibration walk_;
  DeviceResults results_;
};

absl::Status DeviceRun::Prepare() {
  OASISKV_CUDA_RETURN(cudaSetDevice(device_));
  cudaDeviceProp properties;
  OASISKV_CUDA_RETURN(cudaGetDeviceProperties(&properties, device_));
  RunInfo& info = results_.info;
  info.model = o_.model.name;
  info.gpu = properties.name;
  info.context = o_.context;
  info.resident = o_.resident;
  info.rounds = o_.rounds;
  info.steps = o_.steps;
  info.hbm = o_.hbm;
  info.weights = o_.model.weight_bytes();
  info.gather_ctas = o_.grid.ctas;
  info.gather_threads = o_.grid.threads;
  info.gather_loads = o_.grid.loads;
  int least = 0, greatest = 0;
  OASISKV_CUDA_RETURN(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  OASISKV_ASSIGN_OR_RETURN(stream_, cuda::Stream::Create(std::max(greatest, least - 1)));
  OASISKV_ASSIGN_OR_RETURN(library_, GemmLibrary::Create());
  Say(absl::StrFormat("%s on %s: making %.1f GB of weights", info.model, info.gpu,
                      static_cast<double>(info.weights) / 1e9));
  OASISKV_ASSIGN_OR_RETURN(weights_, Weights::Create(o_.model, stream_.get()));
  return MeasureHbm({weights_->begin(), weights_->bytes()}, stream_.get(), results_.ceilings);
}

absl::StatusOr<std::vector<uint32_t>> DeviceRun::BatchesOf(const char* side, uint64_t request_bytes,
                                                           uint32_t query_rows) const {
  const uint32_t largest = LargestBatch(o_.model, o_.hbm, request_bytes, query_rows);
  if (largest == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("--hbm: %d bytes hold %d bytes of weights and not one %s "
                                     "request of %d bytes",
                                     o_.hbm, o_.model.weight_bytes(), side, request_bytes));
  }
  if (o_.batches.empty()) {
    const uint32_t batch = WholeTiles(largest, query_rows);
    Say(absl::StrFormat("%s: batch %d, --hbm holds %d", side, batch, largest));
    return std::vector<uint32_t>{batch};
  }
  std::vector<uint32_t> batches;
  for (const uint32_t batch : o_.batches) {
    if (batch <= largest) {
      batches.push_back(batch);
    } else {
      Say(absl::StrFormat("%s at batch %d: left out, --hbm holds %d", side, batch, largest));
    }
  }
  return batches;
}

absl::Status DeviceRun::RunDenseSide() {
  OASISKV_ASSIGN_OR_RETURN(const std::vector<uint32_t> batches,
                           BatchesOf("dense", DenseRequestBytes(o_.model, o_.context), 1));
  for (const uint32_t batch : batches) {
    Say(absl::StrFormat("dense, batch %d", batch));
    DenseOptions options{
        .context = o_.context, .batch = batch, .rounds = rounds_, .eager = o_.eager};
    OASISKV_ASSIGN_OR_RETURN(SideResult result,
                             RunDense(o_.model, *weights_, *library_, options,
                                      results_.ceilings.hbm_read, stream_.get()));
    Keep(std::move(result));
  }
  return absl::OkStatus();
}

absl::Status DeviceRun::MakePool() {
  Geometry geometry;
  geometry.layers = o_.model.layers;
  geometry.kv_heads = o_.model.kv_heads;
  geometry.head_dim = o_.model.head_dim;
  geometry.block_tokens = Model::kBlockTokens;
  geometry.element_type = ElementType::kBFloat16;
  geometry.packing = o_.model.latent() ? Packing::kLatent : Packing::kKeyThenValue;
  geometry.total_kv_heads = o_.model.kv_heads;
  const uint32_t blocks = geometry.BlocksFor(o_.context);
  OASISKV_ASSIGN_OR_RETURN(
      pool_, HostPool::Create(geometry, blocks, /*wanted=*/1u << 16, o_.host_bytes / o_.devices,
                              static_cast<uint64_t>(device_) + 1, stream_.get()));
  results_.info.host_bytes = pool_->bytes();
  results_.info.host_sequences = pool_->sequences();
  Say(absl::StrFormat("host KV: %d distinct sequences, %.1f GB pinned; requests share them",
                      pool_->sequences(), static_cast<double>(pool_->bytes()) / 1e9));
  OASISKV_RETURN_IF_ERROR(MeasureLink(o_.model, *pool_, o_.grid,
                                      {weights_->begin(), weights_->bytes()}, stream_.get(),
                                      results_.ceilings));
  const Ceilings& c = results_.ceilings;
  Say(absl::StrFormat(
      "HBM read %.0f GB/s; copy engine %.1f, gather %.1f, beside a reading kernel "
      "%.1f",
      c.hbm_read / 1e9, c.copy_engine / 1e9, c.gather_alone / 1e9, c.gather_beside / 1e9));
  OASISKV_ASSIGN_OR_RETURN(walk_, CalibrateChurn(o_.model, pool_, o_.resident, o_.summaries,
                                                 o_.churn, kChurnTolerance, stream_.get()));
  results_.churn = walk_.churn;
  results_.info.walk = walk_.a;
  Say(absl::StrFormat("churn %.2f of %d blocks per head and step: queries walk with a = %.6f",
                      walk_.churn, o_.resident, walk_.a));
  return absl::OkStatus();
}

absl::Status DeviceRun::RunSparseSide() {
  for (const uint32_t spare : o_.spares) {
    OASISKV_ASSIGN_OR_RETURN(
        const std::vector<uint32_t> batches,
        BatchesOf("sparse",
                  SparseRequestBytes(o_.model, o_.context, o_.resident + spare, o_.summaries), 2));
    for (const uint32_t batch : batches) {
      for (const double ratio : o_.ratios) OASISKV_RETURN_IF_ERROR(RunSparse(spare, batch, ratio));
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceRun::RunSparse(uint32_t spare, uint32_t batch, double ratio) {
  Say(absl::StrFormat("sparse, batch %d, ratio %.2f, spare pages %d", batch, ratio, spare));
  SparseOptions options{.context = o_.context,
                        .batch = batch,
                        .warmup = o_.warmup,
                        .resident = o_.resident,
                        .spare = spare,
                        .ratio = ratio,
                        .summaries = o_.summaries,
                        .walk = walk_.a,
                        .grid = o_.grid,
                        .rounds = rounds_,
                        .eager = o_.eager,
                        .predict_behind = o_.predict_behind,
                        .predict_processors = o_.predict_processors,
                        .last_layer_first = o_.last_layer_first};
  OASISKV_ASSIGN_OR_RETURN(SideResult result,
                           step::RunSparse(o_.model, *weights_, *library_, pool_, options,
                                           results_.ceilings, stream_.get()));
  result.churn = walk_.churn;
  Keep(std::move(result));
  return absl::OkStatus();
}

absl::Status DeviceRun::Run() {
  OASISKV_RETURN_IF_ERROR(Prepare());
  if (o_.dense) OASISKV_RETURN_IF_ERROR(RunDenseSide());
  if (!o_.sparse) return absl::OkStatus();
  OASISKV_RETURN_IF_ERROR(MakePool());
  return RunSparseSide();
}

void AddTo(SideResult& sum, const SideResult& one) {
  sum.batch += one.batch;
  sum.tokens_per_second.median += one.tokens_per_second.median;
  sum.tokens_per_second.half_iqr += one.tokens_per_second.half_iqr;
  if (one.step_seconds.median > sum.step_seconds.median) sum.step_seconds = one.step_seconds;
  sum.hbm_bytes += one.hbm_bytes;
  sum.link_bytes += one.link_bytes;
  sum.bound_seconds = std::max(sum.bound_seconds, one.bound_seconds);
  sum.foreground_seconds = std::max(sum.foreground_seconds, one.foreground_seconds);
}

}  // namespace

absl::StatusOr<std::vector<DeviceResults>> Run(const RunOptions& options) {
  int there = 0;
  OASISKV_CUDA_RETURN(cudaGetDeviceCount(&there));
  if (options.devices > static_cast<uint32_t>(there)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("--devices=", options.devices, ": this machine has ", there));
  }
  std::barrier<> barrier(options.devices);
  std::vector<DeviceRun> runs;
  runs.reserve(options.devices);
  for (uint32_t d = 0; d < options.devices; ++d) {
    runs.emplace_back(options, static_cast<int>(d), [&barrier] { barrier.arrive_and_wait(); });
  }
  std::vector<absl::Status> statuses(options.devices);
  std::vector<std::thread> threads;
  for (uint32_t d = 0; d < options.devices; ++d) {
    threads.emplace_back([&, d] {
      statuses[d] = runs[d].Run();
      barrier.arrive_and_drop();  // others do not wait for one that has failed
    });
  }
  for (std::thread& t : threads) t.join();
  std::vector<DeviceResults> results;
  for (uint32_t d = 0; d < options.devices; ++d) {
    if (!statuses[d].ok()) return Annotate(statuses[d], absl::StrCat("GPU ", d));
    results.push_back(runs[d].TakeResults());
  }
  return results;
}

DeviceResults Sum(const std::vector<DeviceResults>& devices) {
  DeviceResults sum = devices.front();
  sum.info.devices = static_cast<uint32_t>(devices.size());
  for (size_t d = 1; d < devices.size(); ++d) {
    for (size_t i = 0; i < sum.sides.size(); ++i) AddTo(sum.sides[i], devices[d].sides[i]);
    sum.info.host_bytes += devices[d].info.host_bytes;
  }
  return sum;
}

}  // namespace oasiskv::bench::step
