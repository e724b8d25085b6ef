// The streams of one working set, their shares of the device, and the order between them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/handles.h"
#include "common/cuda/processors.h"
#include "oasiskv/gpu_working_set.h"

namespace oasiskv {

// The capture that `stream` takes part in, or 0.
absl::StatusOr<uint64_t> CaptureOf(cudaStream_t stream);

// Thread contract: used by the driving thread.
//
// A place in a stream that others wait for. An event recorded in one capture means nothing outside
// of it, nor one of the outside within; what such a wait would order is ordered already, because a
// graph joins all its streams before it ends and steps follow each other in one stream.
class Mark {
 public:
  absl::Status Create();
  absl::Status Record(cudaStream_t stream);
  // Makes `stream` wait, and takes it into the mark's capture if there is one.
  absl::Status Lead(cudaStream_t stream) const;
  // The same for a stream that may be elsewhere: does nothing unless it is where the mark is.
  absl::Status WaitIfSame(cudaStream_t stream) const;
  uint64_t capture() const { return capture_; }

 private:
  cuda::Event event_;
  bool recorded_ = false;
  uint64_t capture_ = 0;
};

// A layer's way through the streams.
struct LayerMarks {
  Mark given;              // step stream: the queries are there
  Mark ranked;             // predict stream
  Mark selected;           // select stream
  Mark attended;           // step stream: attention is done
  Mark transferred;        // a transfer stream
  bool submitted = false;  // between Submit and AttentionDone
};

// Thread contract: used by the driving thread.
//
// The background streams: predict, select, and two for transfers. With predict_processors set,
// transfers, prediction and everything else (foreground) have multiprocessors of their own;
// otherwise all streams share all of them.
class Streams {
 public:
  static absl::StatusOr<Streams> Create(const GpuWorkingSetOptions& options, uint32_t layers);

  LayerMarks& marks(uint32_t layer) { return layers_[layer]; }
  cudaStream_t predict() const { return predict_.get(); }
  cudaStream_t select() const { return select_.get(); }
  // Layers transfer on two streams in turn: while one layer's last bytes arrive and its commit
  // runs, the link is busy with the next one's.
  cudaStream_t transfer(uint32_t layer) const { return transfer_[layer % 2].get(); }
  cudaStream_t admit() const { return admit_.get(); }
  // The stream that the caller's work may use, and how many multiprocessors it has.
  GpuForeground foreground() const {
    return {.stream = foreground_.get(), .processors = foreground_processors_};
  }
  // For scores: those that the gather's CTAs do not hold.
  uint32_t score_processors() const { return score_processors_; }

  // Makes `stream` wait for all of the background streams.
  absl::Status Join(cudaStream_t stream);
  // Blocks until all of the background streams are done.
  absl::Status Synchronize();

 private:
  Streams() = default;
  absl::Status DivideProcessors(const GpuWorkingSetOptions& options);

  uint32_t score_processors_ = 0;
  uint32_t foreground_processors_ = 0;
  // Of transfers, of prediction, of all else; empty: all streams share all.
  std::vector<cuda::Processors> processors_;
  cuda::Stream foreground_;
  cuda::Stream predict_, select_, transfer_[2], admit_;
  Mark joined_[4];
  std::vector<LayerMarks> layers_;
};

}  // namespace oasiskv
