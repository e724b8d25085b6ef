// The working set's contract as simple, slow code, for one request.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "oasiskv/working_set.h"
#include "tests/unit/working_set/float8_reference.h"
#include "tests/unit/working_set/working_set_fake.h"

namespace oasiskv {

// Knows nothing of threads: a transfer happens in Wait.
class RequestModel {
 public:
  RequestModel(const WorkingSetOptions& options, const FakeSource& source)
      : o_(options), g_(options.geometry), kv_(source.kv()), tokens_(source.token_count()) {
    layers_.resize(g_.layers);
    const uint32_t complete = static_cast<uint32_t>(tokens_ / g_.block_tokens);
    const uint32_t local = static_cast<uint32_t>(tokens_ % g_.block_tokens);
    uint64_t entries = 0;
    for (uint32_t l = 0; l < g_.layers; ++l) {
      layers_[l].complete = complete;
      layers_[l].local_tokens = local;
      layers_[l].heads.resize(g_.kv_heads);
      std::set<int32_t> in_union;
      for (uint32_t h = 0; h < g_.kv_heads; ++h) {
        std::vector<int32_t> chosen;
        if (source.first_k == 0) {
          for (int32_t b = static_cast<int32_t>(complete) - 1; b >= 0; --b) chosen.push_back(b);
        } else {
          for (uint32_t i = 0; i < source.first_k; ++i) {
            const int32_t b = source.first[(l * g_.kv_heads + h) * source.first_k + i];
            if (b < 0 || b >= static_cast<int32_t>(complete)) continue;
            if (std::find(chosen.begin(), chosen.end(), b) == chosen.end()) chosen.push_back(b);
          }
        }
        if (chosen.size() > o_.resident_blocks) chosen.resize(o_.resident_blocks);
        in_union.insert(chosen.begin(), chosen.end());
        entries += chosen.size();
        std::reverse(chosen.begin(), chosen.end());
        chosen.resize(o_.resident_blocks, -1);
        for (int32_t b : chosen) layers_[l].heads[h].pages.push_back({.block = b});
      }
      if (source.keeps_fetched) {
        for (const Head& head : layers_[l].heads) entries -= CountResident(head);
        entries += in_union.size() * g_.kv_heads;
      }
      if (local > 0) entries += g_.kv_heads;
    }
    stats.admission_bytes = entries * g_.entry_bytes() + uint64_t{g_.BlocksFor(tokens_)} *
                                                             g_.layers * g_.layer_summaries_bytes();
  }

  void Wait(uint32_t l) {
    Layer& layer = layers_[l];
    for (uint32_t h = 0; h < g_.kv_heads; ++h) {
      for (const Planned& p : layer.heads[h].plan)
        Install(p, layer.now, p.promoted ? nullptr : &stats.admitted, &layer.heads[h]);
      layer.heads[h].plan.clear();
    }
    if (layer.promoting) {
      ++layer.complete;
      layer.local_tokens = 0;
      stats.promoted += g_.kv_heads;
    }
    layer.promoting = false;
    layer.pending = false;
  }

  void Append(uint32_t l) { ++layers_[l].local_tokens; }

  void Resolve(uint32_t l, const float* queries) {
    Layer& layer = layers_[l];
    ++layer.clock;
    Sample(l, queries);
    for (uint32_t h = 0; h < g_.kv_heads; ++h) {
      Head& head = layer.heads[h];
      uint64_t ignored = 0;
      std::vector<Planned> plan = Plan(TopK(l, h, layer.complete, queries), -1, UINT64_MAX,
                                       layer.clock, &head, &ignored, &ignored);
      for (const Planned& p : plan) Install(p, layer.clock, &stats.demanded, &head);
    }
  }

  void Sample(uint32_t l, const float* queries) {
    Layer& layer = layers_[l];
    if (!layer.predicted_valid) return;
    layer.predicted_valid = false;
    for (uint32_t h = 0; h < g_.kv_heads; ++h) {
      const std::vector<int32_t> truth = TopK(l, h, layer.complete, queries);
      if (truth.empty()) continue;
      double common = 0;
      for (int32_t b : truth) {
        common += std::count(layer.heads[h].predicted.begin(), layer.heads[h].predicted.end(), b);
      }
      ++stats.agreement_samples;
      stats.agreement_sum += common / static_cast<double>(truth.size());
    }
  }

