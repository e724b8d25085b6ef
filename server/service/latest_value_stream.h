// A server stream that sends the newest value; a slow reader misses the values in between. Included
// by .cc files only: it needs gRPC's headers.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>
#include <utility>

#include "common/mutex.h"

namespace oasiskv::server {

// Thread contract: safe for concurrent use.
//
// gRPC owns a share until OnDone; others hold weak pointers.
template <typename Message>
class LatestValueStream : public grpc::ServerWriteReactor<Message> {
 public:
  static std::shared_ptr<LatestValueStream> Make() {
    std::shared_ptr<LatestValueStream> out(new LatestValueStream);
    out->grpcs_ = out;
    return out;
  }

  // Sends `value`, now or after the write in progress; it replaces a value that waits.
  void Set(Message value) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(mutex_);
      next_ = std::move(value);
    }
    Proceed();
  }

  // Ends the stream; only the first call counts.
  void End(grpc::Status status) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(mutex_);
      if (!end_.has_value()) end_ = std::move(status);
    }
    Proceed();
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok && !end_.has_value()) end_ = grpc::Status::CANCELLED;
    }
    Proceed();
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override { const std::shared_ptr<LatestValueStream> last_use = std::move(grpcs_); }

 private:
  LatestValueStream() = default;

  // gRPC may complete an operation inside the call that starts it, so none is started under the
  // lock. `writing_` keeps a second one from starting meanwhile.
  void Proceed() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::optional<grpc::Status> finish;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (end_.has_value()) {
        finished_ = true;
        finish = *end_;
      } else if (next_.has_value()) {
        writing_ = true;
        current_ = *std::move(next_);
        next_.reset();
      } else {
        return;
      }
    }
    if (finish.has_value()) {
      this->Finish(*finish);
    } else {
      this->StartWrite(&current_);
    }
  }

  std::shared_ptr<LatestValueStream> grpcs_;
  Message current_;  // of the write in progress; touched only by who set writing_
  Mutex mutex_;
  std::optional<Message> next_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace oasiskv::server
