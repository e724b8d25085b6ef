/* The C ABI of the working set on a GPU, beside oasiskv.h and under its rules.
 *
 * oasiskv/gpu_working_set.h says more about every call. Streams are cudaStream_t. Memory that a
 * call is given (device memory, or host memory that the device may use) must stay unchanged until
 * the work that was enqueued with it is done. Only admit, leave, the statistics and snapshot wait
 * for the device. In a library built without CUDA, create returns OASISKV_UNSUPPORTED. */
#ifndef OASISKV_OASISKV_GPU_H_
#define OASISKV_OASISKV_GPU_H_

#include "oasiskv/oasiskv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oasiskv_gpu_working_set oasiskv_gpu_working_set;
enum { OASISKV_QUERY_FLOAT32 = 0, OASISKV_QUERY_BFLOAT16 = 1, OASISKV_QUERY_FLOAT16 = 2 };
enum { OASISKV_MISS_DEMAND = 0, OASISKV_MISS_DROP = 1, OASISKV_MISS_REPORT = 2 };

/* Token t of page p of head h of request slot s lies at
 *   k + physical(s, p) * page_stride + h * head_stride + t * token_stride, strides in bytes,
 * and likewise from v. physical(s, p) is table[s * (K + 1) + p], or s * (K + 1) + p when table is
 * NULL. Page K is the local block. */
typedef struct oasiskv_gpu_pages {
  void* k;
  void* v; /* NULL for latent packing */
  int64_t page_stride, head_stride, token_stride;
  const int32_t* table; /* device memory, [slots][K + 1]; NULL: none */
} oasiskv_gpu_pages;

typedef struct oasiskv_gpu_working_set_options {
  size_t struct_size;
  const oasiskv_working_set_options* base;
  int32_t device;
  uint32_t max_rows;              /* 0: base->max_requests */
  uint32_t max_new_tokens;        /* 0: 4,096 */
  const oasiskv_gpu_pages* pages; /* [layers]; NULL: the working set allocates them */
  uint32_t gather_ctas;           /* 0: 4 */
  uint32_t gather_threads;        /* 0: 1,024 */
  int32_t priority;               /* of the background streams; lower runs first */
  uint32_t local_only;            /* 1: sources are this host's memory only */
  uint64_t max_host_bytes;        /* pinned memory for blocks; 0: no limit */
  uint32_t predict_processors;    /* multiprocessors for scores and selection; 0: no such part */
} oasiskv_gpu_working_set_options;

typedef struct oasiskv_gpu_rows {
  size_t struct_size;
  const int32_t* slots; /* device memory, [max_rows] */
  const uint32_t* count;
  uint32_t max_rows;
} oasiskv_gpu_rows;

/* The multiprocessors that predict_processors leaves to the engine's step. The stream lives as long
 * as the working set. */
typedef struct oasiskv_gpu_foreground {
  size_t struct_size;
  void* stream; /* a CUDA stream on these multiprocessors alone; NULL without that option */
  uint32_t processors;
} oasiskv_gpu_foreground;

typedef struct oasiskv_gpu_slot_state {
  uint64_t clock;        /* selections so far */
  uint32_t complete;     /* blocks before the local one */
  uint32_t local_tokens; /* valid tokens of the local block */
  int32_t promoted;      /* between select and transfer: the completed local block; else -1 */
  uint32_t pending;      /* 1 between select and the end of transfer */
} oasiskv_gpu_slot_state;

typedef struct oasiskv_gpu_layer_view {
  size_t struct_size;
  oasiskv_gpu_pages pages;
  const int32_t* map;                  /* [slot][head][K] -> logical block, -1 empty */
  const oasiskv_gpu_slot_state* state; /* [slot] */
  const int32_t* predicted;            /* [slot][head][K], best first, -1 padding */
} oasiskv_gpu_layer_view;

typedef struct oasiskv_gpu_resolved {
  size_t struct_size;
  const int32_t* blocks;   /* [slot][head][K]: the true top-K */
  const int32_t* pages;    /* [row][head][K]: the page that holds it, -1: missing */
  const uint32_t* missing; /* [row] */
} oasiskv_gpu_resolved;