  // `lists`: ready top-K by head, or null.
  void Submit(uint32_t l, const float* queries, const std::vector<std::vector<int32_t>>* lists) {
    Layer& layer = layers_[l];
    ++stats.steps;
    layer.submitted = true;
    layer.promoting = layer.local_tokens == g_.block_tokens;
    layer.now = ++layer.clock;
    const int32_t promoted = layer.promoting ? static_cast<int32_t>(layer.complete) : -1;
    const uint32_t candidates = layer.complete + (layer.promoting ? 1 : 0);
    for (uint32_t h = 0; h < g_.kv_heads; ++h) {
      Head& head = layer.heads[h];
      std::vector<int32_t> predicted = lists ? (*lists)[h] : TopK(l, h, candidates, queries);
      if (promoted >= 0 &&
          std::find(predicted.begin(), predicted.end(), promoted) == predicted.end()) {
        if (predicted.size() == o_.resident_blocks) predicted.pop_back();
        predicted.push_back(promoted);
      }
      stats.predicted += predicted.size();
      head.plan =
          Plan(predicted, promoted, Cap(), layer.now, &head, &stats.hit, &stats.refused_by_cap);
      head.next_predicted = predicted;
    }
  }

  void AttentionDone(uint32_t l) {
    Layer& layer = layers_[l];
    layer.predicted_valid = false;
    for (Head& head : layer.heads) {
      for (Page& page : head.pages) {
        if (page.fresh) stats.bytes_used += g_.entry_bytes();
        page.fresh = false;
      }
    }
    if (layer.submitted) {
      for (Head& head : layer.heads) head.predicted = head.next_predicted;
      layer.predicted_valid = true;
      layer.submitted = false;
    } else if (layer.local_tokens == g_.block_tokens) {
      layer.promoting = true;
      layer.now = ++layer.clock;
      for (Head& head : layer.heads) {
        uint64_t ignored = 0;
        const int32_t promoted = static_cast<int32_t>(layer.complete);
        head.plan = Plan({promoted}, promoted, 0, layer.now, &head, &ignored, &ignored);
      }
    }
  }

  std::vector<int32_t> Map(uint32_t l) const {
    std::vector<int32_t> map;
    for (const Head& head : layers_[l].heads) {
      for (const Page& page : head.pages) map.push_back(page.block);
    }
    return map;
  }
  uint32_t local_tokens(uint32_t l) const { return layers_[l].local_tokens; }
  uint32_t complete(uint32_t l) const { return layers_[l].complete; }
  uint64_t next_token(uint32_t l) const {
    return uint64_t{layers_[l].complete} * g_.block_tokens + layers_[l].local_tokens;
  }
  bool full(uint32_t l) const { return layers_[l].local_tokens == g_.block_tokens; }

