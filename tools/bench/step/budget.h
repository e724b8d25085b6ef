// How many requests fit: the same memory for both sides.
#pragma once

#include <cstdint>

#include "tools/bench/step/model/model.h"

namespace oasiskv::bench::step {

// HBM of one request. Dense: its whole KV. Sparse: K + 1 pages of every head and layer, the
// summaries of all blocks, the books, and the draft model's KV.
uint64_t DenseRequestBytes(const Model& model, uint32_t context);
uint64_t SparseRequestBytes(const Model& model, uint32_t context, uint32_t resident,
                            SummaryType summaries);

// The largest batch whose weights, activations and requests fit in `hbm`; 0: not one.
uint32_t LargestBatch(const Model& model, uint64_t hbm, uint64_t request_bytes,
                      uint32_t query_rows);

// `largest`, or a little less where the rows of the products then fill whole tiles of 128: a row
// beyond one costs as much arithmetic as 128.
uint32_t WholeTiles(uint32_t largest, uint32_t query_rows);

// Bytes that a step must move through HBM, each once: weights, the requests' pages, and for the
// sparse side the summaries, what the gather writes, and the draft model's KV.
double DenseStepBytes(const Model& model, uint32_t context, uint32_t batch,
                      uint64_t weight_bytes_read);
double SparseStepBytes(const Model& model, uint32_t context, uint32_t resident,
                       SummaryType summaries, uint32_t batch, uint64_t weight_bytes_read,
                       double link_bytes);

}  // namespace oasiskv::bench::step
