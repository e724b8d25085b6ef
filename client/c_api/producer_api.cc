#include "client/c_api/convert.h"
#include "client/c_api/handles.h"
#include "common/status_macros.h"

// This file defines extern "C" names only.
using namespace oasiskv;         // NOLINT(google-build-using-namespace)
using namespace oasiskv::c_api;  // NOLINT(google-build-using-namespace)

namespace {

KvView ToView(const oasiskv_kv_view& view) {
  return {static_cast<const std::byte*>(view.base), view.token_stride, view.head_stride};
}

}  // namespace

int oasiskv_producer_open(oasiskv_client* client, const oasiskv_producer_spec* spec,
                          oasiskv_producer** out) {
  return With("client", client, [&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    oasiskv_producer_spec in;
    ProducerSpec p;
    OASISKV_RETURN_IF_ERROR(ReadSpec(spec, in, p));
    p.blocks = in.blocks;
    p.checksums = in.checksums != 0;
    return Give(client->client->Open(p), out);
  });
}

void oasiskv_producer_free(oasiskv_producer* producer) { Free(producer); }

int oasiskv_producer_extend(oasiskv_producer* producer, uint32_t blocks) {
  return With("producer", producer, [&] { return producer->producer.Extend(blocks); });
}

int oasiskv_producer_write_tokens(oasiskv_producer* producer, uint32_t layer, uint64_t first_token,
                                  uint32_t tokens, oasiskv_kv_view keys, oasiskv_kv_view values) {
  return With("producer", producer, [&] {
    return producer->producer.WriteTokens(LayerIndex(layer), first_token, tokens, ToView(keys),
                                          ToView(values));
  });
}

int oasiskv_producer_commit_written(oasiskv_producer* producer) {
  return With("producer", producer, [&] { return producer->producer.CommitWritten(); });
}

int oasiskv_producer_commit(oasiskv_producer* producer, uint32_t first_layer, uint32_t layer_count,
                            uint32_t first_block, uint32_t block_count) {
  return With("producer", producer, [&] {
    return producer->producer.Commit(LayerIndex(first_layer), layer_count, BlockIndex(first_block),
                                     block_count);
  });
}

int oasiskv_producer_seal(oasiskv_producer* producer, const oasiskv_seal_spec* spec) {
  return With("producer", producer, [&]() -> absl::Status {
    oasiskv_seal_spec in;
    OASISKV_RETURN_IF_ERROR(ReadStruct(spec, "spec", in));
    SealSpec s;
    s.token_count = in.token_count;
    s.first_queries = in.first_queries;
    s.query_heads = in.query_heads;
    OASISKV_ASSIGN_OR_RETURN(s.combine,
                             ToEnum(in.combine, GroupCombine::kNormalizedMax, "spec.combine"));
    s.bound_weight = ToBoundWeight(in.bound_weight);
    if (in.top_k != 0) s.top_k = in.top_k;
    if (in.blob == nullptr && in.blob_size != 0) return NullArgument("spec.blob");
    if (in.blob_size != 0) s.blob.assign(static_cast<const char*>(in.blob), in.blob_size);
    return producer->producer.Seal(s);
  });
}

int oasiskv_producer_abort(oasiskv_producer* producer, const char* reason) {
  return With("producer", producer, [&] { return producer->producer.Abort(OrEmpty(reason)); });
}
