// The three stages between a step's Submit and the next step's Wait.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "client/selection/select.h"
#include "client/working_set/cpu/job.h"
#include "client/working_set/cpu/pages.h"
#include "client/working_set/cpu/plan.h"
#include "client/working_set/cpu/staging.h"
#include "common/mutex.h"

namespace oasiskv {

// What became of a row.
struct Outcome {
  bool late = false;       // not settled when it was asked for
  bool gave_up = false;    // its deadline passed before it was installed
  bool unplanned = false;  // ... and even before it was selected: counts and changes mean nothing
  bool dropped = false;    // nothing was installed, since the request leaves
  uint64_t fetched = 0;    // entries installed from the source
  absl::Status read;       // of the source's read
  absl::Status write_back;
};

// Thread contract: Submit, AttentionDone, Settle and Drop belong to the driving thread. Three
// threads of the pipeline's own run the stages, each taking jobs in the order of Submit:
//
//   predict   scores and top-K of every row
//   select    plans, copies completed blocks, posts the reads into staging, writes back
//   transfer  waits until the bytes are there and attention is done, then installs them in pages
//
// A slow or dead source holds up its own rows only: the transfer stage looks at all reads in flight
// in turn and never blocks on one. Reads are posted before attention is done; pages change after.
class Pipeline {
 public:
  // Both outlive the pipeline, and so do the states that rows point at.
  Pipeline(const WorkingSetContext& context, StagingPool* staging);
  ~Pipeline();  // cancels what is in flight and joins the threads

  // Waits while too many jobs are in the stages (jobs that were given up and whose reads have not
  // ended count too; those end by their deadline).
  void Submit(std::shared_ptr<Job> job);
  void AttentionDone(std::span<Row* const> rows);
  // Returns with the row settled: installed, or given up at the job's deadline. Pre-condition:
  // AttentionDone.
  Outcome Settle(const Job& job, Row* row);
  // Settles the row without installing anything more.
  Outcome Drop(Row* row);
  // Waits until no stage touches anything of `slot`. Pre-condition: its pending rows are dropped.
  void WaitReleased(RequestSlot slot);

 private:
  using JobQueue = std::deque<std::shared_ptr<Job>>;

  void RunPredict();
  void RunSelect();
  void RunTransfer();

  // The next job of `queue`; null when the pipeline stops.
  std::shared_ptr<Job> Pop(JobQueue* queue) ABSL_LOCKS_EXCLUDED(mutex_);
  void Push(JobQueue* queue, std::shared_ptr<Job> job) ABSL_LOCKS_EXCLUDED(mutex_);

  // Transfer stage, one look at a job. True when something happened.
  bool PollFetches(Job* job) ABSL_LOCKS_EXCLUDED(mutex_);
  bool InstallReady(Job* job) ABSL_LOCKS_EXCLUDED(mutex_);
  // True when every row is released: the job has left the stages.
  bool ReleaseRows(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllDropped(const Job& job, size_t fetch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What Wait does for a row that missed its deadline.
  void InstallWithoutSource(Row* row, RowPhase was) ABSL_LOCKS_EXCLUDED(mutex_);
  Outcome OutcomeOf(const Row& row, bool late) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const WorkingSetContext& context_;
  const size_t max_jobs_;
  StagingPool* const staging_;
  Selector late_selector_;  // the driving thread's

  Mutex mutex_;
  CondVar work_;   // queues, attention, drops, stop: the stages wait on it
  CondVar moved_;  // rows settled or released, jobs gone: the driving thread waits on it
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool kicked_ ABSL_GUARDED_BY(mutex_) = false;               // the transfer stage is to look again
  size_t jobs_ ABSL_GUARDED_BY(mutex_) = 0;                   // in the stages
  std::vector<uint32_t> unreleased_ ABSL_GUARDED_BY(mutex_);  // rows in the stages, by slot
  JobQueue to_predict_ ABSL_GUARDED_BY(mutex_);
  JobQueue to_select_ ABSL_GUARDED_BY(mutex_);
  JobQueue to_transfer_ ABSL_GUARDED_BY(mutex_);

  std::thread predict_, select_, transfer_;  // last: they use everything above
};

}  // namespace oasiskv
