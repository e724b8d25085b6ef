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
#include "tests/gpu/gpu_inputs.h"
#include "tests/gpu/local_source.h"
#include "tests/unit/working_set/working_set_model.h"

namespace oasiskv::gpu_test {

#define ASSERT_STATUS_OK(expression)                           \
  do {                                                         \
    const absl::Status status_of_it = (expression);            \
    ASSERT_TRUE(status_of_it.ok()) << status_of_it.ToString(); \
  } while (false)

enum class Where { kLocal, kRemote, kMixed };
enum class Layout { kOwn, kNhdWithTable };
enum class Predict { kQueries, kLists };  // what predicts the next step: Submit or SubmitTopK

struct Case {
  std::string name = "default";
  ElementType element = ElementType::kBFloat16;
  Packing packing = Packing::kKeyThenValue;
  SelectionMode mode = SelectionMode::kCapped;
  uint32_t ranked = 0;
  double ratio = 0.25;
  GroupCombine combine = GroupCombine::kMax;
  double bound_weight = 1.0;
  SummaryType summaries = SummaryType::kAsKeys;
  Where where = Where::kLocal;
  Layout layout = Layout::kOwn;
  Predict predict = Predict::kQueries;
  GpuQueryType query_type = GpuQueryType::kFloat32;
  // kExact: with kDrop and kReport the cpu backend runs capped, for that is what the GPU's pages do
  // then, whatever is resolved.
  GpuMissPolicy miss = GpuMissPolicy::kDemand;
  uint32_t kv_heads = 2;
  uint32_t parts = 0;  // of a source in local memory; 0: one, the rank's heads and no others
  int device = 0;
  uint32_t predict_processors = 0;
};

WorkingSetOptions OptionsOf(const Case& c);

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
    uint64_t missing = 0;  // blocks that Resolve left out
  };
  struct Given {  // memory of an engine's own
    cuda::DeviceBuffer k, v, table;
  };

  void MakePages(GpuWorkingSetOptions* options);
  void Churn();
  void Join();
  std::shared_ptr<FakeSource> MakeSource(uint64_t tokens, uint64_t seed);
  // Until the GPU has read the last step's inputs.
  void Settle();
  void Step(const std::vector<RequestSlot>& rows, bool predict);
  void Append(uint32_t layer, const std::vector<RequestSlot>& rows);
  void Resolve(uint32_t layer, const std::vector<RequestSlot>& rows);
  void Predicts(uint32_t layer, const std::vector<RequestSlot>& rows);
  void SubmitLists(uint32_t layer, const std::vector<RequestSlot>& rows);
  void Compare(uint32_t layer, RequestSlot slot);
  // Places and numbers of blocks of one head's list; the CPU's gets those that it takes.
  void FillList(const Request& request, uint32_t layer, uint32_t k, int32_t* gpu, int32_t* cpu);
  // What is to be predicted, by definition, from `ranked` of every head.
  std::vector<int32_t> Prediction(const Request& request, uint32_t layer,
                                  std::vector<std::vector<int32_t>> ranked) const;
  // Blocks that may be predicted: the local one counts when it is full.
  uint32_t Candidates(const Request& request, uint32_t layer) const {
    return static_cast<uint32_t>(request.next_token[layer] / options_.geometry.block_tokens);
  }
  void ComparePlan(uint32_t layer, RequestSlot slot, const std::vector<int32_t>& map);
  void CompareResolved(uint32_t layer, const GpuResolved& resolved,
                       const std::vector<RequestSlot>& rows);

  // Keys that are not exact in 8 bits, where summaries are.
  uint32_t Grain() const { return case_.summaries == SummaryType::kFloat8 ? 32 : 1; }

  const Case case_;
  std::mt19937_64 rng_;
  WorkingSetOptions options_;  // of the cpu backend
  std::unique_ptr<WorkingSet> cpu_;
  std::vector<Given> given_;
  std::unique_ptr<GpuWorkingSet> gpu_;
  std::unique_ptr<Inputs> inputs_;
  cuda::Stream stream_;
  std::map<uint32_t, Request> requests_;                        // by slot
  std::map<uint32_t, std::vector<std::vector<int32_t>>> maps_;  // by slot and layer, of the GPU
  uint64_t joined_ = 0, missing_ = 0;
};

}  // namespace oasiskv::gpu_test
