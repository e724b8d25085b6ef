// One layer of a working set driven kernel by kernel: finds the walk that gives the wanted churn,
// and times the stages alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "tools/bench/rig/device.h"
#include "tools/bench/rig/device_layer.h"
#include "tools/bench/step/ceilings.h"
#include "tools/bench/step/host_pool.h"
#include "tools/bench/step/model/model.h"
#include "tools/bench/step/walk.h"

namespace oasiskv::bench::step {

// The model's part of the shape of one layer; blocks, slots, K and C are the caller's.
gpu::Shape OneLayer(const Model& model);

struct LayerRigOptions {
  // ranked 0: as many as resident.
  uint32_t rows = 0, resident = 128, ranked = 0, cap = 0;
  SummaryType summaries = SummaryType::kAsKeys;
  GatherGrid grid;
  float a = 1;
  uint64_t seed = 1;
};

struct LayerStageSeconds {
  double score = 0, select = 0, gather = 0;  // of one layer; gather with its commit
};

// Thread contract: one thread.
class LayerRig {
 public:
  static absl::StatusOr<std::unique_ptr<LayerRig>> Create(const Model& model,
                                                          std::shared_ptr<const HostPool> pool,
                                                          const LayerRigOptions& options,
                                                          cudaStream_t stream);
  // Blocks of the true top-K that change per head and step, with the walk's `a`; mean over
  // `steps`.
  absl::StatusOr<double> Churn(float a, uint32_t steps);
  // Medians over `steps` steps, after `warmup` ones that bring the residents to where they stay.
  absl::StatusOr<LayerStageSeconds> StageSeconds(uint32_t warmup, uint32_t steps);

 private:
  LayerRig(const Model& model, std::shared_ptr<const HostPool> pool, const LayerRigOptions& options,
           cudaStream_t stream)
      : model_(model), pool_(std::move(pool)), options_(options), stream_(stream) {}
  absl::Status MakeSources();
  absl::Status Score();
  absl::StatusOr<std::vector<int32_t>> Predicted();

  const Model model_;
  const std::shared_ptr<const HostPool> pool_;
  const LayerRigOptions options_;
  const cudaStream_t stream_;
  DeviceLayer layer_;
  DeviceArray<uint64_t> frames_;
  Walk walk_;
};

// The walk's `a` whose churn is within `tolerance` of the wanted one.
struct Calibration {
  float a = 1;
  double churn = 0;
};
absl::StatusOr<Calibration> CalibrateChurn(const Model& model, std::shared_ptr<const HostPool> pool,
                                           uint32_t resident, SummaryType summaries, double wanted,
                                           double tolerance, cudaStream_t stream);

}  // namespace oasiskv::bench::step
