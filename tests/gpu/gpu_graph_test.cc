// A step captured once in a CUDA graph and launched gives what the eager step gives, while requests
// join and leave.
#include <map>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/gpu_drive.h"
#include "tests/gpu/transfer_rig.h"

namespace oasiskv::gpu_test {
namespace {

class GraphDrive {
 public:
  explicit GraphDrive(SelectionMode mode, uint32_t predict_processors = 0) {
    options_.base = OptionsOf(Case{.mode = mode});
    options_.predict_processors = predict_processors;
    options_.max_new_tokens = 120;
    inputs_ = std::make_unique<Inputs>(options_.base);
    for (Side& side : sides_) {
      auto made = GpuWorkingSet::Create(options_);
      EXPECT_TRUE(made.ok()) << made.status();
      side.ws = *std::move(made);
      auto stream = cuda::Stream::Create(0);
      EXPECT_TRUE(stream.ok()) << stream.status();
      side.stream = *std::move(stream);
    }
  }
  ~GraphDrive() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
  }

  void Run(int steps) {
    Capture();
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      Churn();
      FillInputs();
      for (Side& side : sides_) {
        ASSERT_STATUS_OK(side.ws->SetRows(rows_, side.step()));
      }
      Enqueue(sides_[0]);
      ASSERT_EQ(cudaGraphLaunch(exec_, sides_[1].step()), cudaSuccess);
      // The next inputs are written in place, and predict reads them beside the step's stream.
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      if (i % 25 == 0 || i + 1 == steps) Compare();
    }
    for (Side& side : sides_) ASSERT_STATUS_OK(side.ws->Error());
    auto one = sides_[0].ws->Stats(), other = sides_[1].ws->Stats();
    ASSERT_TRUE(one.ok() && other.ok());
    EXPECT_EQ(one->hit, other->hit);
    EXPECT_EQ(one->admitted, other->admitted);
    EXPECT_EQ(one->promoted, other->promoted);
    EXPECT_EQ(one->refused_by_cap, other->refused_by_cap);
    EXPECT_EQ(one->demanded, other->demanded);
    EXPECT_EQ(one->agreement_samples, other->agreement_samples);
    EXPECT_EQ(one->bytes_used, other->bytes_used);
    EXPECT_GT(one->bytes_used, 0u);
    EXPECT_GT(one->promoted, 0u);
    EXPECT_GT(left_, 10);
  }

 private:
  struct Side {
    std::unique_ptr<GpuWorkingSet> ws;
    cuda::Stream stream;
    cudaStream_t step() const {
      const GpuForeground foreground = ws->Foreground();
      return foreground.stream != nullptr ? static_cast<cudaStream_t>(foreground.stream)
                                          : stream.get();
    }
  };
  struct Request {
    std::shared_ptr<FakeSource> source;
    uint64_t next_token = 0;
    int steps_left = 0;
  };

  void Enqueue(Side& side) {
    cudaStream_t const s = side.step();
    GpuWorkingSet& ws = *side.ws;
    for (uint32_t l = 0; l < options_.base.geometry.layers; ++l) {
      const LayerIndex layer(l);
      ASSERT_STATUS_OK(ws.Wait(layer, s));
      ASSERT_STATUS_OK(ws.Append(layer, inputs_->keys(l), inputs_->values(l), 0, s));
      if (options_.base.mode == SelectionMode::kExact) {
        ASSERT_STATUS_OK(ws.Resolve(layer, inputs_->truth(l), GpuQueryType::kFloat32, 0,
                                    GpuMissPolicy::kDemand, s)
                             .status());
      } else {
        ASSERT_STATUS_OK(
            ws.SampleAgreement(layer, inputs_->truth(l), GpuQueryType::kFloat32, 0, s));
      }
      ASSERT_STATUS_OK(ws.Submit(layer, inputs_->queries(l), GpuQueryType::kFloat32, 0, s));
      ASSERT_STATUS_OK(ws.AttentionDone(layer, s));
    }
    ASSERT_STATUS_OK(ws.EndStep(s));
  }