/* Host copies; a NULL array is not copied. */
typedef struct oasiskv_gpu_snapshot {
  size_t struct_size;
  int32_t* map;       /* [head][K] */
  uint64_t* stamps;   /* [head][K] */
  int32_t* predicted; /* [head][K] */
  void* pages;        /* [head][K + 1][entry] */
  oasiskv_gpu_slot_state state;
} oasiskv_gpu_snapshot;

OASISKV_API int oasiskv_gpu_working_set_create(const oasiskv_gpu_working_set_options* options,
                                               oasiskv_gpu_working_set** out);
OASISKV_API void oasiskv_gpu_working_set_free(oasiskv_gpu_working_set* ws);
OASISKV_API int oasiskv_gpu_working_set_admit(oasiskv_gpu_working_set* ws, oasiskv_source* source,
                                              uint32_t* slot);
OASISKV_API int oasiskv_gpu_working_set_leave(oasiskv_gpu_working_set* ws, uint32_t slot);
OASISKV_API int oasiskv_gpu_working_set_set_rows(oasiskv_gpu_working_set* ws, const uint32_t* slots,
                                                 size_t rows, void* stream);
OASISKV_API int oasiskv_gpu_working_set_rows_get(oasiskv_gpu_working_set* ws,
                                                 oasiskv_gpu_rows* out);
/* Row strides are in elements; 0: rows follow each other. keys NULL: the engine wrote the token
 * itself. */
OASISKV_API int oasiskv_gpu_working_set_append(oasiskv_gpu_working_set* ws, uint32_t layer,
                                               const void* keys, const void* values,
                                               int64_t row_stride, void* stream);
OASISKV_API int oasiskv_gpu_working_set_submit(oasiskv_gpu_working_set* ws, uint32_t layer,
                                               const void* queries, uint32_t query_type,
                                               int64_t row_stride, void* stream);
OASISKV_API int oasiskv_gpu_working_set_submit_topk(oasiskv_gpu_working_set* ws, uint32_t layer,
                                                    const int32_t* topk, uint32_t k, void* stream);
OASISKV_API int oasiskv_gpu_working_set_attention_done(oasiskv_gpu_working_set* ws, uint32_t layer,
                                                       void* stream);
OASISKV_API int oasiskv_gpu_working_set_wait(oasiskv_gpu_working_set* ws, uint32_t layer,
                                             void* stream);
OASISKV_API int oasiskv_gpu_working_set_resolve(oasiskv_gpu_working_set* ws, uint32_t layer,
                                                const void* queries, uint32_t query_type,
                                                int64_t row_stride, uint32_t policy, void* stream,
                                                oasiskv_gpu_resolved* out);
OASISKV_API int oasiskv_gpu_working_set_sample_agreement(oasiskv_gpu_working_set* ws,
                                                         uint32_t layer, const void* queries,
                                                         uint32_t query_type, int64_t row_stride,
                                                         void* stream);
OASISKV_API int oasiskv_gpu_working_set_end_step(oasiskv_gpu_working_set* ws, void* stream);
OASISKV_API int oasiskv_gpu_working_set_foreground_get(oasiskv_gpu_working_set* ws,
                                                       oasiskv_gpu_foreground* out);
OASISKV_API int oasiskv_gpu_working_set_view(oasiskv_gpu_working_set* ws, uint32_t layer,
                                             oasiskv_gpu_layer_view* out);
OASISKV_API int oasiskv_gpu_working_set_fetch_cap(oasiskv_gpu_working_set* ws, uint32_t* out);
OASISKV_API int oasiskv_gpu_working_set_stats_get(oasiskv_gpu_working_set* ws,
                                                  oasiskv_working_set_stats* out);
OASISKV_API int oasiskv_gpu_working_set_request_stats_get(oasiskv_gpu_working_set* ws,
                                                          uint32_t slot,
                                                          oasiskv_working_set_stats* out);
/* OASISKV_OK, or the first thing that went wrong on the device or in a remote source since the last
 * clear_error. Reads host memory only. */
OASISKV_API int oasiskv_gpu_working_set_error(oasiskv_gpu_working_set* ws);
OASISKV_API int oasiskv_gpu_working_set_clear_error(oasiskv_gpu_working_set* ws);
/* For tests and tools: waits for the device. */
OASISKV_API int oasiskv_gpu_working_set_snapshot(oasiskv_gpu_working_set* ws, uint32_t layer,
                                                 uint32_t slot, oasiskv_gpu_snapshot* inout);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* OASISKV_OASISKV_GPU_H_ */
