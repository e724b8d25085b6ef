#include "client/c_api/convert.h"
#include "client/c_api/handles.h"
#include "common/status_macros.h"

// This file defines extern "C" names only.
using namespace oasiskv;         // NOLINT(google-build-using-namespace)
using namespace oasiskv::c_api;  // NOLINT(google-build-using-namespace)

namespace {

static_assert(sizeof(RequestSlot) == sizeof(uint32_t));

// The rows of a step. RequestSlot has the layout of uint32_t, so the caller's array is not copied.
absl::StatusOr<std::span<const RequestSlot>> Rows(const oasiskv_working_set* ws,
                                                  const uint32_t* slots, size_t rows) {
  if (ws == nullptr) return NullArgument("ws");
  if (slots == nullptr && rows != 0) return NullArgument("slots");
  return std::span<const RequestSlot>(reinterpret_cast<const RequestSlot*>(slots), rows);
}

}  // namespace

int oasiskv_source_make(oasiskv_reader* const* readers, size_t count,
                        const oasiskv_source_options* options, oasiskv_source** out) {
  return Guard([&]() -> absl::Status {
    if (readers == nullptr && count != 0) return NullArgument("readers");
    if (out == nullptr) return NullArgument("out");
    oasiskv_source_options in;
    OASISKV_RETURN_IF_ERROR(ReadStruct(options, "options", in));
    SequenceSourceOptions o;
    OASISKV_ASSIGN_OR_RETURN(o.host_cache,
                             ToEnum(in.host_cache, HostCachePolicy::kNever, "options.host_cache"));
    if (in.host_cache_bytes != 0) o.host_cache_bytes = in.host_cache_bytes;
    std::vector<SourcePart> parts;
    for (size_t i = 0; i < count; ++i) {
      if (readers[i] == nullptr) return NullArgument("readers[" + std::to_string(i) + "]");
      parts.push_back({readers[i]->reader});
    }
    return Give(MakeSequenceSource(std::move(parts), o), out);
  });
}

void oasiskv_source_free(oasiskv_source* source) { Free(source); }

int oasiskv_source_stats_get(oasiskv_source* source, oasiskv_source_stats* out) {
  return With("source", source, [&]() -> absl::Status {
    const SourceStats s = source->source->Stats();
    return WriteStruct(
        oasiskv_source_stats{sizeof(oasiskv_source_stats), s.remote_bytes, s.remote_entries,
                             s.host_hits, s.host_bytes, s.written_back},
        "out", out);
  });
}

int oasiskv_working_set_create(const oasiskv_working_set_options* options,
                               oasiskv_working_set** out) {
  return With("out", out, [&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(const WorkingSetOptions o, ToWorkingSetOptions(options));
    NoteFirstHandle();
    return Give(WorkingSet::Create(o), out);
  });
}

void oasiskv_working_set_free(oasiskv_working_set* ws) { Free(ws); }

int oasiskv_working_set_admit(oasiskv_working_set* ws, oasiskv_source* source, uint32_t* slot) {
  return With("ws", ws, [&]() -> absl::Status {
    if (source == nullptr) return NullArgument("source");
    if (slot == nullptr) return NullArgument("slot");
    OASISKV_ASSIGN_OR_RETURN(RequestSlot s, ws->ws->Admit(source->source));
    *slot = s.value();
    return absl::OkStatus();
  });
}

int oasiskv_working_set_leave(oasiskv_working_set* ws, uint32_t slot) {
  return With("ws", ws, [&] { return ws->ws->Leave(RequestSlot(slot)); });
}

int oasiskv_working_set_append(oasiskv_working_set* ws, uint32_t layer, const uint32_t* slots,
                               size_t rows, const void* keys, const void* values) {
  return Guard([&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(auto batch, Rows(ws, slots, rows));
    if (keys == nullptr) return NullArgument("keys");
    if (values == nullptr && ws->ws->options().geometry.packing != Packing::kLatent)
      return NullArgument("values");
    return ws->ws->Append(LayerIndex(layer), batch, static_cast<const std::byte*>(keys),
                          static_cast<const std::byte*>(values));
  });
}

int oasiskv_working_set_submit(oasiskv_working_set* ws, uint32_t layer, const uint32_t* slots,
                               size_t rows, const float* queries) {
  return Guard([&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(auto batch, Rows(ws, slots, rows));
    if (queries == nullptr) return NullArgument("queries");
    return ws->ws->Submit(LayerIndex(layer), batch, queries);
  });
}

int oasiskv_working_set_submit_topk(oasiskv_working_set* ws, uint32_t layer, const uint32_t* slots,
                                    size_t rows, const int32_t* topk, uint32_t k) {
  return Guard([&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(auto batch, Rows(ws, slots, rows));
    if (topk == nullptr) return NullArgument("topk");
    return ws->ws->SubmitTopK(LayerIndex(layer), batch, topk, k);
  });
}

int oasiskv_working_set_attention_done(oasiskv_working_set* ws, uint32_t layer,
                                       const uint32_t* slots, size_t rows) {
  return Guard([&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(auto batch, Rows(ws, slots, rows));
    return ws->ws->AttentionDone(LayerIndex(layer), batch);
  });
}

int oasiskv_working_set_wait(oasiskv_working_set* ws, uint32_t layer, const uint32_t* slots,
                             size_t rows) {
  return Guard([&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(auto batch, Rows(ws, slots, rows));
    return ws->ws->Wait(LayerIndex(layer), batch);
  });
}

int oasiskv_working_set_resolve(oasiskv_working_set* ws, uint32_t layer, const uint32_t* slots,
                                size_t rows, const float* queries) {
  return Guard([&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(auto batch, Rows(ws, slots, rows));
    if (queries == nullptr) return NullArgument("queries");
    return ws->ws->Resolve(LayerIndex(layer), batch, queries);
  });
}

int oasiskv_working_set_sample_agreement(oasiskv_working_set* ws, uint32_t layer,
                                         const uint32_t* slots, size_t rows, const float* queries) {
  return Guard([&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(auto batch, Rows(ws, slots, rows));
    if (queries == nullptr) return NullArgument("queries");
    return ws->ws->SampleAgreement(LayerIndex(layer), batch, queries);
  });
}

int oasiskv_working_set_view(oasiskv_working_set* ws, uint32_t layer, uint32_t slot,
                             oasiskv_resident_view* out) {
  return With("ws", ws, [&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(ResidentView v, ws->ws->View(LayerIndex(layer), RequestSlot(slot)));
    return WriteStruct(oasiskv_resident_view{sizeof(oasiskv_resident_view), v.pages, v.map,
                                             v.local_tokens, v.local_block.value()},
                       "out", out);
  });
}

int oasiskv_working_set_fetch_cap(oasiskv_working_set* ws, uint32_t* out) {
  return With("ws", ws, [&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    *out = ws->ws->fetch_cap();
    return absl::OkStatus();
  });
}

int oasiskv_working_set_stats_get(oasiskv_working_set* ws, oasiskv_working_set_stats* out) {
  return With("ws", ws, [&] { return WriteStruct(FromStats(ws->ws->Stats()), "out", out); });
}
