// The cuda backend's host side: memory, streams, requests; a step only enqueues.
#include "oasiskv/gpu_working_set.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/working_set/cuda/host/device_memory.h"
#include "client/working_set/cuda/host/gpu_slot.h"
#include "client/working_set/cuda/host/launch.h"
#include "client/working_set/cuda/host/proxy.h"
#include "client/working_set/cuda/host/readback.h"
#include "client/working_set/cuda/host/streams.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/options.h"
#include "common/cuda/handles.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

static_assert(sizeof(GpuSlotState) == sizeof(gpu::SlotState) &&
              offsetof(GpuSlotState, promoted) == offsetof(gpu::SlotState, promoted));
static_assert(sizeof(GpuPlanItem) == sizeof(gpu::PlanItem) &&
              offsetof(GpuPlanItem, block) == offsetof(gpu::PlanItem, block));

// Thread contract: GpuWorkingSet's.
class GpuWorkingSetImpl final : public GpuWorkingSet {
 public:
  GpuWorkingSetImpl(GpuWorkingSetOptions options, gpu::Shape shape, DeviceMemory memory,
                    Streams streams);
  absl::Status Start();  // once, before anything else
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
  // Scores of the true queries, and how far the prediction was right. Gives the layer with the true
  // top-K in place of the predicted one.
  absl::StatusOr<gpu::LayerMemory> RankTruth(LayerIndex layer, const void* queries,
                                             GpuQueryType type, int64_t row_stride,
                                             cudaStream_t stream);
  absl::Status PostMisses(LayerIndex layer, const gpu::Plan& plan, const gpu::Box& box,
                          cudaStream_t stream);
  absl::Status AwaitMisses(LayerIndex layer, const gpu::Plan& plan, const gpu::Box& box,
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

GpuWorkingSetImpl::GpuWorkingSetImpl(GpuWorkingSetOptions options, gpu::Shape shape,
                                     DeviceMemory memory, Streams streams)
    : options_(std::move(options)),
      shape_(shape),
      memory_(std::move(memory)),
      gather_{.ctas = options_.gather_ctas,
              .threads = options_.gather_threads,
              .loads = options_.gather_loads},
      streams_(std::move(streams)),
      slots_(shape.slots) {}

absl::Status GpuWorkingSetImpl::Start() {
  pool_.budget.limit = options_.max_host_bytes;
  OASISKV_RETURN_IF_ERROR(pool_.Create(shape_));
  for (uint32_t s = 0; s < shape_.slots; ++s) {
    OASISKV_RETURN_IF_ERROR(ForgetSlot({options_, shape_, memory_, pool_, streams_.admit()}, s));
  }
  if (options_.remote_sources) {
    proxy_ =
        std::make_unique<RemoteProxy>(options_.base, memory_.boxes, memory_.plans.front().capacity,
                                      memory_.resolve_plan.capacity);
  }
  // Memory was cleared on the default stream, which the others do not wait for.
  OASISKV_CUDA_RETURN(cudaDeviceSynchronize());
  return absl::OkStatus();
}

GpuWorkingSetImpl::~GpuWorkingSetImpl() {
  const cuda::DeviceScope scope(options_.device);
  // Kernels that wait for the proxy end while it lives; sources and pinned memory go after them.
  cudaDeviceSynchronize();
  if (proxy_ != nullptr) {
    for (uint32_t s = 0; s < slots_.size(); ++s) {
      if (slots_[s] != nullptr && slots_[s]->remote) proxy_->Remove(s);
    }
  }
  proxy_.reset();
  slots_.clear();
}

absl::Status GpuWorkingSetImpl::CheckLayer(absl::string_view call, LayerIndex layer) const {
  if (layer.value() < shape_.layers) return absl::OkStatus();
  return MakeError(ErrorCode::kOutOfRange, absl::StrFormat("%s: layer %d is not one of the %d",
                                                           call, layer.value(), shape_.layers));
}

absl::Status GpuWorkingSetImpl::CheckSlot(absl::string_view call, RequestSlot slot) const {
  if (slot.value() < slots_.size() && slots_[slot.value()] != nullptr) return absl::OkStatus();
  return MakeError(ErrorCode::kInvalidArgument,
                   absl::StrFormat("%s: slot %d holds no request; slots come from Admit and end "
                                   "with Leave",
                                   call, slot.value()));
}

absl::Status GpuWorkingSetImpl::CheckOutsideCapture(absl::string_view call,
                                                    cudaStream_t stream) const {
  OASISKV_ASSIGN_OR_RETURN(const uint64_t capture, CaptureOf(stream));
  if (capture == 0) return absl::OkStatus();
  return MakeError(ErrorCode::kWrongState,
                   absl::StrFormat("%s: the step stream is being captured; call it before the "
                                   "capture begins or after it has ended",
                                   call));
}

absl::Status GpuWorkingSetImpl::Synchronize() {
  if (stepped_) {
    OASISKV_RETURN_IF_ERROR(CheckOutsideCapture("a host-synchronous call", step_));
    OASISKV_CUDA_RETURN(cudaStreamSynchronize(step_));
  }
  return streams_.Synchronize();
}

absl::StatusOr<RequestSlot> GpuWorkingSetImpl::Admit(std::shared_ptr<EntrySource> source) {
  const cuda::DeviceScope scope(options_.device);
  OASISKV_RETURN_IF_ERROR(CheckSource(options_.base, source.get()));
  if (stepped_) OASISKV_RETURN_IF_ERROR(CheckOutsideCapture("Admit", step_));
  const auto free = std::find(slots_.begin(), slots_.end(), nullptr);
  if (free == slots_.end()) {
    return MakeError(ErrorCode::kCapacity,
                     absl::StrFormat("Admit: all %d request slots are taken; Leave one or raise "
                                     "max_requests",
                                     slots_.size()));
  }
  const auto slot = static_cast<uint32_t>(free - slots_.begin());
  const AdmissionContext context{options_, shape_, memory_, pool_, streams_.admit()};
  auto made = AdmitToSlot(context, source, slot);
  if (!made.ok()) return Annotate(made.status(), "Admit");
  if ((*made)->remote) {
    proxy_->Add(slot, std::move(source), (*made)->remote_table, (*made)->remote_units);
  }
  slots_[slot] = *std::move(made);
  return RequestSlot(slot);
}

absl::Status GpuWorkingSetImpl::Leave(RequestSlot slot) {
  const cuda::DeviceScope scope(options_.device);
  OASISKV_RETURN_IF_ERROR(CheckSlot("Leave", slot));
  OASISKV_RETURN_IF_ERROR(Synchronize());
  OASISKV_ASSIGN_OR_RETURN(const WorkingSetStats stats, StatsOf(slot.value()));
  OASISKV_RETURN_IF_ERROR(
      ForgetSlot({options_, shape_, memory_, pool_, streams_.admit()}, slot.value()));
  AddStats(stats, &left_);
  if (slots_[slot.value()]->remote) proxy_->Remove(slot.value());
  slots_[slot.value()].reset();
  return absl::OkStatus();
}

absl::Status GpuWorkingSetImpl::SetRows(std::span<const RequestSlot> slots, GpuStream stream) {
  const cuda::DeviceScope scope(options_.device);
  if (slots.size() > options_.max_rows) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("SetRows: %d rows; GpuWorkingSetOptions.max_rows is %d",
                                     slots.size(), options_.max_rows));
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    OASISKV_RETURN_IF_ERROR(CheckSlot("SetRows", slots[i]));
    if (std::find(slots.begin(), slots.begin() + i, slots[i]) != slots.begin() + i) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          absl::StrFormat("SetRows: row %d: slot %d is named twice", i, slots[i].value()));
    }
  }
  const auto step = static_cast<cudaStream_t>(stream);
  OASISKV_RETURN_IF_ERROR(CheckOutsideCapture("SetRows", step));
  // Transfers of the last step still read the rows.
  OASISKV_RETURN_IF_ERROR(streams_.Join(step));
  std::vector<uint32_t> rows(4 + slots.size(), 0);
  rows[0] = static_cast<uint32_t>(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) rows[4 + i] = slots[i].value();
  // From pageable memory: the driver has taken its copy when the call returns.
  OASISKV_CUDA_RETURN(cudaMemcpyAsync(const_cast<uint32_t*>(memory_.rows.count), rows.data(),
                                      rows.size() * sizeof(uint32_t), cudaMemcpyHostToDevice,
                                      step));
  step_ = step;
  stepped_ = true;
  return absl::OkStatus();
}

