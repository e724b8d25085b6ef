#include "tools/bench/step/walk.h"

#include "client/working_set/cuda/host/launch.h"
#include "common/status_macros.h"

namespace oasiskv::bench::step {

absl::StatusOr<Walk> Walk::Create(uint32_t layers, uint32_t rows, uint32_t columns, float a,
                                  uint64_t seed, cudaStream_t stream) {
  Walk walk;
  const uint64_t elements = uint64_t{layers} * rows * columns;
  OASISKV_ASSIGN_OR_RETURN(walk.state_, cuda::DeviceBuffer::Create(elements * 4, "queries"));
  OASISKV_ASSIGN_OR_RETURN(walk.queries_, cuda::DeviceBuffer::Create(elements * 4, "queries"));
  OASISKV_ASSIGN_OR_RETURN(walk.step_, cuda::DeviceBuffer::Create(8, "the step number"));
  QueryWalk& w = walk.walk_;
  w.state = walk.state_.As<float>();
  w.queries = walk.queries_.data();
  w.step = walk.step_.As<uint64_t>();
  w.layers = layers;
  w.rows = rows;
  w.columns = columns;
  w.seed = seed;
  w.a = 0;  // the first step is noise alone
  OASISKV_RETURN_IF_ERROR(walk.Advance(stream));
  w.a = a;
  return walk;
}

absl::Status Walk::Advance(cudaStream_t stream) const {
  return Launched("queries", AdvanceQueries(walk_, stream));
}

}  // namespace oasiskv::bench::step