  void Capture() {
    Side& side = sides_[1];
    cudaStream_t const s = side.step();
    ASSERT_EQ(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    Enqueue(side);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(s, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec_, graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
  }

  void Churn() {
    for (auto it = requests_.begin(); it != requests_.end();) {
      if (it->second.steps_left-- > 0) {
        ++it;
        continue;
      }
      for (Side& side : sides_) ASSERT_STATUS_OK(side.ws->Leave(RequestSlot(it->first)));
      it = requests_.erase(it);
      ++left_;
    }
    const bool join = requests_.size() < options_.base.max_requests && rng_() % 5 == 0;
    if (join || requests_.empty()) {
      Request request;
      const uint64_t tokens = 1 + rng_() % 150, seed = rng_();
      if (rng_() % 2 == 0) {
        request.source = std::make_shared<FakeSource>(options_.base.geometry, tokens, seed);
      } else {
        request.source = std::make_shared<LocalSource>(options_.base.geometry, tokens, seed);
      }
      request.next_token = tokens;
      request.steps_left = static_cast<int>(10 + rng_() % 100);
      auto one = sides_[0].ws->Admit(request.source), other = sides_[1].ws->Admit(request.source);
      ASSERT_TRUE(one.ok()) << one.status();
      ASSERT_TRUE(other.ok()) << other.status();
      ASSERT_EQ(*one, *other);
      requests_[one->value()] = std::move(request);
    }
    rows_.clear();
    for (const auto& [slot, _] : requests_) rows_.push_back(RequestSlot(slot));
  }

  void FillInputs() {
    inputs_->Fill(&rng_);
    for (size_t r = 0; r < rows_.size(); ++r) {
      Request& request = requests_[rows_[r].value()];
      for (uint32_t l = 0; l < options_.base.geometry.layers; ++l) {
        const auto key = request.source->kv().Token(request.next_token, l, Half::kKey);
        const auto value = request.source->kv().Token(request.next_token, l, Half::kValue);
        std::memcpy(inputs_->keys(l) + r * inputs_->row_bytes(), key.data(), key.size());
        std::memcpy(inputs_->values(l) + r * inputs_->row_bytes(), value.data(), value.size());
      }
      ++request.next_token;
    }
  }

  void Compare() {
    for (RequestSlot slot : rows_) {
      for (uint32_t l = 0; l < options_.base.geometry.layers; ++l) {
        auto one = sides_[0].ws->Snapshot(LayerIndex(l), slot);
        auto other = sides_[1].ws->Snapshot(LayerIndex(l), slot);
        ASSERT_TRUE(one.ok()) << one.status();
        ASSERT_TRUE(other.ok()) << other.status();
        ASSERT_EQ(one->map, other->map);
        ASSERT_EQ(one->stamps, other->stamps);
        ASSERT_EQ(one->predicted, other->predicted);
        ASSERT_EQ(one->state.complete, other->state.complete);
        ASSERT_EQ(one->state.local_tokens, other->state.local_tokens);
        ExpectTrue(*one, slot, l);
        ExpectTrue(*other, slot, l);
      }
    }
  }

  void ExpectTrue(const GpuSnapshot& shot, RequestSlot slot, uint32_t layer) {
    const Geometry& g = options_.base.geometry;
    const uint32_t k = options_.base.resident_blocks;
    for (uint32_t h = 0; h < g.kv_heads; ++h) {
      for (uint32_t p = 0; p < k; ++p) {
        const int32_t block = shot.map[h * k + p];
        if (block < 0) continue;
        const auto entry =
            requests_[slot.value()].source->kv().Entry(static_cast<uint32_t>(block), layer, h);
        ASSERT_EQ(
            std::memcmp(entry.data(), &shot.pages[(h * (k + 1) + p) * entry.size()], entry.size()),
            0)
            << "head " << h << ", page " << p << ", block " << block;
      }
    }
  }

  GpuWorkingSetOptions options_;
  std::mt19937_64 rng_{11};
  std::unique_ptr<Inputs> inputs_;
  Side sides_[2];  // eager, and the graph
  cudaGraphExec_t exec_ = nullptr;
  std::map<uint32_t, Request> requests_;
  std::vector<RequestSlot> rows_;
  int left_ = 0;
};

TEST(GpuGraphTest, AThousandCappedStepsEqualEagerOnes) {
  OASISKV_NEEDS_GPU();
  GraphDrive(SelectionMode::kCapped).Run(1000);
}

TEST(GpuGraphTest, StepsOnTheForegroundEqualEagerOnes) {
  OASISKV_NEEDS_GPU();
  GraphDrive(SelectionMode::kCapped, /*predict_processors=*/16).Run(300);
}

TEST(GpuGraphTest, AThousandExactStepsEqualEagerOnes) {
  OASISKV_NEEDS_GPU();
  GraphDrive(SelectionMode::kExact).Run(1000);
}

}  // namespace
}  // namespace oasiskv::gpu_test