GpuRows GpuWorkingSetImpl::Rows() const {
  return {.slots = memory_.rows.slots, .count = memory_.rows.count, .max_rows = options_.max_rows};
}

gpu::WhenLate GpuWorkingSetImpl::when_late() const {
  const bool fails =
      options_.base.late == LatePolicy::kWait && options_.base.loss == LossPolicy::kFail;
  return fails ? gpu::WhenLate::kRefuseAndReport : gpu::WhenLate::kRefuse;
}

absl::Status GpuWorkingSetImpl::CheckQueries(absl::string_view call, LayerIndex layer,
                                             const void* queries, GpuQueryType type,
                                             int64_t* row_stride) const {
  OASISKV_RETURN_IF_ERROR(CheckLayer(call, layer));
  if (queries == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("%s(layer %d): queries is null", call, layer.value()));
  }
  if (type > GpuQueryType::kFloat16) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrFormat("%s(layer %d): query type is %d; it must be float32 (0), bfloat16 "
                        "(1) or float16 (2)",
                        call, layer.value(), static_cast<int>(type)));
  }
  const int64_t row = int64_t{options_.base.query_heads} * shape_.head_dim;
  if (*row_stride == 0) *row_stride = row;
  if (*row_stride >= row) return absl::OkStatus();
  return MakeError(ErrorCode::kInvalidArgument,
                   absl::StrFormat("%s(layer %d): row_stride is %d; a row has %d elements", call,
                                   layer.value(), *row_stride, row));
}

