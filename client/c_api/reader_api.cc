#include "client/c_api/convert.h"
#include "client/c_api/handles.h"
#include "common/status_macros.h"

// This file defines extern "C" names only.
using namespace oasiskv;         // NOLINT(google-build-using-namespace)
using namespace oasiskv::c_api;  // NOLINT(google-build-using-namespace)

namespace {

Reader::TimePoint DeadlineOf(const Reader& reader, uint64_t timeout_ms) {
  return timeout_ms == 0 ? reader.DefaultDeadline()
                         : std::chrono::steady_clock::now() + Milliseconds(timeout_ms);
}

absl::StatusOr<std::unique_ptr<PendingFetch>> Start(oasiskv_reader* reader,
                                                    const oasiskv_entry_read* entries, size_t count,
                                                    uint64_t timeout_ms) {
  if (reader == nullptr) return NullArgument("reader");
  if (entries == nullptr && count != 0) return NullArgument("entries");
  std::vector<EntryRead> list;
  list.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const oasiskv_entry_read& e = entries[i];
    if (e.into == nullptr) return NullArgument("entries[" + std::to_string(i) + "].into");
    list.push_back({BlockIndex(e.block), LayerIndex(e.layer), HeadIndex(e.head),
                    static_cast<std::byte*>(e.into)});
  }
  return reader->reader->FetchEntries(list, DeadlineOf(*reader->reader, timeout_ms));
}

}  // namespace

int oasiskv_reader_attach(oasiskv_client* client, const oasiskv_reader_spec* spec,
                          oasiskv_reader** out) {
  return With("client", client, [&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    oasiskv_reader_spec in;
    ReaderSpec r;
    OASISKV_RETURN_IF_ERROR(ReadSpec(spec, in, r));
    r.first_head = in.first_head;
    r.head_count = in.head_count;
    r.wait_for_seal = Milliseconds(in.wait_for_seal_ms);
    OASISKV_ASSIGN_OR_RETURN(Reader reader, client->client->Attach(r));
    *out = new oasiskv_reader{std::make_shared<Reader>(std::move(reader))};
    return absl::OkStatus();
  });
}

void oasiskv_reader_free(oasiskv_reader* reader) { Free(reader); }

int oasiskv_reader_info_get(oasiskv_reader* reader, oasiskv_reader_info* out) {
  return With("reader", reader, [&]() -> absl::Status {
    const Reader& r = *reader->reader;
    oasiskv_reader_info info{};
    info.sealed = r.sealed() ? 1 : 0;
    info.token_count = r.token_count();
    info.blocks = r.blocks();
    info.first_head = r.first_head();
    info.head_count = r.head_count();
    info.first_topk_k = r.first_topk_k();
    info.first_topk = r.first_topk().data();
    info.blob = r.blob().data();
    info.blob_size = r.blob().size();
    return WriteStruct(info, "out", out);
  });
}

int oasiskv_reader_health(oasiskv_reader* reader) {
  return With("reader", reader, [&] { return reader->reader->Health(); });
}

int oasiskv_reader_release(oasiskv_reader* reader) {
  return With("reader", reader, [&] { return reader->reader->Release(); });
}

int oasiskv_reader_fetch(oasiskv_reader* reader, const oasiskv_entry_read* entries, size_t count,
                         uint64_t timeout_ms) {
  return Guard([&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(auto fetch, Start(reader, entries, count, timeout_ms));
    return fetch->Wait();
  });
}

int oasiskv_reader_fetch_start(oasiskv_reader* reader, const oasiskv_entry_read* entries,
                               size_t count, uint64_t timeout_ms, oasiskv_fetch** out) {
  return With("out", out, [&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(auto fetch, Start(reader, entries, count, timeout_ms));
    *out = new oasiskv_fetch{reader->reader, std::move(fetch)};
    return absl::OkStatus();
  });
}

int oasiskv_reader_fetch_layers(oasiskv_reader* reader, uint32_t block, uint32_t first_layer,
                                uint32_t layers, void* into, uint64_t timeout_ms) {
  return With("reader", reader, [&]() -> absl::Status {
    if (into == nullptr) return NullArgument("into");
    const LayerRead read{BlockIndex(block), LayerIndex(first_layer), layers,
                         static_cast<std::byte*>(into)};
    return reader->reader->FetchLayers({&read, 1}, DeadlineOf(*reader->reader, timeout_ms))->Wait();
  });
}

int oasiskv_reader_fetch_summaries(oasiskv_reader* reader, uint32_t first_block, uint32_t blocks,
                                   void* into, uint64_t timeout_ms) {
  return With("reader", reader, [&]() -> absl::Status {
    if (into == nullptr) return NullArgument("into");
    return reader->reader->FetchSummaries(BlockIndex(first_block), blocks,
                                          static_cast<std::byte*>(into),
                                          DeadlineOf(*reader->reader, timeout_ms));
  });
}

int oasiskv_reader_fetch_topk(oasiskv_reader* reader, uint32_t layer, uint32_t head,
                              const int32_t* blocks, size_t count, void* into, int64_t stride,
                              uint64_t timeout_ms) {
  return With("reader", reader, [&]() -> absl::Status {
    if (blocks == nullptr && count != 0) return NullArgument("blocks");
    if (into == nullptr) return NullArgument("into");
    return reader->reader->FetchTopK(LayerIndex(layer), HeadIndex(head), {blocks, count},
                                     static_cast<std::byte*>(into), stride,
                                     DeadlineOf(*reader->reader, timeout_ms));
  });
}

int oasiskv_fetch_done(oasiskv_fetch* fetch, uint32_t* done) {
  return With("fetch", fetch, [&]() -> absl::Status {
    if (done == nullptr) return NullArgument("done");
    *done = fetch->fetch->Done() ? 1 : 0;
    return absl::OkStatus();
  });
}

int oasiskv_fetch_wait(oasiskv_fetch* fetch) {
  return With("fetch", fetch, [&] { return fetch->fetch->Wait(); });
}

int oasiskv_fetch_cancel(oasiskv_fetch* fetch) {
  return With("fetch", fetch, [&]() -> absl::Status {
    fetch->fetch->Cancel();
    return absl::OkStatus();
  });
}

void oasiskv_fetch_free(oasiskv_fetch* fetch) { Free(fetch); }
