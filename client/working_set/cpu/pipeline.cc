#include "client/working_set/cpu/pipeline.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "client/working_set/cpu/layer_state.h"
#include "common/pause_point.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

using std::chrono::steady_clock;

// How long the transfer stage sleeps between two looks at reads in flight: short at first, longer
// while nothing arrives.
constexpr std::chrono::microseconds kFirstPoll{20};
constexpr std::chrono::microseconds kLongestPoll{500};

}  // namespace

Pipeline::Pipeline(const WorkingSetContext& context, StagingPool* staging)
    : context_(context),
      // Each (layer, slot) has one pending row at most; as many again may be given up and
      // unfinished.
      max_jobs_(size_t{2} * context.options.geometry.layers * context.options.max_requests),
      staging_(staging),
      late_selector_(context.options.max_blocks),
      unreleased_(context.options.max_requests, 0),
      predict_([this] { RunPredict(); }),
      select_([this] { RunSelect(); }),
      transfer_([this] { RunTransfer(); }) {}

Pipeline::~Pipeline() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    work_.NotifyAll();
  }
  predict_.join();
  select_.join();
  transfer_.join();
}

void Pipeline::Submit(std::shared_ptr<Job> job) {
  MutexLock lock(mutex_);
  while (jobs_ >= max_jobs_) moved_.Wait(mutex_);
  ++jobs_;
  for (const Row& row : job->rows) ++unreleased_[row.slot.value()];
  to_predict_.push_back(std::move(job));
  work_.NotifyAll();
}

void Pipeline::AttentionDone(std::span<Row* const> rows) {
  MutexLock lock(mutex_);
  for (Row* row : rows) row->attention_done = true;
  kicked_ = true;
  work_.NotifyAll();
}

Outcome Pipeline::OutcomeOf(const Row& row, bool late) {
  return {.late = late,
          .gave_up = row.gave_up,
          .unplanned = row.unplanned,
          .dropped = row.dropped,
          .fetched = row.fetched,
          .read = row.status,
          .write_back = row.write_back};
}

Outcome Pipeline::Settle(const Job& job, Row* row) {
  RowPhase was;
  bool late = false;
  {
    MutexLock lock(mutex_);
    while (true) {
      if (row->phase == RowPhase::kSettled) return OutcomeOf(*row, late);
      late = true;
      const bool ours =
          row->phase == RowPhase::kQueued || (row->phase == RowPhase::kPlanned && !row->arrived);
      if (!ours) {
        moved_.Wait(mutex_);  // a stage is at it and will be done shortly
      } else if (steady_clock::now() < job.deadline) {
        moved_.WaitUntil(mutex_, job.deadline);
      } else {
        break;
      }
    }
    was = row->phase;
    row->phase = RowPhase::kInstalling;
    row->gave_up = true;
    row->unplanned = was == RowPhase::kQueued;
  }
  InstallWithoutSource(row, was);
  MutexLock lock(mutex_);
  row->phase = RowPhase::kSettled;
  kicked_ = true;
  work_.NotifyAll();
  return OutcomeOf(*row, late);
}

void Pipeline::InstallWithoutSource(Row* row, RowPhase was) {
  const Geometry& geometry = context_.options.geometry;
  if (was == RowPhase::kPlanned) {
    Install(context_.pool, geometry, context_.resident(), row->changes, Fetched::kNo, row->now,
            row->state);
    return;
  }
  if (row->promoted == kNoBlock) return;
  // Not selected yet: the stages may still be ranking the row, so its plan is made in another one.
  Row alone;
  alone.slot = row->slot;
  alone.state = row->state;
  alone.source = row->source;
  alone.promoted = row->promoted;
  alone.now = row->now;
  PlanRow(context_, 0, &late_selector_, &alone);
  CopyCompleted(context_, &alone);
  Install(context_.pool, geometry, context_.resident(), alone.changes, Fetched::kNo, alone.now,
          alone.state);
  const absl::Status status = WriteBackCompleted(context_, alone);
  MutexLock lock(mutex_);
  row->write_back = status;
}

