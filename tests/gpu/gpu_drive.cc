#include "tests/gpu/gpu_drive.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tests/gpu/parts_source.h"

namespace oasiskv::gpu_test {
namespace {

constexpr uint32_t kNewTokens = 200;

}  // namespace

WorkingSetOptions OptionsOf(const Case& c) {
  WorkingSetOptions o;
  o.geometry.layers = 2;
  o.geometry.kv_heads = c.packing == Packing::kLatent ? 1 : c.kv_heads;
  o.geometry.total_kv_heads = o.geometry.kv_heads;
  o.geometry.head_dim = 16;
  o.geometry.block_tokens = 4;
  o.geometry.element_type = c.element;
  o.geometry.packing = c.packing;
  o.query_heads = 3 * o.geometry.kv_heads;
  o.resident_blocks = 8;
  o.ranked_blocks = c.ranked;
  o.fetch_ratio = c.ratio;
  o.mode = c.miss == GpuMissPolicy::kDemand ? c.mode : SelectionMode::kCapped;
  o.combine = c.combine;
  o.bound_weight = c.bound_weight;
  o.summaries = c.summaries;
  o.max_requests = 4;
  o.max_blocks = 100;
  o.late_deadline = std::chrono::seconds(60);
  return o;
}

Drive::Drive(const Case& c, uint64_t seed) : case_(c), rng_(seed), options_(OptionsOf(c)) {
  auto cpu = WorkingSet::Create(options_);
  EXPECT_TRUE(cpu.ok()) << cpu.status();
  cpu_ = *std::move(cpu);
  GpuWorkingSetOptions gpu_options;
  gpu_options.base = options_;
  gpu_options.base.mode = c.mode;
  gpu_options.device = c.device;
  gpu_options.predict_processors = c.predict_processors;
  gpu_options.max_new_tokens = kNewTokens;
  gpu_options.remote_sources = c.where != Where::kLocal;
  const cuda::DeviceScope scope(c.device);
  if (c.layout == Layout::kNhdWithTable) MakePages(&gpu_options);
  auto gpu = GpuWorkingSet::Create(gpu_options);
  EXPECT_TRUE(gpu.ok()) << gpu.status();
  gpu_ = *std::move(gpu);
  inputs_ = std::make_unique<Inputs>(options_, c.query_type);
  auto stream = cuda::Stream::Create(0);
  EXPECT_TRUE(stream.ok()) << stream.status();
  stream_ = *std::move(stream);
}

Drive::~Drive() { gpu_.reset(); }

// K and V apart, [page][token][head][dim], pages in shuffled order.
void Drive::MakePages(GpuWorkingSetOptions* options) {
  const Geometry& g = options_.geometry;
  const uint32_t pages = options_.max_requests * (options_.resident_blocks + 1);
  const uint64_t token = uint64_t{g.kv_heads} * g.key_bytes();
  std::vector<int32_t> table(pages);
  std::iota(table.begin(), table.end(), 0);
  for (uint32_t l = 0; l < g.layers; ++l) {
    std::shuffle(table.begin(), table.end(), rng_);
    const auto device = [&](uint64_t bytes) {
      auto buffer = cuda::DeviceBuffer::Create(bytes, "a test");
      EXPECT_TRUE(buffer.ok()) << buffer.status();
      return *std::move(buffer);
    };
    Given given{.k = device(pages * g.block_tokens * token),
                .v = device(pages * g.block_tokens * token),
                .table = device(pages * sizeof(int32_t))};
    EXPECT_EQ(cudaMemcpy(given.table.data(), table.data(), pages * sizeof(int32_t),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
    options->pages.push_back({.k = given.k.data(),
                              .v = g.packing == Packing::kLatent ? nullptr : given.v.data(),
                              .page_stride = static_cast<int64_t>(g.block_tokens * token),
                              .head_stride = g.key_bytes(),
                              .token_stride = static_cast<int64_t>(token),
                              .table = given.table.As<int32_t>()});
    given_.push_back(std::move(given));
  }
}

std::shared_ptr<FakeSource> Drive::MakeSource(uint64_t tokens, uint64_t seed) {
  const Geometry& g = options_.geometry;
  const bool local =
      case_.where == Where::kLocal || (case_.where == Where::kMixed && joined_ % 2 == 0);
  ++joined_;
  if (local && case_.parts > 0) {
    return std::make_shared<PartsSource>(g, tokens, seed, case_.parts);
  }
  if (local) return std::make_shared<LocalSource>(g, tokens, seed, Grain());
  auto source = std::make_shared<FakeSource>(g, tokens, seed, Grain());
  source->polls = static_cast<int>(rng_() % 3);
  return source;
}

void Drive::Join() {
  const Geometry& g = options_.geometry;
  const uint64_t tokens = rng_() % 120, seed = rng_();
  Request request;
  request.cpu = std::make_shared<FakeSource>(g, tokens, seed, Grain());
  request.gpu = MakeSource(tokens, seed);
  if (rng_() % 2 == 0 && g.BlocksFor(tokens) > 0) {
    for (FakeSource* source : {request.cpu.get(), request.gpu.get()}) {
      std::mt19937_64 same(seed);
      source->first_k = 10;
      for (uint32_t i = 0; i < g.layers * g.kv_heads * source->first_k; ++i) {
        source->first.push_back(static_cast<int32_t>(same() % (g.BlocksFor(tokens) + 1)) - 1);
      }
    }
  }
  request.next_token.assign(g.layers, tokens);
  request.planned.assign(g.layers, Planned::kNothing);
  request.predicted.resize(g.layers);
  request.model = std::make_unique<RequestModel>(options_, *request.cpu);
  auto cpu = cpu_->Admit(request.cpu);
  auto gpu = gpu_->Admit(request.gpu);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  ASSERT_EQ(*cpu, *gpu);
  for (uint32_t l = 0; l < g.layers; ++l) {
    auto view = cpu_->View(LayerIndex(l), *cpu);
    ASSERT_TRUE(view.ok());
    auto& maps = maps_[cpu->value()];
    maps.resize(g.layers);
    maps[l].assign(view->map, view->map + g.kv_heads * options_.resident_blocks);
  }
  requests_[cpu->value()] = std::move(request);
  for (uint32_t l = 0; l < g.layers; ++l) Compare(l, *cpu);
}

void Drive::Churn() {
  if (!requests_.empty() && rng_() % 8 == 0) {
    const uint32_t slot = std::next(requests_.begin(), rng_() % requests_.size())->first;
    ASSERT_STATUS_OK(cpu_->Leave(RequestSlot(slot)));
    ASSERT_STATUS_OK(gpu_->Leave(RequestSlot(slot)));
    EXPECT_EQ(requests_[slot].gpu->wrong(), "");
    requests_.erase(slot);
  }
  // Requests end before their blocks do.
  for (auto it = requests_.begin(); it != requests_.end();) {
    if (it->second.next_token[0] + 2 <
        uint64_t{options_.max_blocks - 1} * options_.geometry.block_tokens) {
      ++it;
      continue;
    }
    ASSERT_STATUS_OK(cpu_->Leave(RequestSlot(it->first)));
    ASSERT_STATUS_OK(gpu_->Leave(RequestSlot(it->first)));
    it = requests_.erase(it);
  }
  while (requests_.size() < options_.max_requests && (requests_.empty() || rng_() % 4 == 0)) {
    Join();
    if (testing::Test::HasFatalFailure()) return;
  }
}

void Drive::Steps(int steps) {
  for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("step " + std::to_string(i));
    Churn();
    std::vector<RequestSlot> rows;
    for (const auto& [slot, _] : requests_) {
      if (rng_() % 8 != 0) rows.push_back(RequestSlot(slot));
    }
    std::shuffle(rows.begin(), rows.end(), rng_);
    Step(rows, case_.mode == SelectionMode::kExact || i % 7 != 6);
  }
  // Requests that skipped the last step have a transfer pending.
  for (const auto& [slot, _] : requests_) {
    for (uint32_t l = 0; l < options_.geometry.layers; ++l) {
      const RequestSlot one(slot);
      ASSERT_STATUS_OK(cpu_->Wait(LayerIndex(l), {&one, 1}));
      Compare(l, one);
    }
  }
}

void Drive::Settle() {
  const RequestSlot any(requests_.begin()->first);
  ASSERT_STATUS_OK(gpu_->Snapshot(LayerIndex(0), any).status());
}

void Drive::Step(const std::vector<RequestSlot>& rows, bool predict) {
  cudaStream_t const stream = stream_.get();
  Settle();
  inputs_->Fill(&rng_);
  ASSERT_STATUS_OK(gpu_->SetRows(rows, stream));
  // This step's plans take the place of those that an idle request was last part of.
  for (auto& [slot, request] : requests_) {
    if (std::find(rows.begin(), rows.end(), RequestSlot(slot)) != rows.end()) continue;
    for (Planned& planned : request.planned) {
      if (planned == Planned::kLast) planned = Planned::kGone;
    }
  }
  // A prediction that a step without one has passed over is void on the CPU only, and an empty list
  // is not a sample of agreement on the GPU.
  const bool sample = std::all_of(
      rows.begin(), rows.end(), [&](RequestSlot slot) { return !requests_[slot.value()].skipped; });
  for (uint32_t l = 0; l < options_.geometry.layers; ++l) {
    const LayerIndex layer(l);
    ASSERT_STATUS_OK(cpu_->Wait(layer, rows));
    ASSERT_STATUS_OK(gpu_->Wait(layer, stream));
    for (RequestSlot slot : rows) Compare(l, slot);
    Append(l, rows);
    if (case_.mode == SelectionMode::kExact) {
      Resolve(l, rows);
    } else if (sample && case_.predict == Predict::kQueries) {
      ASSERT_STATUS_OK(cpu_->SampleAgreement(layer, rows, inputs_->truth(l)));
      ASSERT_STATUS_OK(gpu_->SampleAgreement(layer, inputs_->gpu_truth(l), inputs_->type(),
                                             inputs_->gpu_row_stride(), stream));
    }
    if (predict) Predicts(l, rows);
    ASSERT_STATUS_OK(cpu_->AttentionDone(layer, rows));
    ASSERT_STATUS_OK(gpu_->AttentionDone(layer, stream));
    for (RequestSlot slot : rows) requests_[slot.value()].planned[l] = Planned::kLast;
    if (testing::Test::HasFatalFailure()) return;
  }
  for (RequestSlot slot : rows) requests_[slot.value()].skipped = !predict;
  ASSERT_STATUS_OK(gpu_->EndStep(stream));
  ASSERT_STATUS_OK(gpu_->Error());
}

void Drive::Append(uint32_t l, const std::vector<RequestSlot>& rows) {
  const uint64_t row = inputs_->row_bytes();
  for (size_t r = 0; r < rows.size(); ++r) {
    Request& request = requests_[rows[r].value()];
    const uint64_t token = request.next_token[l]++;
    const auto key = request.cpu->kv().Token(token, l, Half::kKey);
    const auto value = request.cpu->kv().Token(token, l, Half::kValue);
    std::memcpy(inputs_->keys(l) + r * row, key.data(), row);
    std::memcpy(inputs_->values(l) + r * row, value.data(), row);
  }
  ASSERT_STATUS_OK(cpu_->Append(LayerIndex(l), rows, inputs_->keys(l), inputs_->values(l)));
  ASSERT_STATUS_OK(
      gpu_->Append(LayerIndex(l), inputs_->keys(l), inputs_->values(l), 0, stream_.get()));
}

void Drive::Resolve(uint32_t l, const std::vector<RequestSlot>& rows) {
  const LayerIndex layer(l);
  if (case_.miss == GpuMissPolicy::kDemand) {
    ASSERT_STATUS_OK(cpu_->Resolve(layer, rows, inputs_->truth(l)));
  } else {
    ASSERT_STATUS_OK(cpu_->SampleAgreement(layer, rows, inputs_->truth(l)));
  }
  const auto fetches = [&] {
    int all = 0;
    for (const auto& [_, request] : requests_) all += request.gpu->fetches();
    return all;
  };
  const int before = fetches();
  auto found = gpu_->Resolve(layer, inputs_->gpu_truth(l), inputs_->type(),
                             inputs_->gpu_row_stride(), case_.miss, stream_.get());
  ASSERT_TRUE(found.ok()) << found.status();
  for (RequestSlot slot : rows) Compare(l, slot);
  CompareResolved(l, *found, rows);
  // At the first layer no transfer of this step is under way yet.
  if (l == 0 && case_.miss != GpuMissPolicy::kDemand) {
    EXPECT_EQ(fetches(), before);
  }
}

}  // namespace oasiskv::gpu_test