absl::Status GpuWorkingSetImpl::Append(LayerIndex layer, const void* keys, const void* values,
                                       int64_t row_stride, GpuStream stream) {
  OASISKV_RETURN_IF_ERROR(CheckLayer("Append", layer));
  const cuda::DeviceScope scope(options_.device);
  const int64_t row = int64_t{shape_.kv_heads} * shape_.head_dim;
  if (row_stride == 0) row_stride = row;
  if (keys != nullptr && ((values == nullptr && !shape_.latent) || row_stride < row)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("Append(layer %d): values %p, row_stride %d: values belong to "
                                     "keys, a row has %d elements",
                                     layer.value(), values, row_stride, row));
  }
  return Launched(
      "Append", layer,
      gpu::Append(shape_, layer.value(), memory_.layers[layer.value()], memory_.rows, keys, values,
                  row_stride, memory_.error, static_cast<cudaStream_t>(stream)));
}

absl::StatusOr<gpu::LayerMemory> GpuWorkingSetImpl::RankTruth(LayerIndex layer, const void* queries,
                                                              GpuQueryType type, int64_t row_stride,
                                                              cudaStream_t stream) {
  const gpu::LayerMemory& predicted = memory_.layers[layer.value()];
  gpu::LayerMemory truth = predicted;
  truth.predicted = memory_.truth;
  truth.scores = memory_.truth_scores;
  OASISKV_RETURN_IF_ERROR(Launched(
      "ScoreTopK", layer,
      gpu::ScoreTopK(shape_, truth, memory_.rows, queries, static_cast<gpu::QueryType>(type),
                     row_stride, stream, /*full_local=*/false, streams_.foreground().processors)));
  OASISKV_RETURN_IF_ERROR(Launched(
      "CompareTopK", layer,
      gpu::CompareTopK(shape_, predicted, memory_.rows, memory_.truth, memory_.counters, stream)));
  return truth;
}

absl::Status GpuWorkingSetImpl::PostMisses(LayerIndex layer, const gpu::Plan& plan,
                                           const gpu::Box& box, cudaStream_t stream) {
  return Launched("PostMisses", layer,
                  gpu::PostMisses(shape_, layer.value(), plan, memory_.sources, box, stream));
}

absl::Status GpuWorkingSetImpl::AwaitMisses(LayerIndex layer, const gpu::Plan& plan,
                                            const gpu::Box& box, cudaStream_t stream) {
  return Launched("AwaitMisses", layer,
                  gpu::AwaitMisses(shape_, layer.value(), plan, memory_.sources, box, limit_ns(),
                                   when_late(), memory_.counters, memory_.error, stream));
}

absl::Status GpuWorkingSetImpl::EnqueueSelect(LayerIndex layer, bool predicts, cudaStream_t after) {
  const uint32_t l = layer.value();
  LayerMarks& marks = streams_.marks(l);
  Mark& before = predicts ? marks.ranked : marks.given;
  OASISKV_RETURN_IF_ERROR(before.Record(after));
  OASISKV_RETURN_IF_ERROR(before.Lead(streams_.select()));
  OASISKV_RETURN_IF_ERROR(
      Launched("Select", layer,
               gpu::Select(shape_, memory_.layers[l], memory_.rows, predicts, shape_.cap,
                           memory_.plans[l], memory_.counters, streams_.select())));
  if (proxy_ != nullptr && predicts) {
    OASISKV_RETURN_IF_ERROR(
        PostMisses(layer, memory_.plans[l], memory_.boxes[l], streams_.select()));
  }
  return marks.selected.Record(streams_.select());
}