Outcome Pipeline::Drop(Row* row) {
  MutexLock lock(mutex_);
  while (row->phase != RowPhase::kSettled) {
    if (row->phase == RowPhase::kQueued || row->phase == RowPhase::kPlanned) {
      row->phase = RowPhase::kSettled;
      row->dropped = true;
      kicked_ = true;
      work_.NotifyAll();
    } else {
      moved_.Wait(mutex_);
    }
  }
  return OutcomeOf(*row, false);
}

void Pipeline::WaitReleased(RequestSlot slot) {
  MutexLock lock(mutex_);
  while (unreleased_[slot.value()] > 0) moved_.Wait(mutex_);
}

std::shared_ptr<Job> Pipeline::Pop(JobQueue* queue) {
  MutexLock lock(mutex_);
  while (queue->empty() && !stopping_) work_.Wait(mutex_);
  if (stopping_) return nullptr;
  std::shared_ptr<Job> job = std::move(queue->front());
  queue->pop_front();
  return job;
}

void Pipeline::Push(JobQueue* queue, std::shared_ptr<Job> job) {
  MutexLock lock(mutex_);
  queue->push_back(std::move(job));
  work_.NotifyAll();
}

void Pipeline::RunPredict() {
  Ranker ranker(context_);
  while (std::shared_ptr<Job> job = Pop(&to_predict_)) {
    OASISKV_PAUSE_POINT("ws.predict.before_rank");
    for (Row& row : job->rows) {
      if (row.queries == nullptr) continue;
      row.predicted.resize(uint64_t{context_.heads()} * context_.resident());
      ranker.Rank(row.state->layer, row.state->slot, row.candidates, row.queries,
                  row.predicted.data());
    }
    Push(&to_select_, std::move(job));
  }
}

void Pipeline::RunSelect() {
  Selector selector(context_.options.max_blocks);
  std::vector<Row*> rows;
  while (std::shared_ptr<Job> job = Pop(&to_select_)) {
    rows.clear();
    {
      MutexLock lock(mutex_);
      for (Row& row : job->rows) {
        if (row.phase != RowPhase::kQueued) continue;
        row.phase = RowPhase::kSelecting;
        rows.push_back(&row);
      }
    }
    for (Row* row : rows) {
      PlanRow(context_, context_.cap, &selector, row);
      CopyCompleted(context_, row);
    }
    job->fetches =
        GatherFetches(job->layer, rows, context_.options.geometry.entry_bytes(), staging_);
    {
      MutexLock lock(mutex_);
      for (Row* row : rows) row->phase = RowPhase::kPlanned;
      moved_.NotifyAll();
    }
    // From here on Wait may take a row, so what follows reads plans only.
    for (SourceFetch& fetch : job->fetches) PostFetch(&fetch, job->deadline);
    for (Row* row : rows) {
      const absl::Status status = WriteBackCompleted(context_, *row);
      if (status.ok()) continue;
      MutexLock lock(mutex_);
      row->write_back = status;
    }
    Push(&to_transfer_, std::move(job));
  }
}

bool Pipeline::AllDropped(const Job& job, size_t fetch) {
  return std::all_of(job.rows.begin(), job.rows.end(), [&](const Row& row) {
    mutex_.AssertHeld();
    return row.fetch != fetch || row.dropped;
  });
}

bool Pipeline::PollFetches(Job* job) {
  bool moved = false;
  for (size_t i = 0; i < job->fetches.size(); ++i) {
    SourceFetch& fetch = job->fetches[i];
    if (fetch.ended) continue;
    bool dropped;
    {
      MutexLock lock(mutex_);
      dropped = AllDropped(*job, i);
    }
    if (dropped) {
      fetch.pending->Cancel();
      fetch.status = MakeError(ErrorCode::kCancelled, "the request left");
    } else if (fetch.pending->Done()) {
      fetch.status = fetch.pending->Wait();
    } else if (steady_clock::now() >= job->deadline) {
      fetch.pending->Cancel();
      fetch.status = MakeError(ErrorCode::kDeadlineExceeded,
                               "the read had not ended at the working set's late_deadline");
    } else {
      continue;
    }
    fetch.pending.reset();
    fetch.source.reset();
    fetch.ended = true;
    if (fetch.status.ok()) {
      MutexLock lock(mutex_);
      for (Row& row : job->rows) row.arrived = row.arrived || row.fetch == i;
    }
    moved = true;
  }
  return moved;
}

