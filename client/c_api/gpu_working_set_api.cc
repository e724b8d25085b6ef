#include <cstring>

#include "client/c_api/convert.h"
#include "client/c_api/handles.h"
#include "common/status_macros.h"

// This file defines extern "C" names only.
using namespace oasiskv;         // NOLINT(google-build-using-namespace)
using namespace oasiskv::c_api;  // NOLINT(google-build-using-namespace)

namespace {

static_assert(sizeof(RequestSlot) == sizeof(uint32_t));
static_assert(sizeof(oasiskv_gpu_slot_state) == sizeof(GpuSlotState));

GpuPages ToPages(const oasiskv_gpu_pages& pages) {
  return {.k = pages.k,
          .v = pages.v,
          .page_stride = pages.page_stride,
          .head_stride = pages.head_stride,
          .token_stride = pages.token_stride,
          .table = pages.table};
}

absl::StatusOr<GpuWorkingSetOptions> ToOptions(const oasiskv_gpu_working_set_options* options) {
  oasiskv_gpu_working_set_options in;
  OASISKV_RETURN_IF_ERROR(ReadStruct(options, "options", in));
  GpuWorkingSetOptions o;
  OASISKV_ASSIGN_OR_RETURN(o.base, ToWorkingSetOptions(in.base));
  o.device = in.device;
  o.max_rows = in.max_rows;
  if (in.max_new_tokens != 0) o.max_new_tokens = in.max_new_tokens;
  for (uint32_t l = 0; in.pages != nullptr && l < o.base.geometry.layers; ++l) {
    o.pages.push_back(ToPages(in.pages[l]));
  }
  if (in.gather_ctas != 0) o.gather_ctas = in.gather_ctas;
  if (in.gather_threads != 0) o.gather_threads = in.gather_threads;
  o.priority = in.priority;
  o.remote_sources = in.local_only == 0;
  o.max_host_bytes = in.max_host_bytes;
  o.predict_processors = in.predict_processors;
  return o;
}

template <typename T>
void CopyTo(const std::vector<T>& from, void* to) {
  if (to != nullptr && !from.empty()) std::memcpy(to, from.data(), from.size() * sizeof(T));
}

}  // namespace

int oasiskv_gpu_working_set_create(const oasiskv_gpu_working_set_options* options,
                                   oasiskv_gpu_working_set** out) {
  return With("out", out, [&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(const GpuWorkingSetOptions o, ToOptions(options));
    NoteFirstHandle();
    return Give(GpuWorkingSet::Create(o), out);
  });
}

void oasiskv_gpu_working_set_free(oasiskv_gpu_working_set* ws) { Free(ws); }

int oasiskv_gpu_working_set_admit(oasiskv_gpu_working_set* ws, oasiskv_source* source,
                                  uint32_t* slot) {
  return With("ws", ws, [&]() -> absl::Status {
    if (source == nullptr) return NullArgument("source");
    if (slot == nullptr) return NullArgument("slot");
    OASISKV_ASSIGN_OR_RETURN(const RequestSlot s, ws->ws->Admit(source->source));
    *slot = s.value();
    return absl::OkStatus();
  });
}

int oasiskv_gpu_working_set_leave(oasiskv_gpu_working_set* ws, uint32_t slot) {
  return With("ws", ws, [&] { return ws->ws->Leave(RequestSlot(slot)); });
}

int oasiskv_gpu_working_set_set_rows(oasiskv_gpu_working_set* ws, const uint32_t* slots,
                                     size_t rows, void* stream) {
  return With("ws", ws, [&]() -> absl::Status {
    if (slots == nullptr && rows != 0) return NullArgument("slots");
    return ws->ws->SetRows({reinterpret_cast<const RequestSlot*>(slots), rows}, stream);
  });
}

int oasiskv_gpu_working_set_rows_get(oasiskv_gpu_working_set* ws, oasiskv_gpu_rows* out) {
  return With("ws", ws, [&] {
    const GpuRows rows = ws->ws->Rows();
    return WriteStruct(
        oasiskv_gpu_rows{sizeof(oasiskv_gpu_rows), rows.slots, rows.count, rows.max_rows}, "out",
        out);
  });
}

int oasiskv_gpu_working_set_foreground_get(oasiskv_gpu_working_set* ws,
                                           oasiskv_gpu_foreground* out) {
  return With("ws", ws, [&] {
    const GpuForeground f = ws->ws->Foreground();
    return WriteStruct(
        oasiskv_gpu_foreground{sizeof(oasiskv_gpu_foreground), f.stream, f.processors}, "out", out);
  });
}

int oasiskv_gpu_working_set_append(oasiskv_gpu_working_set* ws, uint32_t layer, const void* keys,
                                   const void* values, int64_t row_stride, void* stream) {
  return With("ws", ws,
              [&] { return ws->ws->Append(LayerIndex(layer), keys, values, row_stride, stream); });
}

int oasiskv_gpu_working_set_submit(oasiskv_gpu_working_set* ws, uint32_t layer, const void* queries,
                                   uint32_t query_type, int64_t row_stride, void* stream) {
  return With("ws", ws, [&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(const GpuQueryType type,
                             ToEnum(query_type, GpuQueryType::kFloat16, "query_type"));
    return ws->ws->Submit(LayerIndex(layer), queries, type, row_stride, stream);
  });
}

