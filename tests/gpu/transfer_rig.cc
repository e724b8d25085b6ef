#include "tests/gpu/transfer_rig.h"

#include <algorithm>
#include <numeric>

namespace oasiskv::gpu_test {
namespace {

cuda::PinnedBuffer Pinned(uint64_t bytes) {
  auto buffer = cuda::PinnedBuffer::Create(bytes, "a test");
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return buffer.ok() ? std::move(*buffer) : cuda::PinnedBuffer();
}

}  // namespace

void FillRandom(std::mt19937_64& random, std::span<std::byte> bytes) {
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, sizeof(word));
  }
  for (; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random());
}

Rig::Rig(const RigOptions& o)
    : layer(o.layer), random(o.seed), frame_per_layer_(o.frame_per_layer) {
  const uint32_t element_bytes = o.element == gpu::Element::kFloat32 ? 4 : 2;
  shape.layers = o.layers;
  shape.kv_heads = o.latent ? 1 : o.kv_heads;
  shape.group = 1;
  shape.head_dim = o.head_dim;
  shape.block_tokens = o.block_tokens;
  shape.element = o.element;
  shape.latent = o.latent;
  shape.key_bytes = o.head_dim * element_bytes;
  shape.summaries = o.summaries;
  shape.summary_bytes = o.summaries == SummaryType::kFloat8 ? 2 * o.head_dim : 2 * shape.key_bytes;
  shape.resident = o.resident;
  shape.max_blocks = o.max_blocks;
  shape.slots = o.slots;
  shape.cap = o.cap;
  const int64_t key = shape.key_bytes, tokens = o.block_tokens, heads = shape.kv_heads;
  const int64_t half = tokens * key;
  shape.entry_bytes = static_cast<uint32_t>(o.latent ? half : 2 * half);

  const int64_t physical = int64_t{o.slots} * (o.resident + 1);
  // Between pages lie 48 bytes that no kernel may touch.
  constexpr int64_t kGap = 48;
  gpu::Pages pages;
  const bool nhd = o.layout == PageLayout::kNhd || o.layout == PageLayout::kNhdTogether;
  pages.token_stride = nhd ? heads * key : key;
  pages.head_stride = nhd ? key : half;
  const bool apart = o.layout == PageLayout::kHnd || o.layout == PageLayout::kNhd;
  if (o.latent) {
    pages.page_stride = heads * half + kGap;
  } else if (apart) {
    pages.page_stride = heads * half + kGap;
    value_offset_ = physical * pages.page_stride;
  } else {
    pages.page_stride = 2 * heads * half + kGap;
    value_offset_ = heads * half;
    if (o.layout == PageLayout::kEntries) {
      pages.head_stride = 2 * half;
      value_offset_ = half;
    }
  }
  const uint64_t pool_bytes = physical * pages.page_stride * (apart && !o.latent ? 2 : 1);
  device_ = MakeLayer({.shape = shape, .max_rows = o.max_rows, .page_bytes = pool_bytes});
  mem = device_.memory;
  rows = device_.rows;
  plan = device_.plan;
  pool = Array<std::byte>::Of(mem.pages.k, pool_bytes);
  FillRandom(random, pool.host);
  pool.Upload();
  pages.k = pool.device();
  pages.v = o.latent ? nullptr : pool.device() + value_offset_;
  if (o.table) {
    table = Array<int32_t>(physical);
    std::iota(table.host.begin(), table.host.end(), 0);
    std::shuffle(table.host.begin(), table.host.end(), random);
    table.Upload();
    pages.table = table.device();
  }

  mem.pages = pages;

  const size_t each = size_t{o.slots} * shape.kv_heads * o.resident;
  summaries = Array<std::byte>::Of(mem.summaries, o.slots * mem.summaries_slot_stride);
  map = Array<int32_t>::Of(mem.map, each, -1);
  predicted = Array<int32_t>::Of(mem.predicted, each, -1);
  stamps = Array<uint64_t>::Of(mem.stamps, each);
  state = Array<gpu::SlotState>::Of(mem.state, o.slots);
  counters = Array<gpu::SlotCounters>::Of(device_.counters, o.slots);
  row_slots = Array<int32_t>::Of(rows.slots, o.max_rows);
  row_count = Array<uint32_t>::Of(rows.count, 1);
  plan_count = Array<uint32_t>::Of(plan.count, 1);
  items = Array<gpu::PlanItem>::Of(plan.items, plan.capacity);
  groups = Array<gpu::PlanGroup>::Of(plan.groups, size_t{o.max_rows} * shape.kv_heads);
  sources = Array<gpu::HeadSource>::Of(device_.sources, size_t{o.slots} * shape.kv_heads);

  frame_bytes_ =
      (summaries_offset() + uint64_t{o.layers} * shape.kv_heads * 2 * shape.key_bytes + 63) / 64 *
          64 +
      16;  // entries need no more than 16 bytes of alignment
  host_ = Pinned(uint64_t{o.slots} * o.max_blocks * frame_bytes_);
  FillRandom(random, std::span(host_.data(), host_.size()));
  words_ = Pinned(uint64_t{o.slots} * shape.kv_heads * sizeof(uint64_t));
  const uint32_t lists = o.frame_per_layer ? o.layers : 1;
  frames = Array<uint64_t>(size_t{o.slots} * lists * o.max_blocks);
  for (uint32_t s = 0; s < o.slots; ++s) {
    for (uint32_t l = 0; l < lists; ++l) {
      for (uint32_t b = 0; b < o.max_blocks; ++b) {
        // A frame of one layer alone begins at that layer's entries.
        const uint64_t shift =
            o.frame_per_layer ? uint64_t{l} * shape.kv_heads * shape.entry_bytes : 0;
        frames.host[(size_t{s} * lists + l) * o.max_blocks + b] =
            reinterpret_cast<uint64_t>(Frame(s, b)) + shift;
      }
    }
    for (uint32_t h = 0; h < shape.kv_heads; ++h) {
      grant_word(s, h) = 1000 + s;
      sources.host[s * shape.kv_heads + h] = {
          .frames = frames.device() + size_t{s} * lists * o.max_blocks,
          .frames_layer_stride = o.frame_per_layer ? o.max_blocks : 0,
          .entry_offset = uint64_t{h} * shape.entry_bytes,
          .layer_stride = o.frame_per_layer ? 0 : uint64_t{shape.kv_heads} * shape.entry_bytes,
          .grant_word = &grant_word(s, h),
          .epoch = 1000 + s};
    }
  }
  frames.Upload();
  sources.Upload();
}

