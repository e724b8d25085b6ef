// The calls of a step: they enqueue on the step stream and on the background streams.
#include "absl/strings/str_format.h"
#include "client/working_set/cuda/host/gpu_working_set_impl.h"
#include "client/working_set/cuda/host/launch.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {

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
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("%s(layer %d): query type %d is none of float32 (0), bfloat16 "
                                     "(1), float16 (2)",
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

absl::Status GpuWorkingSetImpl::EnqueueSelect(LayerIndex layer, bool predicts, cudaStream_t after) {
  const uint32_t l = layer.value();
  LayerMarks& marks = layers_[l];
  Mark& before = predicts ? marks.ranked : marks.given;
  OASISKV_RETURN_IF_ERROR(before.Record(after));
  OASISKV_RETURN_IF_ERROR(before.Lead(select_.get()));
  OASISKV_RETURN_IF_ERROR(
      Launched("Select", layer,
               gpu::Select(shape_, memory_.layers[l], memory_.rows, predicts, shape_.cap,
                           memory_.plans[l], memory_.counters, select_.get())));
  if (proxy_ != nullptr && predicts) {
    OASISKV_RETURN_IF_ERROR(Launched("PostMisses", layer,
                                     gpu::PostMisses(shape_, l, memory_.plans[l], memory_.sources,
                                                     memory_.boxes[l], select_.get())));
  }
  return marks.selected.Record(select_.get());
}

absl::Status GpuWorkingSetImpl::Submit(LayerIndex layer, const void* queries, GpuQueryType type,
                                       int64_t row_stride, GpuStream stream) {
  OASISKV_RETURN_IF_ERROR(CheckQueries("Submit", layer, queries, type, &row_stride));
  const cuda::DeviceScope scope(options_.device);
  LayerMarks& marks = layers_[layer.value()];
  OASISKV_RETURN_IF_ERROR(marks.given.Record(static_cast<cudaStream_t>(stream)));
  OASISKV_RETURN_IF_ERROR(marks.given.Lead(predict_.get()));
  OASISKV_RETURN_IF_ERROR(
      Launched("ScoreTopK", layer,
               gpu::ScoreTopK(shape_, memory_.layers[layer.value()], memory_.rows, queries,
                              static_cast<gpu::QueryType>(type), row_stride, predict_.get(),
                              /*full_local=*/true, score_processors_)));
  marks.submitted = true;
  return EnqueueSelect(layer, true, predict_.get());
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
  LayerMarks& marks = layers_[layer.value()];
  OASISKV_RETURN_IF_ERROR(marks.given.Record(static_cast<cudaStream_t>(stream)));
  OASISKV_RETURN_IF_ERROR(marks.given.Lead(predict_.get()));
  OASISKV_RETURN_IF_ERROR(Launched(
      "LoadTopK", layer,
      gpu::LoadTopK(shape_, memory_.layers[layer.value()], memory_.rows, topk, k, predict_.get())));
  marks.submitted = true;
  return EnqueueSelect(layer, true, predict_.get());
}

absl::Status GpuWorkingSetImpl::AttentionDone(LayerIndex layer, GpuStream stream) {
  OASISKV_RETURN_IF_ERROR(CheckLayer("AttentionDone", layer));
  const cuda::DeviceScope scope(options_.device);
  const uint32_t l = layer.value();
  LayerMarks& marks = layers_[l];
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
  const cudaStream_t transfer = transfer_[l % 2].get();
  OASISKV_RETURN_IF_ERROR(marks.selected.Lead(transfer));
  if (proxy_ != nullptr && submitted) {
    OASISKV_RETURN_IF_ERROR(Launched(
        "AwaitMisses", layer,
        gpu::AwaitMisses(shape_, l, memory_.plans[l], memory_.sources, memory_.boxes[l], limit_ns(),
                         when_late(), memory_.counters, memory_.error, transfer)));
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
  return layers_[layer.value()].transferred.WaitIfSame(static_cast<cudaStream_t>(stream));
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
  gpu::LayerMemory truth = memory_.layers[l];
  truth.predicted = memory_.truth;
  truth.scores = memory_.truth_scores;
  OASISKV_RETURN_IF_ERROR(Launched(
      "ScoreTopK", layer,
      gpu::ScoreTopK(shape_, truth, memory_.rows, queries, static_cast<gpu::QueryType>(type),
                     row_stride, step, /*full_local=*/false, foreground_processors_)));
  OASISKV_RETURN_IF_ERROR(Launched("CompareTopK", layer,
                                   gpu::CompareTopK(shape_, memory_.layers[l], memory_.rows,
                                                    memory_.truth, memory_.counters, step)));
  if (policy == GpuMissPolicy::kDemand) {
    const gpu::Plan& plan = memory_.resolve_plan;
    OASISKV_RETURN_IF_ERROR(Launched("Select", layer,
                                     gpu::Select(shape_, truth, memory_.rows, true, shape_.resident,
                                                 plan, memory_.counters, step)));
    if (proxy_ != nullptr) {
      OASISKV_RETURN_IF_ERROR(FetchRemote(layer, plan, memory_.boxes.back(), step));
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

absl::Status GpuWorkingSetImpl::FetchRemote(LayerIndex layer, const gpu::Plan& plan,
                                            const gpu::Box& box, cudaStream_t stream) {
  OASISKV_RETURN_IF_ERROR(
      Launched("PostMisses", layer,
               gpu::PostMisses(shape_, layer.value(), plan, memory_.sources, box, stream)));
  return Launched("AwaitMisses", layer,
                  gpu::AwaitMisses(shape_, layer.value(), plan, memory_.sources, box, limit_ns(),
                                   when_late(), memory_.counters, memory_.error, stream));
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
  const auto step = static_cast<cudaStream_t>(stream);
  gpu::LayerMemory truth = memory_.layers[layer.value()];
  truth.predicted = memory_.truth;
  truth.scores = memory_.truth_scores;
  OASISKV_RETURN_IF_ERROR(Launched(
      "ScoreTopK", layer,
      gpu::ScoreTopK(shape_, truth, memory_.rows, queries, static_cast<gpu::QueryType>(type),
                     row_stride, step, /*full_local=*/false, foreground_processors_)));
  return Launched("CompareTopK", layer,
                  gpu::CompareTopK(shape_, memory_.layers[layer.value()], memory_.rows,
                                   memory_.truth, memory_.counters, step));
}

absl::Status GpuWorkingSetImpl::Join(cudaStream_t stream) {
  const cuda::Stream* const background[] = {&predict_, &select_, &transfer_[0], &transfer_[1]};
  for (int i = 0; i < 4; ++i) {
    OASISKV_RETURN_IF_ERROR(joined_[i].Record(background[i]->get()));
    OASISKV_RETURN_IF_ERROR(joined_[i].WaitIfSame(stream));
  }
  return absl::OkStatus();
}

absl::Status GpuWorkingSetImpl::EndStep(GpuStream stream) {
  const cuda::DeviceScope scope(options_.device);
  const auto step = static_cast<cudaStream_t>(stream);
  OASISKV_ASSIGN_OR_RETURN(const uint64_t capture, CaptureOf(step));
  return capture == 0 ? absl::OkStatus() : Join(step);
}

}  // namespace oasiskv