int oasiskv_gpu_working_set_submit_topk(oasiskv_gpu_working_set* ws, uint32_t layer,
                                        const int32_t* topk, uint32_t k, void* stream) {
  return With("ws", ws, [&] { return ws->ws->SubmitTopK(LayerIndex(layer), topk, k, stream); });
}

int oasiskv_gpu_working_set_attention_done(oasiskv_gpu_working_set* ws, uint32_t layer,
                                           void* stream) {
  return With("ws", ws, [&] { return ws->ws->AttentionDone(LayerIndex(layer), stream); });
}

int oasiskv_gpu_working_set_wait(oasiskv_gpu_working_set* ws, uint32_t layer, void* stream) {
  return With("ws", ws, [&] { return ws->ws->Wait(LayerIndex(layer), stream); });
}

int oasiskv_gpu_working_set_resolve(oasiskv_gpu_working_set* ws, uint32_t layer,
                                    const void* queries, uint32_t query_type, int64_t row_stride,
                                    uint32_t policy, void* stream, oasiskv_gpu_resolved* out) {
  return With("ws", ws, [&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(const GpuQueryType type,
                             ToEnum(query_type, GpuQueryType::kFloat16, "query_type"));
    OASISKV_ASSIGN_OR_RETURN(const GpuMissPolicy miss,
                             ToEnum(policy, GpuMissPolicy::kReport, "policy"));
    OASISKV_ASSIGN_OR_RETURN(const GpuResolved r, ws->ws->Resolve(LayerIndex(layer), queries, type,
                                                                  row_stride, miss, stream));
    return WriteStruct(
        oasiskv_gpu_resolved{sizeof(oasiskv_gpu_resolved), r.blocks, r.pages, r.missing}, "out",
        out);
  });
}

int oasiskv_gpu_working_set_sample_agreement(oasiskv_gpu_working_set* ws, uint32_t layer,
                                             const void* queries, uint32_t query_type,
                                             int64_t row_stride, void* stream) {
  return With("ws", ws, [&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(const GpuQueryType type,
                             ToEnum(query_type, GpuQueryType::kFloat16, "query_type"));
    return ws->ws->SampleAgreement(LayerIndex(layer), queries, type, row_stride, stream);
  });
}

int oasiskv_gpu_working_set_end_step(oasiskv_gpu_working_set* ws, void* stream) {
  return With("ws", ws, [&] { return ws->ws->EndStep(stream); });
}

int oasiskv_gpu_working_set_view(oasiskv_gpu_working_set* ws, uint32_t layer,
                                 oasiskv_gpu_layer_view* out) {
  return With("ws", ws, [&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(const GpuLayerView v, ws->ws->View(LayerIndex(layer)));
    const GpuPages& p = v.pages;
    return WriteStruct(
        oasiskv_gpu_layer_view{sizeof(oasiskv_gpu_layer_view),
                               {p.k, p.v, p.page_stride, p.head_stride, p.token_stride, p.table},
                               v.map,
                               reinterpret_cast<const oasiskv_gpu_slot_state*>(v.state),
                               v.predicted},
        "out", out);
  });
}

int oasiskv_gpu_working_set_fetch_cap(oasiskv_gpu_working_set* ws, uint32_t* out) {
  return With("ws", ws, [&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    *out = ws->ws->fetch_cap();
    return absl::OkStatus();
  });
}

int oasiskv_gpu_working_set_stats_get(oasiskv_gpu_working_set* ws, oasiskv_working_set_stats* out) {
  return With("ws", ws, [&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(const WorkingSetStats stats, ws->ws->Stats());
    return WriteStruct(FromStats(stats), "out", out);
  });
}

int oasiskv_gpu_working_set_request_stats_get(oasiskv_gpu_working_set* ws, uint32_t slot,
                                              oasiskv_working_set_stats* out) {
  return With("ws", ws, [&]() -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(const WorkingSetStats stats, ws->ws->RequestStats(RequestSlot(slot)));
    return WriteStruct(FromStats(stats), "out", out);
  });
}

int oasiskv_gpu_working_set_error(oasiskv_gpu_working_set* ws) {
  return With("ws", ws, [&] { return ws->ws->Error(); });
}

int oasiskv_gpu_working_set_clear_error(oasiskv_gpu_working_set* ws) {
  return With("ws", ws, [&] {
    ws->ws->ClearError();
    return absl::OkStatus();
  });
}

int oasiskv_gpu_working_set_snapshot(oasiskv_gpu_working_set* ws, uint32_t layer, uint32_t slot,
                                     oasiskv_gpu_snapshot* inout) {
  return With("ws", ws, [&]() -> absl::Status {
    oasiskv_gpu_snapshot out;
    OASISKV_RETURN_IF_ERROR(ReadStruct(inout, "inout", out));
    OASISKV_ASSIGN_OR_RETURN(const GpuSnapshot shot,
                             ws->ws->Snapshot(LayerIndex(layer), RequestSlot(slot)));
    CopyTo(shot.map, out.map);
    CopyTo(shot.stamps, out.stamps);
    CopyTo(shot.predicted, out.predicted);
    CopyTo(shot.pages, out.pages);
    std::memcpy(&out.state, &shot.state, sizeof(out.state));
    return WriteStruct(out, "inout", inout);
  });
}