absl::Status GpuWorkingSetImpl::Submit(LayerIndex layer, const void* queries, GpuQueryType type,
                                       int64_t row_stride, GpuStream stream) {
  OASISKV_RETURN_IF_ERROR(CheckQueries("Submit", layer, queries, type, &row_stride));
  const cuda::DeviceScope scope(options_.device);
  LayerMarks& marks = streams_.marks(layer.value());
  OASISKV_RETURN_IF_ERROR(marks.given.Record(static_cast<cudaStream_t>(stream)));
  OASISKV_RETURN_IF_ERROR(marks.given.Lead(streams_.predict()));
  OASISKV_RETURN_IF_ERROR(
      Launched("ScoreTopK", layer,
               gpu::ScoreTopK(shape_, memory_.layers[layer.value()], memory_.rows, queries,
                              static_cast<gpu::QueryType>(type), row_stride, streams_.predict(),
                              /*full_local=*/true, streams_.score_processors())));
  marks.submitted = true;
  return EnqueueSelect(layer, true, streams_.predict());
}

absl::Status GpuWorkingSetImpl::SubmitTopK(LayerIndex layer, const int32_t* topk, uint32_t k,
                                           GpuStream stream) {
  OASISKV_RETURN_IF_ERROR(CheckLayer("SubmitTopK", layer));
  if (topk == nullptr || k == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("SubmitTopK(layer %d): topk is %p, k %d; a list of at least "
                                     "one place is needed",
                                     layer.value(), topk, k));
  }
  const cuda::DeviceScope scope(options_.device);
  LayerMarks& marks = streams_.marks(layer.value());
  OASISKV_RETURN_IF_ERROR(marks.given.Record(static_cast<cudaStream_t>(stream)));
  OASISKV_RETURN_IF_ERROR(marks.given.Lead(streams_.predict()));
  OASISKV_RETURN_IF_ERROR(Launched("LoadTopK", layer,
                                   gpu::LoadTopK(shape_, memory_.layers[layer.value()],
                                                 memory_.rows, topk, k, streams_.predict())));
  marks.submitted = true;
  return EnqueueSelect(layer, true, streams_.predict());
}

absl::Status GpuWorkingSetImpl::AttentionDone(LayerIndex layer, GpuStream stream) {
  OASISKV_RETURN_IF_ERROR(CheckLayer("AttentionDone", layer));
  const cuda::DeviceScope scope(options_.device);
  const uint32_t l = layer.value();
  LayerMarks& marks = streams_.marks(l);
  const auto step = static_cast<cudaStream_t>(stream);
  if (!marks.submitted) {  // nothing was predicted, but a full local block must make room
    OASISKV_RETURN_IF_ERROR(EnqueueSelect(layer, false, step));
  }
  const bool submitted = marks.submitted;
  marks.submitted = false;
  OASISKV_RETURN_IF_ERROR(marks.attended.Record(step));
  if (marks.attended.capture() != marks.selected.capture()) {
    return MakeError(ErrorCode::kWrongState,
                     absl::StrFormat("AttentionDone(layer %d): Submit was outside of this capture; "
                                     "a capture holds whole steps",
                                     l));
  }
  const cudaStream_t transfer = streams_.transfer(l);
  OASISKV_RETURN_IF_ERROR(marks.selected.Lead(transfer));
  if (proxy_ != nullptr && submitted) {
    OASISKV_RETURN_IF_ERROR(AwaitMisses(layer, memory_.plans[l], memory_.boxes[l], transfer));
  }
  OASISKV_RETURN_IF_ERROR(marks.attended.Lead(transfer));
  const gpu::LayerMemory& mem = memory_.layers[l];
  const gpu::Plan& plan = memory_.plans[l];
  OASISKV_RETURN_IF_ERROR(Launched(
      "Gather", layer,
      gpu::Gather(shape_, l, mem, plan, memory_.sources, gather_, memory_.error, transfer)));
  OASISKV_RETURN_IF_ERROR(Launched(
      "WriteBack", layer,
      gpu::WriteBack(shape_, l, mem, memory_.rows, memory_.sources, 0, memory_.error, transfer)));
  OASISKV_RETURN_IF_ERROR(Launched("Commit", layer,
                                   gpu::Commit(shape_, l, mem, memory_.rows, plan, memory_.sources,
                                               memory_.counters, memory_.error, transfer)));
  return marks.transferred.Record(transfer);
}