std::byte* Rig::Frame(uint32_t slot, uint32_t block) {
  return host_.data() + (uint64_t{slot} * shape.max_blocks + block) * frame_bytes_;
}

std::byte* Rig::Entry(uint32_t slot, uint32_t head, uint32_t block) {
  return Frame(slot, block) + (uint64_t{layer} * shape.kv_heads + head) * shape.entry_bytes;
}

std::byte* Rig::Summary(uint32_t slot, uint32_t head, uint32_t block) {
  return Frame(slot, block) + summaries_offset() +
         (uint64_t{layer} * shape.kv_heads + head) * 2 * shape.key_bytes;
}

int64_t Rig::TokenAt(uint32_t slot, uint32_t head, uint32_t page, bool value,
                     uint32_t token) const {
  const gpu::Pages& pages = mem.pages;
  const int64_t index = int64_t{slot} * (shape.resident + 1) + page;
  const int64_t physical = table.host.empty() ? index : table.host[index];
  return (value ? value_offset_ : 0) + physical * pages.page_stride + head * pages.head_stride +
         token * pages.token_stride;
}

std::vector<std::byte> Rig::PageOf(std::span<const std::byte> pool_bytes, uint32_t slot,
                                   uint32_t head, uint32_t page) const {
  std::vector<std::byte> entry(shape.entry_bytes);
  for (uint32_t i = 0; i * shape.key_bytes < shape.entry_bytes; ++i) {
    std::memcpy(entry.data() + i * shape.key_bytes,
                pool_bytes.data() +
                    TokenAt(slot, head, page, i >= shape.block_tokens, i % shape.block_tokens),
                shape.key_bytes);
  }
  return entry;
}

void Rig::SetPage(std::span<std::byte> pool_bytes, uint32_t slot, uint32_t head, uint32_t page,
                  const std::byte* entry) const {
  for (uint32_t i = 0; i * shape.key_bytes < shape.entry_bytes; ++i) {
    std::memcpy(pool_bytes.data() +
                    TokenAt(slot, head, page, i >= shape.block_tokens, i % shape.block_tokens),
                entry + i * shape.key_bytes, shape.key_bytes);
  }
}

std::vector<gpu::PlanItem> Rig::Items() const {
  std::vector<gpu::PlanItem> all = items.Download();
  all.resize(std::min<size_t>(plan_count.Download()[0], all.size()));
  return all;
}

void Rig::SetRows(std::vector<int32_t> slots) {
  row_count.host[0] = static_cast<uint32_t>(slots.size());
  row_slots.host.assign(rows.max_rows, 0);  // rows beyond the count name a slot that others use
  std::copy(slots.begin(), slots.end(), row_slots.host.begin());
  row_slots.Upload();
  row_count.Upload();
}

}  // namespace oasiskv::gpu_test
