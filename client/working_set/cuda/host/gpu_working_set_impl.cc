// Making a working set; requests that come and go.
#include "client/working_set/cuda/host/gpu_working_set_impl.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "client/working_set/cuda/host/gpu_admission.h"
#include "client/working_set/options.h"
#include "client/working_set/stats_book.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {

static_assert(sizeof(GpuSlotState) == sizeof(gpu::SlotState) &&
              offsetof(GpuSlotState, promoted) == offsetof(gpu::SlotState, promoted));
static_assert(sizeof(GpuPlanItem) == sizeof(gpu::PlanItem) &&
              offsetof(GpuPlanItem, block) == offsetof(gpu::PlanItem, block));

absl::StatusOr<std::unique_ptr<GpuWorkingSet>> GpuWorkingSet::Create(
    const GpuWorkingSetOptions& options) {
  return GpuWorkingSetImpl::Create(options);
}

absl::StatusOr<std::unique_ptr<GpuWorkingSet>> GpuWorkingSetImpl::Create(
    GpuWorkingSetOptions options) {
  if (options.max_rows == 0) options.max_rows = options.base.max_requests;
  OASISKV_ASSIGN_OR_RETURN(const gpu::Shape shape, ShapeOf(options));
  int devices = 0;
  if (auto s = cuda::ToStatus(cudaGetDeviceCount(&devices), "cudaGetDeviceCount"); !s.ok()) {
    return Annotate(s, "no GPU can be used");
  }
  if (options.device < 0 || options.device >= devices) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("GpuWorkingSetOptions.device is %d; this process sees %d "
                                     "(CUDA_VISIBLE_DEVICES decides which)",
                                     options.device, devices));
  }
  const cuda::DeviceScope scope(options.device);
  OASISKV_ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Create(options, shape));
  std::unique_ptr<GpuWorkingSetImpl> made(
      new GpuWorkingSetImpl(std::move(options), shape, std::move(memory)));
  OASISKV_RETURN_IF_ERROR(made->CreateStreams());
  return std::unique_ptr<GpuWorkingSet>(std::move(made));
}

GpuWorkingSetImpl::GpuWorkingSetImpl(GpuWorkingSetOptions options, gpu::Shape shape,
                                     DeviceMemory memory)
    : options_(std::move(options)),
      shape_(shape),
      memory_(std::move(memory)),
      gather_{.ctas = options_.gather_ctas,
              .threads = options_.gather_threads,
              .loads = options_.gather_loads},
      layers_(shape.layers),
      slots_(shape.slots) {}

absl::Status GpuWorkingSetImpl::DivideProcessors() {
  int processors = 0;
  OASISKV_CUDA_RETURN(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount,
                                             static_cast<int>(options_.device)));
  const auto all = static_cast<uint32_t>(processors);
  score_processors_ = all > 2 * gather_.ctas ? all - gather_.ctas : all;
  foreground_processors_ = all;
  if (options_.predict_processors == 0) return absl::OkStatus();
  const uint32_t parts[] = {1, options_.predict_processors};
  auto made = cuda::Processors::Divide(options_.device, parts);
  if (!made.ok()) return Annotate(made.status(), "GpuWorkingSetOptions.predict_processors");
  processors_ = *std::move(made);
  score_processors_ = processors_[1].count();
  foreground_processors_ = processors_[2].count();
  OASISKV_ASSIGN_OR_RETURN(foreground_, processors_[2].StreamOf(/*priority=*/0));
  return absl::OkStatus();
}

absl::Status GpuWorkingSetImpl::CreateStreams() {
  OASISKV_RETURN_IF_ERROR(DivideProcessors());
  const auto stream_of = [this](size_t part, int priority) {
    return processors_.empty() ? cuda::Stream::Create(priority)
                               : processors_[part].StreamOf(priority);
  };
  for (cuda::Stream& stream : transfer_) {
    OASISKV_ASSIGN_OR_RETURN(stream, stream_of(0, options_.priority));
  }
  OASISKV_ASSIGN_OR_RETURN(predict_,
                           stream_of(1, options_.predict_priority.value_or(options_.priority)));
  OASISKV_ASSIGN_OR_RETURN(select_, stream_of(1, options_.priority));
  OASISKV_ASSIGN_OR_RETURN(admit_, cuda::Stream::Create(0));
  for (Mark& mark : joined_) OASISKV_RETURN_IF_ERROR(mark.Create());
  for (LayerMarks& layer : layers_) {
    for (Mark* mark :
         {&layer.given, &layer.ranked, &layer.selected, &layer.attended, &layer.transferred}) {
      OASISKV_RETURN_IF_ERROR(mark->Create());
    }
  }
  pool_.budget.limit = options_.max_host_bytes;
  OASISKV_RETURN_IF_ERROR(pool_.Create(shape_));
  for (uint32_t s = 0; s < shape_.slots; ++s) {
    OASISKV_RETURN_IF_ERROR(ForgetSlot({options_, shape_, memory_, pool_, admit_.get()}, s));
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
  for (const cuda::Stream* stream : {&predict_, &select_, &transfer_[0], &transfer_[1]}) {
    OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream->get()));
  }
  return absl::OkStatus();
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
  const AdmissionContext context{options_, shape_, memory_, pool_, admit_.get()};
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
  OASISKV_ASSIGN_OR_RETURN(const WorkingSetStats stats, ReadCounters(slot.value()));
  OASISKV_RETURN_IF_ERROR(
      ForgetSlot({options_, shape_, memory_, pool_, admit_.get()}, slot.value()));
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
  OASISKV_RETURN_IF_ERROR(Join(step));
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

}  // namespace oasiskv