  // The true top-K of head `h` among blocks [0, candidates), by definition.
  std::vector<int32_t> TopK(uint32_t l, uint32_t h, uint32_t candidates,
                            const float* queries) const {
    const uint32_t group = o_.query_heads / g_.kv_heads;
    const auto head_score = [&](uint32_t b, uint32_t i) {
      const auto near = static_cast<float>((1 + o_.bound_weight) / 2);
      const auto far = static_cast<float>((1 - o_.bound_weight) / 2);
      float sum = 0;
      for (uint32_t d = 0; d < g_.head_dim; ++d) {
        const float q = queries[(h * group + i) * g_.head_dim + d];
        float low = Bound(b, l, h, d, false), high = Bound(b, l, h, d, true);
        if (o_.bound_weight < 1) {
          const float min = low, max = high;
          low = near * min + far * max;
          high = near * max + far * min;
        }
        sum += q * (std::signbit(q) ? low : high);  // one dimension per lane: no fused multiply-add
      }
      return sum;
    };
    std::vector<float> best(group, -std::numeric_limits<float>::infinity());
    if (o_.combine == GroupCombine::kNormalizedMax) {
      for (uint32_t b = 0; b < candidates; ++b) {
        for (uint32_t i = 0; i < group; ++i) best[i] = std::max(best[i], head_score(b, i));
      }
    }
    std::vector<std::pair<float, int32_t>> scored;
    for (uint32_t b = 0; b < candidates; ++b) {
      float score = 0;
      for (uint32_t i = 0; i < group; ++i) {
        float sum = head_score(b, i);
        if (o_.combine == GroupCombine::kNormalizedMax) {
          sum = sum == best[i] ? 0 : sum - best[i];  // infinities are equal too
        }
        if (i == 0) {
          score = sum;
        } else if (o_.combine == GroupCombine::kMax || o_.combine == GroupCombine::kNormalizedMax) {
          score = std::isnan(score) || std::isnan(sum) ? NAN : std::max(score, sum);
        } else {
          score += sum;
        }
      }
      if (o_.combine == GroupCombine::kMean) score /= static_cast<float>(group);
      scored.emplace_back(score, static_cast<int32_t>(b));
    }
    std::stable_sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) {
      if (std::isnan(a.first) || std::isnan(b.first))
        return !std::isnan(a.first) && std::isnan(b.first);
      return a.first > b.first;
    });
    std::vector<int32_t> out;
    for (size_t i = 0; i < scored.size() && i < Ranked(); ++i) out.push_back(scored[i].second);
    return out;
  }

  WorkingSetStats stats;

 private:
  struct Page {
    int32_t block = -1;
    uint64_t stamp = 0;
    bool fresh = false;
  };
  struct Planned {
    size_t page;
    int32_t block;
    bool promoted;
  };
  struct Head {
    std::vector<Page> pages;
    std::vector<Planned> plan;
    std::vector<int32_t> next_predicted, predicted;
  };
  struct Layer {
    std::vector<Head> heads;
    uint32_t complete = 0, local_tokens = 0;
    uint64_t clock = 0, now = 0;
    bool promoting = false, submitted = false, pending = false, predicted_valid = false;
  };

  float Bound(uint32_t block, uint32_t l, uint32_t h, uint32_t d, bool high) const {
    const float bound = kv_.Bound(block, l, h, d, high);
    if (o_.summaries == SummaryType::kAsKeys) return bound;
    return static_cast<float>(Float8ByDefinition(RoundedByDefinition(bound, high)));
  }

  static uint64_t CountResident(const Head& head) {
    return std::count_if(head.pages.begin(), head.pages.end(),
                         [](const Page& p) { return p.block >= 0; });
  }
  uint32_t Ranked() const { return o_.ranked_blocks > 0 ? o_.ranked_blocks : o_.resident_blocks; }
  uint64_t Cap() const {
    return static_cast<uint64_t>(std::floor(o_.fetch_ratio * Ranked() + 1e-9));
  }

  static Page* Find(Head* head, int32_t block) {
    for (Page& page : head->pages) {
      if (page.block == block) return &page;
    }
    return nullptr;
  }

  std::vector<Planned> Plan(const std::vector<int32_t>& predicted, int32_t promoted, uint64_t cap,
                            uint64_t now, Head* head, uint64_t* hit, uint64_t* refused) const {
    std::vector<int32_t> missing;
    if (promoted >= 0) missing.push_back(promoted);
    for (int32_t b : predicted) {
      if (Page* page = Find(head, b)) {
        page->stamp = now;
        ++*hit;
      } else if (b != promoted) {
        if (missing.size() - (promoted >= 0 ? 1 : 0) < cap) {
          missing.push_back(b);
        } else {
          ++*refused;
        }
      }
    }
    std::vector<Planned> plan;
    std::set<size_t> used;
    for (int32_t b : missing) {
      size_t victim = SIZE_MAX;
      for (size_t p = 0; p < head->pages.size(); ++p) {
        const Page& page = head->pages[p];
        if (used.contains(p)) continue;
        if (page.block >= 0 &&
            std::find(predicted.begin(), predicted.end(), page.block) != predicted.end())
          continue;
        if (victim == SIZE_MAX) {
          victim = p;
          continue;
        }
        const Page& best = head->pages[victim];
        const bool emptier = page.block < 0 && best.block >= 0;
        const bool older =
            (page.block < 0) == (best.block < 0) && page.block >= 0 && page.stamp < best.stamp;
        if (emptier || older) victim = p;
      }
      used.insert(victim);
      plan.push_back({victim, b, b == promoted});
    }
    return plan;
  }

  void Install(const Planned& p, uint64_t now, uint64_t* counter, Head* head) {
    head->pages[p.page] = {p.block, now, !p.promoted};
    if (counter == nullptr) return;
    ++*counter;
    stats.bytes_moved += g_.entry_bytes();
  }

  const WorkingSetOptions o_;
  const Geometry g_;
  const FakeKv kv_;
  const uint64_t tokens_;
  std::vector<Layer> layers_;
};

}  // namespace oasiskv