absl::Status GpuWorkingSetImpl::Wait(LayerIndex layer, GpuStream stream) {
  OASISKV_RETURN_IF_ERROR(CheckLayer("Wait", layer));
  const cuda::DeviceScope scope(options_.device);
  return streams_.marks(layer.value()).transferred.WaitIfSame(static_cast<cudaStream_t>(stream));
}

absl::StatusOr<GpuResolved> GpuWorkingSetImpl::Resolve(LayerIndex layer, const void* queries,
                                                       GpuQueryType type, int64_t row_stride,
                                                       GpuMissPolicy policy, GpuStream stream) {
  OASISKV_RETURN_IF_ERROR(CheckQueries("Resolve", layer, queries, type, &row_stride));
  if (options_.base.mode != SelectionMode::kExact || policy > GpuMissPolicy::kReport) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("Resolve(layer %d): policy %d; Resolve is of "
                                     "SelectionMode::kExact (in kCapped the prediction decides, "
                                     "SampleAgreement compares), policies are 0 to 2",
                                     layer.value(), static_cast<int>(policy)));
  }
  const cuda::DeviceScope scope(options_.device);
  const auto step = static_cast<cudaStream_t>(stream);
  const uint32_t l = layer.value();
  OASISKV_ASSIGN_OR_RETURN(const gpu::LayerMemory truth,
                           RankTruth(layer, queries, type, row_stride, step));
  if (policy == GpuMissPolicy::kDemand) {
    const gpu::Plan& plan = memory_.resolve_plan;
    OASISKV_RETURN_IF_ERROR(Launched("Select", layer,
                                     gpu::Select(shape_, truth, memory_.rows, true, shape_.resident,
                                                 plan, memory_.counters, step)));
    if (proxy_ != nullptr) {
      OASISKV_RETURN_IF_ERROR(PostMisses(layer, plan, memory_.boxes.back(), step));
      OASISKV_RETURN_IF_ERROR(AwaitMisses(layer, plan, memory_.boxes.back(), step));
    }
    OASISKV_RETURN_IF_ERROR(Launched(
        "Gather", layer,
        gpu::Gather(shape_, l, truth, plan, memory_.sources, gather_, memory_.error, step)));
    OASISKV_RETURN_IF_ERROR(
        Launched("Commit", layer,
                 gpu::Commit(shape_, l, truth, memory_.rows, plan, memory_.sources,
                             memory_.counters, memory_.error, step)));
  }
  OASISKV_RETURN_IF_ERROR(
      Launched("FindPages", layer,
               gpu::FindPages(shape_, truth, memory_.rows, memory_.resolution,
                              policy == GpuMissPolicy::kReport, memory_.counters, step)));
  return GpuResolved{.blocks = memory_.truth,
                     .pages = memory_.resolution.pages,
                     .missing = memory_.resolution.missing};
}

absl::Status GpuWorkingSetImpl::SampleAgreement(LayerIndex layer, const void* queries,
                                                GpuQueryType type, int64_t row_stride,
                                                GpuStream stream) {
  OASISKV_RETURN_IF_ERROR(CheckQueries("SampleAgreement", layer, queries, type, &row_stride));
  if (options_.base.mode != SelectionMode::kCapped) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "SampleAgreement is of SelectionMode::kCapped; in kExact Resolve samples");
  }
  const cuda::DeviceScope scope(options_.device);
  return RankTruth(layer, queries, type, row_stride, static_cast<cudaStream_t>(stream)).status();
}

absl::Status GpuWorkingSetImpl::EndStep(GpuStream stream) {
  const cuda::DeviceScope scope(options_.device);
  const auto step = static_cast<cudaStream_t>(stream);
  OASISKV_ASSIGN_OR_RETURN(const uint64_t capture, CaptureOf(step));
  return capture == 0 ? absl::OkStatus() : streams_.Join(step);
}

