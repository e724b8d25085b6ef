// The cuda backend's host side: memory, streams, requests; a step only enqueues.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/working_set/cuda/host/device_memory.h"
#include "client/working_set/cuda/host/gpu_slot.h"
#include "client/working_set/cuda/host/host_frames.h"
#include "client/working_set/cuda/host/proxy.h"
#include "client/working_set/cuda/host/streams.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "common/cuda/handles.h"
#include "oasiskv/gpu_working_set.h"

namespace oasiskv {

// Thread contract: GpuWorkingSet's.
class GpuWorkingSetImpl final : public GpuWorkingSet {
 public:
  static absl::StatusOr<std::unique_ptr<GpuWorkingSet>> Create(GpuWorkingSetOptions options);
  ~GpuWorkingSetImpl() override;

  absl::StatusOr<RequestSlot> Admit(std::shared_ptr<EntrySource> source) override;
  absl::Status Leave(RequestSlot slot) override;
  absl::Status SetRows(std::span<const RequestSlot> slots, GpuStream stream) override;
  GpuRows Rows() const override;
  absl::Status Append(LayerIndex layer, const void* keys, const void* values, int64_t row_stride,
                      GpuStream stream) override;
  absl::Status Submit(LayerIndex layer, const void* queries, GpuQueryType type, int64_t row_stride,
                      GpuStream stream) override;
  absl::Status SubmitTopK(LayerIndex layer, const int32_t* topk, uint32_t k,
                          GpuStream stream) override;
  absl::Status AttentionDone(LayerIndex layer, GpuStream stream) override;
  absl::Status Wait(LayerIndex layer, GpuStream stream) override;
  absl::StatusOr<GpuResolved> Resolve(LayerIndex layer, const void* queries, GpuQueryType type,
                                      int64_t row_stride, GpuMissPolicy policy,
                                      GpuStream stream) override;
  absl::Status SampleAgreement(LayerIndex layer, const void* queries, GpuQueryType type,
                               int64_t row_stride, GpuStream stream) override;
  absl::Status EndStep(GpuStream stream) override;
  absl::StatusOr<GpuLayerView> View(LayerIndex layer) const override;
  GpuForeground Foreground() const override { return streams_.foreground(); }
  const GpuWorkingSetOptions& options() const override { return options_; }
  uint32_t fetch_cap() const override { return shape_.cap; }
  absl::StatusOr<WorkingSetStats> RequestStats(RequestSlot slot) override;
  absl::StatusOr<WorkingSetStats> Stats() override;
  absl::Status Error() const override;
  void ClearError() override;
  absl::StatusOr<GpuSnapshot> Snapshot(LayerIndex layer, RequestSlot slot) override;
  absl::StatusOr<std::vector<GpuPlanItem>> LastPlan(LayerIndex layer) override;

 private:
  GpuWorkingSetImpl(GpuWorkingSetOptions options, gpu::Shape shape, DeviceMemory memory,
                    Streams streams);
  absl::Status Start();

  absl::Status CheckLayer(absl::string_view call, LayerIndex layer) const;
  absl::Status CheckQueries(absl::string_view call, LayerIndex layer, const void* queries,
                            GpuQueryType type, int64_t* row_stride) const;
  absl::Status CheckSlot(absl::string_view call, RequestSlot slot) const;
  // WRONG_STATE while the step stream is being captured.
  absl::Status CheckOutsideCapture(absl::string_view call, cudaStream_t stream) const;
  // select, after whatever gave the prediction on the predict stream (or without one).
  absl::Status EnqueueSelect(LayerIndex layer, bool predicts, cudaStream_t after);
  // Until everything enqueued so far is done.
  absl::Status Synchronize();
  gpu::WhenLate when_late() const;
  uint64_t limit_ns() const { return static_cast<uint64_t>(options_.base.late_deadline.count()); }
  absl::Status FetchRemote(LayerIndex layer, const gpu::Plan& plan, const gpu::Box& box,
                           cudaStream_t stream);
  absl::StatusOr<WorkingSetStats> StatsOf(uint32_t slot);

  const GpuWorkingSetOptions options_;
  const gpu::Shape shape_;
  DeviceMemory memory_;
  gpu::GatherOptions gather_;
  Streams streams_;
  cudaStream_t step_ = nullptr;  // of the last SetRows
  bool stepped_ = false;
  std::vector<std::unique_ptr<GpuSlot>> slots_;  // null: free
  GpuSlotPool pool_;
  WorkingSetStats left_;  // of the requests that have left
  std::unique_ptr<RemoteProxy> proxy_;
};

}  // namespace oasiskv