bool Pipeline::InstallReady(Job* job) {
  bool moved = false;
  for (Row& row : job->rows) {
    const SourceFetch* fetch = row.fetch == kNoFetch ? nullptr : &job->fetches[row.fetch];
    if (fetch != nullptr && !fetch->ended) continue;
    if (!row.reached_install && !row.changes.empty()) {
      row.reached_install = true;
      OASISKV_PAUSE_POINT("ws.transfer.before_install");
    }
    {
      MutexLock lock(mutex_);
      if (row.phase != RowPhase::kPlanned || !row.attention_done) continue;
      row.phase = RowPhase::kInstalling;
    }
    const bool fetched = fetch != nullptr && fetch->status.ok();
    const uint64_t copied =
        Install(context_.pool, context_.options.geometry, context_.resident(), row.changes,
                fetched ? Fetched::kYes : Fetched::kNo, row.now, row.state);
    MutexLock lock(mutex_);
    row.fetched = copied;
    if (fetch != nullptr) row.status.Update(fetch->status);
    row.phase = RowPhase::kSettled;
    moved_.NotifyAll();
    moved = true;
  }
  return moved;
}

bool Pipeline::ReleaseRows(Job* job) {
  bool all = true;
  for (Row& row : job->rows) {
    if (row.released) continue;
    row.released =
        row.phase == RowPhase::kSettled && (row.fetch == kNoFetch || job->fetches[row.fetch].ended);
    if (row.released) {
      row.source.reset();  // never the last: the slot holds its source until its rows are released
      --unreleased_[row.slot.value()];
      moved_.NotifyAll();
    }
    all = all && row.released;
  }
  return all;
}

void Pipeline::RunTransfer() {
  std::vector<std::shared_ptr<Job>> jobs;
  auto poll = kFirstPoll;
  while (true) {
    const bool reading = std::any_of(jobs.begin(), jobs.end(), [](const auto& job) {
      return std::any_of(job->fetches.begin(), job->fetches.end(),
                         [](const SourceFetch& fetch) { return !fetch.ended; });
    });
    {
      MutexLock lock(mutex_);
      if (!kicked_ && !stopping_ && to_transfer_.empty()) {
        if (reading) {
          work_.WaitUntil(mutex_, steady_clock::now() + poll);
        } else {
          work_.Wait(mutex_);
        }
      }
      if (stopping_) break;
      kicked_ = false;
      jobs.insert(jobs.end(), std::make_move_iterator(to_transfer_.begin()),
                  std::make_move_iterator(to_transfer_.end()));
      to_transfer_.clear();
    }
    bool moved = false;
    for (const auto& job : jobs) {
      moved |= PollFetches(job.get());
      moved |= InstallReady(job.get());
    }
    poll = moved ? kFirstPoll : std::min(poll * 2, kLongestPoll);
    std::vector<std::shared_ptr<Job>> gone;  // let go of outside the lock
    {
      MutexLock lock(mutex_);
      for (auto& job : jobs) {
        if (ReleaseRows(job.get())) gone.push_back(std::move(job));
      }
      jobs_ -= gone.size();
      if (!gone.empty()) moved_.NotifyAll();
    }
    std::erase(jobs, nullptr);
  }
  for (const auto& job : jobs) {
    for (SourceFetch& fetch : job->fetches) {
      if (!fetch.ended) fetch.pending->Cancel();
    }
  }
}

}  // namespace oasiskv