absl::StatusOr<GpuLayerView> GpuWorkingSetImpl::View(LayerIndex layer) const {
  OASISKV_RETURN_IF_ERROR(CheckLayer("View", layer));
  const gpu::LayerMemory& mem = memory_.layers[layer.value()];
  return GpuLayerView{.pages = {.k = mem.pages.k,
                                .v = mem.pages.v,
                                .page_stride = mem.pages.page_stride,
                                .head_stride = mem.pages.head_stride,
                                .token_stride = mem.pages.token_stride,
                                .table = mem.pages.table},
                      .map = mem.map,
                      .state = reinterpret_cast<const GpuSlotState*>(mem.state),
                      .predicted = mem.predicted};
}

absl::StatusOr<WorkingSetStats> GpuWorkingSetImpl::StatsOf(uint32_t slot) {
  OASISKV_ASSIGN_OR_RETURN(WorkingSetStats stats,
                           ReadCounters(memory_, shape_, slot, streams_.admit()));
  stats.admission_bytes = slots_[slot]->admission_bytes;
  if (slots_[slot]->remote) stats.degraded = proxy_->degraded(slot);
  return stats;
}

absl::StatusOr<WorkingSetStats> GpuWorkingSetImpl::RequestStats(RequestSlot slot) {
  OASISKV_RETURN_IF_ERROR(CheckSlot("RequestStats", slot));
  const cuda::DeviceScope scope(options_.device);
  return StatsOf(slot.value());
}

absl::StatusOr<WorkingSetStats> GpuWorkingSetImpl::Stats() {
  const cuda::DeviceScope scope(options_.device);
  WorkingSetStats total = left_;
  for (uint32_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s] == nullptr) continue;
    OASISKV_ASSIGN_OR_RETURN(const WorkingSetStats stats, StatsOf(s));
    AddStats(stats, &total);
  }
  return total;
}

absl::Status GpuWorkingSetImpl::Error() const {
  OASISKV_RETURN_IF_ERROR(ErrorOf(*memory_.error, options_));
  return proxy_ == nullptr ? absl::OkStatus() : proxy_->status();
}

void GpuWorkingSetImpl::ClearError() {
  std::atomic_ref<uint32_t>(memory_.error->code).store(0, std::memory_order_release);
  if (proxy_ != nullptr) proxy_->ClearStatus();
}

absl::StatusOr<GpuSnapshot> GpuWorkingSetImpl::Snapshot(LayerIndex layer, RequestSlot slot) {
  OASISKV_RETURN_IF_ERROR(CheckLayer("Snapshot", layer));
  OASISKV_RETURN_IF_ERROR(CheckSlot("Snapshot", slot));
  const cuda::DeviceScope scope(options_.device);
  OASISKV_RETURN_IF_ERROR(Synchronize());
  return ReadSnapshot(memory_.layers[layer.value()], shape_, slot.value());
}

absl::StatusOr<std::vector<GpuPlanItem>> GpuWorkingSetImpl::LastPlan(LayerIndex layer) {
  OASISKV_RETURN_IF_ERROR(CheckLayer("LastPlan", layer));
  const cuda::DeviceScope scope(options_.device);
  OASISKV_RETURN_IF_ERROR(Synchronize());
  return ReadPlan(memory_.plans[layer.value()]);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuWorkingSet>> GpuWorkingSet::Create(
    const GpuWorkingSetOptions& options) {
  GpuWorkingSetOptions filled = options;
  if (filled.max_rows == 0) filled.max_rows = filled.base.max_requests;
  OASISKV_ASSIGN_OR_RETURN(const gpu::Shape shape, ShapeOf(filled));
  int devices = 0;
  if (auto s = cuda::ToStatus(cudaGetDeviceCount(&devices), "cudaGetDeviceCount"); !s.ok()) {
    return Annotate(s, "no GPU can be used");
  }
  if (filled.device < 0 || filled.device >= devices) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("GpuWorkingSetOptions.device is %d; this process sees %d "
                                     "(CUDA_VISIBLE_DEVICES decides which)",
                                     filled.device, devices));
  }
  const cuda::DeviceScope scope(filled.device);
  OASISKV_ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Create(filled, shape));
  OASISKV_ASSIGN_OR_RETURN(Streams streams, Streams::Create(filled, shape.layers));
  auto made = std::make_unique<GpuWorkingSetImpl>(std::move(filled), shape, std::move(memory),
                                                  std::move(streams));
  OASISKV_RETURN_IF_ERROR(made->Start());
  return made;
}

}  // namespace oasiskv
