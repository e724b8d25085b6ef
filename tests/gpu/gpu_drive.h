// A working set on the CPU and one on the GPU, driven with the same inputs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/cuda/handles.h"
#include "gtest/gtest.h"
#include "oasiskv/gpu_working_set.h"
#include "tests/gpu/local_source.h"
#include "tests/unit/working_set_model.h"

namespace oasiskv::gpu_test {

#define ASSERT_STATUS_OK(expression)                           \
  do {                                                         \
    const absl::Status status_of_it = (expression);            \
    ASSERT_TRUE(status_of_it.ok()) << status_of_it.ToString(); \
  } while (false)

enum class Where { kLocal, kRemote, kMixed };
enum class Layout { kOwn, kNhdWithTable };

struct Case {
  std::string name = "default";
  ElementType element = ElementType::kBFloat16;
  Packing packing = Packing::kKeyThenValue;
  SelectionMode mode = SelectionMode::kCapped;
  double ratio = 0.25;
  GroupCombine combine = GroupCombine::kMax;
  double bound_weight = 1.0;
  Where where = Where::kLocal;
  Layout layout = Layout::kOwn;
};

WorkingSetOptions OptionsOf(const Case& c);

// Queries and tokens of one step, in pinned memory that the GPU reads in place.
class Inputs {
 public:
  explicit Inputs(const WorkingSetOptions& options);
  // Queries: random whole numbers, so that sums are exact.
  void Fill(std::mt19937_64* rng);
  float* queries(uint32_t layer) const { return queries_.As<float>() + layer * queries_each_; }
  float* truth(uint32_t layer) const { return truth_.As<float>() + layer * queries_each_; }
  std::byte* keys(uint32_t layer) const { return keys_.data() + layer * token_bytes_; }
  std::byte* values(uint32_t layer) const { return values_.data() + layer * token_bytes_; }
  uint64_t row_bytes() const { return row_bytes_; }

 private:
  uint64_t queries_each_ = 0, token_bytes_ = 0, row_bytes_ = 0;
  uint32_t layers_ = 0;
  cuda::PinnedBuffer queries_, truth_, keys_, values_;
};

// Thread contract: one thread.
class Drive {
 public:
  explicit Drive(const Case& c, uint64_t seed);
  ~Drive();

  // Requests join and leave, then the rest step; after each step everything is compared.
  void Steps(int steps);
  void CompareTotals();

 private:
  // Of the plan that a request's pages wait for: there is none, it is LastPlan, or a later plan has
  // taken its place.
  enum class Planned { kNothing, kLast, kGone };
  struct Request {
    std::shared_ptr<FakeSource> cpu, gpu;
    std::vector<uint64_t> next_token;             // by layer
    std::vector<Planned> planned;                 // by layer
    std::vector<std::vector<int32_t>> predicted;  // by layer, in the step that planned
    std::unique_ptr<RequestModel> model;
    bool skipped = false;  // its last step predicted nothing
  };
  struct Given {  // memory of an engine's own
    cuda::DeviceBuffer k, v, table;
  };

  void MakePages(GpuWorkingSetOptions* options);
  void Churn();
  void Join();
  void Step(const std::vector<RequestSlot>& rows, bool predict);
  void Compare(uint32_t layer, RequestSlot slot);
  std::vector<int32_t> Prediction(const Request& request, uint32_t layer,
                                  const float* queries) const;
  void ComparePlan(uint32_t layer, RequestSlot slot, const std::vector<int32_t>& map);
  void CompareResolved(const GpuResolved& resolved, const std::vector<RequestSlot>& rows);

  const Case case_;
  std::mt19937_64 rng_;
  WorkingSetOptions options_;
  std::unique_ptr<WorkingSet> cpu_;
  std::vector<Given> given_;
  std::unique_ptr<GpuWorkingSet> gpu_;
  std::unique_ptr<Inputs> inputs_;
  cuda::Stream stream_;
  std::map<uint32_t, Request> requests_;                        // by slot
  std::map<uint32_t, std::vector<std::vector<int32_t>>> maps_;  // by slot and layer, of the GPU
  uint64_t joined_ = 0;
};

}  // namespace oasiskv::gpu_test
