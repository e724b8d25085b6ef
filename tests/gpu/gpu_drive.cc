#include "tests/gpu/gpu_drive.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "client/working_set/select.h"

namespace oasiskv::gpu_test {
namespace {

constexpr uint32_t kNewTokens = 200;

}  // namespace

WorkingSetOptions OptionsOf(const Case& c) {
  WorkingSetOptions o;
  o.geometry.layers = 2;
  o.geometry.kv_heads = c.packing == Packing::kLatent ? 1 : 2;
  o.geometry.total_kv_heads = o.geometry.kv_heads;
  o.geometry.head_dim = 16;
  o.geometry.block_tokens = 4;
  o.geometry.element_type = c.element;
  o.geometry.packing = c.packing;
  o.query_heads = 3 * o.geometry.kv_heads;
  o.resident_blocks = 8;
  o.fetch_ratio = c.ratio;
  o.mode = c.mode;
  o.combine = c.combine;
  o.bound_weight = c.bound_weight;
  o.max_requests = 4;
  o.max_blocks = 100;
  o.late_deadline = std::chrono::seconds(60);
  return o;
}

Inputs::Inputs(const WorkingSetOptions& options)
    : queries_each_(uint64_t{options.max_requests} * options.query_heads *
                    options.geometry.head_dim),
      row_bytes_(uint64_t{options.geometry.kv_heads} * options.geometry.key_bytes()),
      layers_(options.geometry.layers) {
  token_bytes_ = row_bytes_ * options.max_requests;
  const auto pinned = [&](uint64_t bytes) {
    auto buffer = cuda::PinnedBuffer::Create(layers_ * bytes, "a test");
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  };
  queries_ = pinned(queries_each_ * sizeof(float));
  truth_ = pinned(queries_each_ * sizeof(float));
  keys_ = pinned(token_bytes_);
  values_ = pinned(token_bytes_);
}

void Inputs::Fill(std::mt19937_64* rng) {
  for (uint64_t i = 0; i < layers_ * queries_each_; ++i) {
    queries(0)[i] = static_cast<float>(static_cast<int>((*rng)() % 9) - 4);
    truth(0)[i] = static_cast<float>(static_cast<int>((*rng)() % 9) - 4);
  }
}

Drive::Drive(const Case& c, uint64_t seed) : case_(c), rng_(seed), options_(OptionsOf(c)) {
  auto cpu = WorkingSet::Create(options_);
  EXPECT_TRUE(cpu.ok()) << cpu.status();
  cpu_ = *std::move(cpu);
  GpuWorkingSetOptions gpu_options;
  gpu_options.base = options_;
  gpu_options.max_new_tokens = kNewTokens;
  gpu_options.remote_sources = c.where != Where::kLocal;
  if (c.layout == Layout::kNhdWithTable) MakePages(&gpu_options);
  auto gpu = GpuWorkingSet::Create(gpu_options);
  EXPECT_TRUE(gpu.ok()) << gpu.status();
  gpu_ = *std::move(gpu);
  inputs_ = std::make_unique<Inputs>(options_);
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

void Drive::Join() {
  const Geometry& g = options_.geometry;
  const uint64_t tokens = rng_() % 120, seed = rng_();
  const bool local =
      case_.where == Where::kLocal || (case_.where == Where::kMixed && joined_ % 2 == 0);
  ++joined_;
  Request request;
  request.cpu = std::make_shared<FakeSource>(g, tokens, seed);
  if (local) {
    request.gpu = std::make_shared<LocalSource>(g, tokens, seed);
  } else {
    request.gpu = std::make_shared<FakeSource>(g, tokens, seed);
    request.gpu->polls = static_cast<int>(rng_() % 3);
  }
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

void Drive::Step(const std::vector<RequestSlot>& rows, bool predict) {
  const Geometry& g = options_.geometry;
  cudaStream_t const stream = stream_.get();
  inputs_->Fill(&rng_);
  ASSERT_STATUS_OK(gpu_->SetRows(rows, stream));
  // This step's plans take the place of those that an idle request was last part of.
  for (auto& [slot, request] : requests_) {
    if (std::find(rows.begin(), rows.end(), RequestSlot(slot)) != rows.end()) continue;
    for (Planned& planned : request.planned) {
      if (planned == Planned::kLast) planned = Planned::kGone;
    }
  }
  const uint64_t row = inputs_->row_bytes();
  std::optional<GpuResolved> resolved;
  // A prediction that a step without one has passed over is void on the CPU only.
  const bool sample = std::all_of(
      rows.begin(), rows.end(), [&](RequestSlot slot) { return !requests_[slot.value()].skipped; });
  for (uint32_t l = 0; l < g.layers; ++l) {
    const LayerIndex layer(l);
    ASSERT_STATUS_OK(cpu_->Wait(layer, rows));
    ASSERT_STATUS_OK(gpu_->Wait(layer, stream));
    for (RequestSlot slot : rows) Compare(l, slot);
    for (size_t r = 0; r < rows.size(); ++r) {
      Request& request = requests_[rows[r].value()];
      const uint64_t token = request.next_token[l]++;
      const auto key = request.cpu->kv().Token(token, l, Half::kKey);
      const auto value = request.cpu->kv().Token(token, l, Half::kValue);
      std::memcpy(inputs_->keys(l) + r * row, key.data(), row);
      std::memcpy(inputs_->values(l) + r * row, value.data(), row);
    }
    ASSERT_STATUS_OK(cpu_->Append(layer, rows, inputs_->keys(l), inputs_->values(l)));
    ASSERT_STATUS_OK(gpu_->Append(layer, inputs_->keys(l), inputs_->values(l), 0, stream));
    if (options_.mode == SelectionMode::kExact) {
      ASSERT_STATUS_OK(cpu_->Resolve(layer, rows, inputs_->truth(l)));
      auto found = gpu_->Resolve(layer, inputs_->truth(l), GpuQueryType::kFloat32, 0,
                                 GpuMissPolicy::kDemand, stream);
      ASSERT_TRUE(found.ok()) << found.status();
      resolved = *found;
    } else if (sample) {
      ASSERT_STATUS_OK(cpu_->SampleAgreement(layer, rows, inputs_->truth(l)));
      ASSERT_STATUS_OK(
          gpu_->SampleAgreement(layer, inputs_->truth(l), GpuQueryType::kFloat32, 0, stream));
    }
    const uint64_t row_queries = uint64_t{options_.query_heads} * g.head_dim;
    for (size_t r = 0; predict && r < rows.size(); ++r) {
      Request& request = requests_[rows[r].value()];
      request.predicted[l] = Prediction(request, l, inputs_->queries(l) + r * row_queries);
    }
    if (predict) {
      ASSERT_STATUS_OK(cpu_->Submit(layer, rows, inputs_->queries(l)));
      ASSERT_STATUS_OK(gpu_->Submit(layer, inputs_->queries(l), GpuQueryType::kFloat32, 0, stream));
    }
    ASSERT_STATUS_OK(cpu_->AttentionDone(layer, rows));
    ASSERT_STATUS_OK(gpu_->AttentionDone(layer, stream));
    for (RequestSlot slot : rows) requests_[slot.value()].planned[l] = Planned::kLast;
  }
  for (RequestSlot slot : rows) requests_[slot.value()].skipped = !predict;
  ASSERT_STATUS_OK(gpu_->EndStep(stream));
  if (resolved.has_value()) CompareResolved(*resolved, rows);
  ASSERT_STATUS_OK(gpu_->Error());
}

void Drive::Compare(uint32_t layer, RequestSlot slot) {
  SCOPED_TRACE("layer " + std::to_string(layer) + ", slot " + std::to_string(slot.value()));
  const Geometry& g = options_.geometry;
  const uint32_t k = options_.resident_blocks;
  auto gpu = gpu_->Snapshot(LayerIndex(layer), slot);
  auto cpu = cpu_->View(LayerIndex(layer), slot);
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  ASSERT_EQ(std::vector<int32_t>(cpu->map, cpu->map + g.kv_heads * k), gpu->map);
  ASSERT_EQ(cpu->local_tokens, gpu->state.local_tokens);
  ASSERT_EQ(cpu->local_block.value(), gpu->state.complete);
  for (uint32_t h = 0; h < g.kv_heads; ++h) {
    for (uint32_t p = 0; p <= k; ++p) {
      const uint64_t at = (uint64_t{h} * (k + 1) + p) * g.entry_bytes();
      if (p < k) {
        if (gpu->map[h * k + p] < 0) continue;
        ASSERT_EQ(std::memcmp(cpu->pages + at, gpu->pages.data() + at, g.entry_bytes()), 0)
            << "head " << h << ", page " << p;
        continue;
      }
      const uint64_t valid = uint64_t{cpu->local_tokens} * g.key_bytes();
      ASSERT_EQ(std::memcmp(cpu->pages + at, gpu->pages.data() + at, valid), 0) << "local keys";
      if (g.packing == Packing::kLatent) continue;
      const uint64_t half = at + g.half_entry_bytes();
      ASSERT_EQ(std::memcmp(cpu->pages + half, gpu->pages.data() + half, valid), 0)
          << "local values";
    }
  }
  if (requests_[slot.value()].planned[layer] == Planned::kLast &&
      !requests_[slot.value()].skipped) {
    ASSERT_EQ(requests_[slot.value()].predicted[layer], gpu->predicted);
  }
  ComparePlan(layer, slot, gpu->map);
}

// What is to be predicted, by definition.
std::vector<int32_t> Drive::Prediction(const Request& request, uint32_t layer,
                                       const float* queries) const {
  const Geometry& g = options_.geometry;
  const uint64_t tokens = request.next_token[layer];  // the local block counts when it is full
  const auto candidates = static_cast<uint32_t>(tokens / g.block_tokens);
  std::vector<int32_t> out;
  for (uint32_t h = 0; h < g.kv_heads; ++h) {
    std::vector<int32_t> list = request.model->TopK(layer, h, candidates, queries);
    list.resize(options_.resident_blocks, -1);
    if (tokens > 0 && tokens % g.block_tokens == 0) {
      IncludePromoted(list, static_cast<int32_t>(candidates - 1));
    }
    out.insert(out.end(), list.begin(), list.end());
  }
  return out;
}

// What the last plan says is what changed.
void Drive::ComparePlan(uint32_t layer, RequestSlot slot, const std::vector<int32_t>& map) {
  std::vector<int32_t>& before = maps_[slot.value()][layer];
  const Planned planned = std::exchange(requests_[slot.value()].planned[layer], Planned::kNothing);
  if (planned == Planned::kLast) {
    auto plan = gpu_->LastPlan(LayerIndex(layer));
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const GpuPlanItem& item : *plan) {
      if (item.slot != slot.value()) continue;
      const uint32_t at = item.head * options_.resident_blocks + item.page;
      EXPECT_EQ(map[at], item.block);
      EXPECT_EQ(item.flags & ~1, 0);
      before[at] = item.block;
    }
  }
  // Resolve changes maps without this plan.
  if (options_.mode == SelectionMode::kCapped && planned != Planned::kGone) {
    EXPECT_EQ(before, map);
  }
  before = map;
}

void Drive::CompareResolved(const GpuResolved& resolved, const std::vector<RequestSlot>& rows) {
  const uint32_t layer = options_.geometry.layers - 1, k = options_.resident_blocks;
  const uint32_t heads = options_.geometry.kv_heads;
  ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  auto view = gpu_->View(LayerIndex(layer));
  ASSERT_TRUE(view.ok());
  for (size_t r = 0; r < rows.size(); ++r) {
    uint32_t missing = 0;
    ASSERT_EQ(cudaMemcpy(&missing, resolved.missing + r, sizeof(missing), cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(missing, 0u);
    std::vector<int32_t> blocks(heads * k), pages(heads * k);
    ASSERT_EQ(cudaMemcpy(blocks.data(), resolved.blocks + rows[r].value() * heads * k,
                         blocks.size() * sizeof(int32_t), cudaMemcpyDeviceToHost),
              cudaSuccess);
    ASSERT_EQ(cudaMemcpy(pages.data(), resolved.pages + r * heads * k,
                         pages.size() * sizeof(int32_t), cudaMemcpyDeviceToHost),
              cudaSuccess);
    for (uint32_t i = 0; i < heads * k; ++i) ASSERT_EQ(blocks[i] < 0, pages[i] < 0) << i;
  }
}

void Drive::CompareTotals() {
  for (const auto& [slot, request] : requests_) {
    SCOPED_TRACE("slot " + std::to_string(slot));
    const WorkingSetStats cpu = cpu_->RequestStats(RequestSlot(slot));
    auto found = gpu_->RequestStats(RequestSlot(slot));
    ASSERT_TRUE(found.ok()) << found.status();
    const WorkingSetStats& gpu = *found;
    EXPECT_EQ(cpu.steps, gpu.steps);
    EXPECT_EQ(cpu.predicted, gpu.predicted);
    EXPECT_EQ(cpu.hit, gpu.hit);
    EXPECT_EQ(cpu.admitted, gpu.admitted);
    EXPECT_EQ(cpu.promoted, gpu.promoted);
    EXPECT_EQ(cpu.refused_by_cap, gpu.refused_by_cap);
    EXPECT_EQ(cpu.demanded, gpu.demanded);
    EXPECT_EQ(cpu.skipped, gpu.skipped);
    EXPECT_EQ(cpu.bytes_moved, gpu.bytes_moved);
    EXPECT_EQ(cpu.agreement_samples, gpu.agreement_samples);
    EXPECT_EQ(request.gpu->wrong(), "");
  }
  // Of those that have left, the cpu backend counts no transfer that Leave cut short.
  const WorkingSetStats cpu = cpu_->Stats();
  auto gpu = gpu_->Stats();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  EXPECT_EQ(cpu.steps, gpu->steps);
  EXPECT_GE(gpu->admitted, cpu.admitted);
  EXPECT_GE(gpu->promoted, cpu.promoted);
  EXPECT_GT(cpu.admitted + cpu.demanded, 0u);
  EXPECT_GT(cpu.promoted, 0u);
}

}  // namespace oasiskv::gpu_test
