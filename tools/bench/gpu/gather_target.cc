#include "tools/bench/gpu/gather_target.h"

#include <algorithm>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/working_set/cuda/host/launch.h"
#include "common/mapped_memory.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::bench {
namespace {

constexpr uint32_t kHeads = 8, kResident = 128;

uint64_t WordAt(uint64_t index) { return index * 0x9E3779B97F4A7C15u ^ (index >> 7); }

}  // namespace

absl::StatusOr<std::unique_ptr<HostMemory>> HostMemory::Make(uint64_t bytes) {
  auto host = std::make_unique<HostMemory>();
  OASISKV_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd("gather", bytes, PageKind::kNormal));
  auto mapping = std::make_shared<Mapping>();
  OASISKV_ASSIGN_OR_RETURN(*mapping, Mapping::Map(fd.get(), bytes, Protection::kReadWrite));
  host->data = mapping->data();
  host->bytes = bytes;
  std::vector<std::thread> threads;
  const uint64_t workers = std::max(1u, std::thread::hardware_concurrency());
  for (uint64_t w = 0; w < workers; ++w) {
    threads.emplace_back([&, w] {
      auto* const words = reinterpret_cast<uint64_t*>(host->data);
      const uint64_t n = bytes / sizeof(uint64_t);
      for (uint64_t i = n * w / workers; i < n * (w + 1) / workers; ++i) words[i] = WordAt(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  OASISKV_ASSIGN_OR_RETURN(
      host->registration,
      cuda::HostRegistration::Get(std::span<const std::byte>(host->data, bytes), mapping));
  return host;
}

absl::StatusOr<std::unique_ptr<GatherTarget>> GatherTarget::Make(const HostMemory& host,
                                                                 uint64_t entry_bytes,
                                                                 uint32_t items) {
  auto t = std::make_unique<GatherTarget>();
  const uint32_t slots = (items + kHeads * kResident - 1) / (kHeads * kResident);
  t->items = items;
  const gpu::Shape shape{.layers = 1,
                         .kv_heads = kHeads,
                         .head_dim = 128,
                         .block_tokens = static_cast<uint32_t>(entry_bytes / 512),
                         .entry_bytes = static_cast<uint32_t>(entry_bytes),
                         .key_bytes = 256,
                         .resident = kResident,
                         .slots = slots};
  OASISKV_ASSIGN_OR_RETURN(t->layer, DeviceLayer::Create({.shape = shape}));
  const int64_t half = static_cast<int64_t>(entry_bytes) / 2;
  // Heads of a page apart, K and V apart (HND): what FlashInfer and FlashAttention read.
  gpu::Pages& pages = t->layer.memory.pages;
  pages.page_stride = kHeads * half;
  pages.head_stride = half;
  pages.v = pages.k + int64_t{slots} * (kResident + 1) * pages.page_stride;

  const uint64_t places = host.bytes / entry_bytes;
  std::vector<uint64_t> frames(places);
  for (uint64_t i = 0; i < places; ++i) {
    frames[i] = reinterpret_cast<uint64_t>(host.data + i * entry_bytes);
  }
  OASISKV_ASSIGN_OR_RETURN(t->frames, DeviceArray<uint64_t>::Of(frames));
  OASISKV_RETURN_IF_ERROR(
      Upload(std::vector<gpu::HeadSource>(size_t{slots} * kHeads, {.frames = t->frames.data()}),
             t->layer.sources));
  std::mt19937_64 random(entry_bytes + items);
  std::vector<uint32_t> numbers(size_t{slots} * kHeads * kResident);
  for (uint32_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  for (uint32_t p = 0; p < kPlans; ++p) {
    std::vector<gpu::PlanItem>& list = t->plans_host[p];
    list.resize(items);
    std::shuffle(numbers.begin(), numbers.end(), random);
    for (uint32_t i = 0; i < items; ++i) {
      list[i].slot = static_cast<uint16_t>(numbers[i] / (kHeads * kResident));
      list[i].head = static_cast<uint16_t>(numbers[i] / kResident % kHeads);
      list[i].page = static_cast<uint16_t>(numbers[i] % kResident);
      list[i].block = static_cast<int32_t>(random() % places);
    }
    OASISKV_ASSIGN_OR_RETURN(t->plan_items[p], DeviceArray<gpu::PlanItem>::Of(list));
  }
  OASISKV_ASSIGN_OR_RETURN(t->count, DeviceArray<uint32_t>::Of({items}));
  return t;
}

absl::Status GatherTarget::Launch(uint32_t number, const gpu::GatherOptions& options,
                                  cudaStream_t stream) {
  const gpu::Plan plan{
      .count = count.data(), .items = plan_items[number % kPlans].data(), .capacity = items};
  return Launched("gather", gpu::Gather(layer.shape, 0, layer.memory, plan, layer.sources, options,
                                        &layer.error(), stream));
}

absl::Status GatherTarget::Verify() {
  const gpu::Pages& pages = layer.memory.pages;
  const auto half = static_cast<uint64_t>(pages.head_stride);
  for (size_t i = 0; i < plans_host[0].size();
       i += std::max<size_t>(1, plans_host[0].size() / 64)) {
    const gpu::PlanItem& item = plans_host[0][i];
    for (uint64_t value : {0, 1}) {
      const int64_t page = int64_t{item.slot} * (kResident + 1) + item.page;
      const std::byte* const at = (value == 0 ? pages.k : pages.v) + page * pages.page_stride +
                                  item.head * pages.head_stride;
      OASISKV_ASSIGN_OR_RETURN(
          const std::vector<uint64_t> got,
          Download(reinterpret_cast<const uint64_t*>(at), half / sizeof(uint64_t)));
      const uint64_t first =
          (uint64_t(item.block) * layer.shape.entry_bytes + value * half) / sizeof(uint64_t);
      for (size_t w = 0; w < got.size(); ++w) {
        if (got[w] == WordAt(first + w)) continue;
        return MakeError(ErrorCode::kInternal,
                         absl::StrFormat("item %d: a page does not hold its entry's bytes", i));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace oasiskv::bench
