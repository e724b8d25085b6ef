#include "tools/bench/gpu/gather_target.h"

#include <algorithm>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/cuda/status.h"
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
  t->shape.layers = 1;
  t->shape.kv_heads = kHeads;
  t->shape.head_dim = 128;
  t->shape.key_bytes = 256;
  t->shape.block_tokens = static_cast<uint32_t>(entry_bytes / 512);
  t->shape.entry_bytes = static_cast<uint32_t>(entry_bytes);
  t->shape.resident = kResident;
  t->shape.slots = slots;
  const uint64_t half = entry_bytes / 2, pages = uint64_t{slots} * (kResident + 1);
  // Heads of a page apart, K and V apart (HND): what FlashInfer and FlashAttention read.
  t->page_bytes = kHeads * half;
  OASISKV_ASSIGN_OR_RETURN(t->pool, DeviceArray<std::byte>::Zeroed(2 * pages * t->page_bytes));
  OASISKV_ASSIGN_OR_RETURN(t->map,
                           DeviceArray<int32_t>::Zeroed(size_t{slots} * kHeads * kResident));
  t->value_offset = pages * t->page_bytes;
  t->mem.pages = {.k = t->pool.data(),
                  .v = t->pool.data() + t->value_offset,
                  .page_stride = static_cast<int64_t>(t->page_bytes),
                  .head_stride = static_cast<int64_t>(half),
                  .token_stride = 256};
  t->mem.map = t->map.data();

  const uint64_t places = host.bytes / entry_bytes;
  std::vector<uint64_t> frames(places);
  for (uint64_t i = 0; i < places; ++i) {
    frames[i] = reinterpret_cast<uint64_t>(host.data + i * entry_bytes);
  }
  OASISKV_ASSIGN_OR_RETURN(t->frames, DeviceArray<uint64_t>::Of(frames));
  OASISKV_ASSIGN_OR_RETURN(t->sources,
                           DeviceArray<gpu::HeadSource>::Of(std::vector<gpu::HeadSource>(
                               size_t{slots} * kHeads, {.frames = t->frames.data()})));
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
    OASISKV_ASSIGN_OR_RETURN(t->counts[p], DeviceArray<uint32_t>::Of(std::vector<uint32_t>{items}));
  }
  OASISKV_ASSIGN_OR_RETURN(t->error, cuda::PinnedBuffer::Create(sizeof(gpu::ErrorWord), "error"));
  return t;
}

absl::Status GatherTarget::Launch(uint32_t number, const gpu::GatherOptions& options,
                                  cudaStream_t stream) {
  const uint32_t p = number % kPlans;
  const char* const failed = gpu::Gather(
      shape, 0, mem, {.count = counts[p].data(), .items = plan_items[p].data(), .capacity = items},
      sources.data(), options, error.As<gpu::ErrorWord>(), stream);
  return failed == nullptr ? absl::OkStatus() : MakeError(ErrorCode::kInternal, failed);
}

absl::Status GatherTarget::Verify() {
  const uint64_t half = shape.entry_bytes / 2;
  std::vector<uint64_t> got(half / sizeof(uint64_t));
  for (size_t i = 0; i < plans_host[0].size();
       i += std::max<size_t>(1, plans_host[0].size() / 64)) {
    const gpu::PlanItem& item = plans_host[0][i];
    for (uint64_t value : {0, 1}) {
      const uint64_t page = uint64_t{item.slot} * (kResident + 1) + item.page;
      OASISKV_CUDA_RETURN(cudaMemcpy(
          got.data(), pool.data() + value * value_offset + page * page_bytes + item.head * half,
          half, cudaMemcpyDeviceToHost));
      const uint64_t first =
          (uint64_t(item.block) * shape.entry_bytes + value * half) / sizeof(uint64_t);
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
