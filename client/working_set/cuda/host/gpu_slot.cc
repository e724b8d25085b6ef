#include "client/working_set/cuda/host/gpu_slot.h"

#include "common/cuda/status.h"
#include "common/status_macros.h"

namespace oasiskv {

absl::Status GpuSlotPool::Create(const gpu::Shape& shape) {
  remote_tables.resize(shape.slots);
  part_tables.resize(shape.slots);
  const uint64_t items = uint64_t{shape.layers} * shape.kv_heads * shape.resident;
  OASISKV_ASSIGN_OR_RETURN(
      plan, cuda::DeviceBuffer::Create(
                items * sizeof(gpu::PlanItem) + shape.layers * sizeof(uint32_t), "admissions"));
  OASISKV_ASSIGN_OR_RETURN(error_memory,
                           cuda::PinnedBuffer::Create(sizeof(gpu::ErrorWord), "admissions"));
  error = error_memory.As<gpu::ErrorWord>();
  return absl::OkStatus();
}

HostFrames& GpuSlotPool::Units(uint64_t bytes) {
  std::unique_ptr<HostFrames>& frames_of_size = frames[bytes];
  if (frames_of_size == nullptr) frames_of_size = std::make_unique<HostFrames>(bytes, &budget);
  return *frames_of_size;
}

GpuSlot::~GpuSlot() {
  for (const auto& [frames, unit] : own) frames->Give(unit);
  for (const auto& [frames, units] : reserved) frames->Release(units);
}

absl::Status ForgetSlot(const AdmissionContext& context, uint32_t slot) {
  const uint32_t heads = context.shape.kv_heads;
  uint64_t* const table = context.memory.Frames(slot);
  OASISKV_CUDA_RETURN(
      cudaMemsetAsync(table, 0, context.shape.max_blocks * sizeof(*table), context.stream));
  const std::vector<gpu::HeadSource> none(heads, gpu::HeadSource{.frames = table});
  OASISKV_CUDA_RETURN(cudaMemcpyAsync(context.memory.sources + size_t{slot} * heads, none.data(),
                                      heads * sizeof(gpu::HeadSource), cudaMemcpyHostToDevice,
                                      context.stream));
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(context.stream));
  return absl::OkStatus();
}

}  // namespace oasiskv
