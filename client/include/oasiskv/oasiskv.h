/* The stable C ABI of oasiskv: opaque handles, no exceptions, plain numbers. The C++ headers beside
 * this one say more about each operation; names correspond.
 *
 * Errors: a function that can fail returns 0 (OASISKV_OK) or an oasiskv_code, and then
 * oasiskv_last_error() holds the message of the calling thread's last failed call. Outputs are
 * written only on success. NULL handles are INVALID_ARGUMENT.
 *
 * Structures begin with struct_size: set it to sizeof the structure (OASISKV_INIT does, and zeroes
 * the rest). Zero means the default for every other field. Fields are only ever added at the end.
 *
 * Threads: a client, a reader and a source may be used by many threads at once; a producer, a
 * fetch, a buffer and a working set (on a GPU too) by one at a time. A handle must not be freed
 * while another thread is in a call with it. After fork() handles may not be used in the child:
 * calls answer OASISKV_WRONG_STATE there.
 *
 * Times are milliseconds unless the name says otherwise; sizes are bytes. */
#ifndef OASISKV_OASISKV_H_
#define OASISKV_OASISKV_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OASISKV_API __attribute__((visibility("default")))
#define OASISKV_INIT(type) ((type){.struct_size = sizeof(type)})

/* Values equal those of oasiskv.v1.ErrorCode (proto/oasiskv/v1/types.proto says when each happens
 * and what to do). */
typedef enum oasiskv_code {
  OASISKV_OK = 0,
  OASISKV_INVALID_ARGUMENT = 1,
  OASISKV_GEOMETRY_MISMATCH = 2,
  OASISKV_IDENTITY_MISMATCH = 3,
  OASISKV_OUT_OF_RANGE = 4,
  OASISKV_FOREIGN = 5,
  OASISKV_PERMISSION_DENIED = 6,
  OASISKV_ALREADY_EXISTS = 7,
  OASISKV_UNSUPPORTED = 8,
  OASISKV_NOT_COMMITTED = 20,
  OASISKV_NOT_SEALED = 21,
  OASISKV_CAPACITY = 22,
  OASISKV_DRAINING = 23,
  OASISKV_DEADLINE_EXCEEDED = 24,
  OASISKV_CANCELLED = 25,
  OASISKV_STALE = 40,
  OASISKV_LEASE_EXPIRED = 41,
  OASISKV_NOT_FOUND = 42,
  OASISKV_WRONG_STATE = 43,
  OASISKV_PEER_LOST = 60,
  OASISKV_CHECKSUM_MISMATCH = 80,
  OASISKV_INTERNAL = 81
} oasiskv_code;

/* Never NULL; valid until the thread's next failed call. */
OASISKV_API const char* oasiskv_last_error(void);
/* "STALE", "LEASE_EXPIRED", ...; never NULL. */
OASISKV_API const char* oasiskv_code_name(int code);
OASISKV_API const char* oasiskv_version(void);
/* 0 debug, 1 info (default), 2 warning, 3 error, 4 off; to stderr. */
OASISKV_API int oasiskv_set_log_level(int level);
/* CRC32C (RFC 3720) of size bytes, continued from seed (0 to start). */
OASISKV_API uint32_t oasiskv_crc32c(const void* data, size_t size, uint32_t seed);

/* --- Geometry and identity -------------------------------------------------------------------- */

enum { OASISKV_FLOAT16 = 1, OASISKV_BFLOAT16 = 2, OASISKV_FLOAT32 = 3 };
enum { OASISKV_KEY_THEN_VALUE = 1, OASISKV_LATENT = 2 };

typedef struct oasiskv_geometry {
  size_t struct_size;
  uint32_t layers;
  uint32_t kv_heads;     /* of this shard; 1 for OASISKV_LATENT */
  uint32_t head_dim;     /* elements */
  uint32_t block_tokens; /* 0: 16 */
  uint32_t element_type;
  uint32_t packing;        /* 0: OASISKV_KEY_THEN_VALUE */
  uint32_t first_head;     /* the model's number of this shard's head 0 */
  uint32_t total_kv_heads; /* of the model; 0: first_head + kv_heads */
} oasiskv_geometry;

typedef struct oasiskv_identity {
  size_t struct_size;
  const char* model;
  const char* revision; /* NULL: "" */
  const char* tenant;   /* NULL: "" */
} oasiskv_identity;

/* Sizes that follow from a geometry. */
typedef struct oasiskv_layout {
  size_t struct_size;
  uint32_t entry_bytes;   /* one block, one layer, one head: K then V */
  uint32_t summary_bytes; /* min and max key of one entry */
  uint32_t frame_bytes;   /* one block, all layers and heads, with summaries */
} oasiskv_layout;
OASISKV_API int oasiskv_geometry_layout(const oasiskv_geometry* geometry, oasiskv_layout* out);

/* --- Client ----------------------------------------------------------------------------------- */

typedef struct oasiskv_client oasiskv_client;

typedef struct oasiskv_client_options {
  size_t struct_size;
  const char* address; /* NULL: 127.0.0.1:7400 */
  /* "shm", "verbs" or "ucx"; NULL or "auto": the first of them that reaches the daemon. */
  const char* fabric;
  uint64_t rpc_timeout_ms;   /* 0: 5,000 */
  uint64_t read_timeout_ms;  /* 0: 10,000 */
  uint64_t lease_ms;         /* 0: the daemon's default */
  uint32_t verify_checksums; /* 1: check CRC32C of every entry where the writer gave them */
  /* verbs: this side's device, its port and the entry of the port's GID table. */
  const char* verbs_device; /* NULL: the first with an active port */
  uint32_t verbs_port;      /* 0: the device's first active one */
  uint32_t verbs_gid_given; /* 1: verbs_gid_index counts; 0: one is chosen */
  uint32_t verbs_gid_index;
  /* verbs: the connection is lost when a request is not acknowledged for so long. 0: 500 */
  uint64_t verbs_peer_timeout_ms;
} oasiskv_client_options;

typedef struct oasiskv_client_stats {
  size_t struct_size;
  uint64_t reads, writes;    /* batches */
  uint64_t pieces, requests; /* pieces asked for; requests after neighbours were joined */
  uint64_t bytes_read, bytes_written, request_bytes;
  uint64_t grant_checks; /* grant words looked at after data */
  uint64_t stale_reads, expired_reads, deadline_reads, failed_reads;
  uint64_t checksums_verified, checksum_failures;
  uint64_t reconnects, renewals, grants_lost;
  /* Sums over timed_reads successful batches: checking and joining, handing work to the fabric, and
   * from there to the last byte and the grant check. */
  uint64_t timed_reads, prepare_ns, post_ns, wire_ns;
  /* verbs: bytes that moved straight to or from registered memory, and through a copy. */
  uint64_t bytes_direct, bytes_bounced;
} oasiskv_client_stats;

OASISKV_API int oasiskv_client_connect(const oasiskv_client_options* options, oasiskv_client** out);
OASISKV_API void oasiskv_client_free(oasiskv_client* client); /* NULL is fine */
OASISKV_API int oasiskv_client_health(oasiskv_client* client);
/* One line into buffer (daemon, version, fabric and why it was chosen), cut to size with a final
 * 0. */
OASISKV_API int oasiskv_client_describe(oasiskv_client* client, char* buffer, size_t size);
OASISKV_API int oasiskv_client_stats_get(oasiskv_client* client, oasiskv_client_stats* out);
OASISKV_API int oasiskv_client_release_sequence(oasiskv_client* client, const char* name,
                                                const oasiskv_identity* identity,
                                                uint32_t* released);
OASISKV_API int oasiskv_client_abort(oasiskv_client* client, const char* name,
                                     const oasiskv_identity* identity, const char* reason,
                                     uint32_t* grants_revoked);

/* --- Registered buffers ----------------------------------------------------------------------- */

typedef struct oasiskv_buffer oasiskv_buffer;

/* With verbs, fetches into these bytes by any reader of this client need no copy; with the other
 * fabrics it does nothing. Renewed on each new connection. The caller keeps the memory mapped until
 * the buffer is freed; it is pinned until then. oasiskv/buffer.h says more. */
OASISKV_API int oasiskv_buffer_register(oasiskv_client* client, void* memory, size_t size,
                                        oasiskv_buffer** out);
/* *direct becomes 1 when, over the present connection, fetches land in it without a copy. */
OASISKV_API int oasiskv_buffer_direct(oasiskv_buffer* buffer, uint32_t* direct);
/* Unregisters; fetches in flight end as they would have. The client may be freed before it. */
OASISKV_API void oasiskv_buffer_free(oasiskv_buffer* buffer);

/* --- Producer: the prefill side --------------------------------------------------------------- */

typedef struct oasiskv_producer oasiskv_producer;

typedef struct oasiskv_producer_spec {
  size_t struct_size;
  const char* name;
  const oasiskv_identity* identity;
  const oasiskv_geometry* geometry;
  uint32_t blocks;    /* frames to reserve now */
  uint32_t checksums; /* 1: give the daemon a CRC32C of every entry */
  uint64_t lease_ms;  /* 0: the client's */
} oasiskv_producer_spec;

/* Element (token t, head h, dim d) lies at
 *   base + t * token_stride + h * head_stride + d * element size, strides in bytes. */
typedef struct oasiskv_kv_view {
  const void* base;
  int64_t token_stride;
  int64_t head_stride;
} oasiskv_kv_view;

/* How the scores of the query heads of one KV head are combined. OASISKV_COMBINE_NORMALIZED_MAX
 * first subtracts each head's own best score from its scores (oasiskv/selection.h says why). */
enum {
  OASISKV_COMBINE_MAX = 0,
  OASISKV_COMBINE_MEAN = 1,
  OASISKV_COMBINE_SUM = 2,
  OASISKV_COMBINE_NORMALIZED_MAX = 3
};

/* bound_weight of the structures below: how much of a summary's range counts in a score, above 0
 * and at most 1 (oasiskv/selection.h has the formula). Since 0 means the default, which is 1 (the
 * upper bound), any negative number stands for a weight of 0 (the middle of the range). */

typedef struct oasiskv_seal_spec {
  size_t struct_size;
  uint64_t token_count;
  const float* first_queries; /* [layers][query_heads][head_dim]; NULL: none */
  uint32_t query_heads;
  uint32_t combine;
  uint32_t top_k; /* 0: 128 */
  const void* blob;
  size_t blob_size;
  double bound_weight; /* 0: 1.0; negative: a weight of 0 */
} oasiskv_seal_spec;

OASISKV_API int oasiskv_producer_open(oasiskv_client* client, const oasiskv_producer_spec* spec,
                                      oasiskv_producer** out);
/* Freeing an unsealed producer aborts its sequence. */
OASISKV_API void oasiskv_producer_free(oasiskv_producer* producer);
OASISKV_API int oasiskv_producer_extend(oasiskv_producer* producer, uint32_t blocks);
OASISKV_API int oasiskv_producer_write_tokens(oasiskv_producer* producer, uint32_t layer,
                                              uint64_t first_token, uint32_t tokens,
                                              oasiskv_kv_view keys, oasiskv_kv_view values);
OASISKV_API int oasiskv_producer_commit_written(oasiskv_producer* producer);
OASISKV_API int oasiskv_producer_commit(oasiskv_producer* producer, uint32_t first_layer,
                                        uint32_t layer_count, uint32_t first_block,
                                        uint32_t block_count);
/* The sealed sequence lives until it is released. The daemon releases it by itself when no reader
 * has it attached for the daemon's --unattended_ttl (default: 10 minutes). */
OASISKV_API int oasiskv_producer_seal(oasiskv_producer* producer, const oasiskv_seal_spec* spec);
OASISKV_API int oasiskv_producer_abort(oasiskv_producer* producer, const char* reason);

/* --- Reader: the decode side ------------------------------------------------------------------ */

typedef struct oasiskv_reader oasiskv_reader;
typedef struct oasiskv_fetch oasiskv_fetch;

typedef struct oasiskv_reader_spec {
  size_t struct_size;
  const char* name;
  const oasiskv_identity* identity;
  const oasiskv_geometry* geometry; /* what the shard must have */
  uint32_t first_head;
  uint32_t head_count;       /* 0: all */
  uint64_t lease_ms;         /* 0: the client's */
  uint64_t wait_for_seal_ms; /* 0: attach at once, also while it is open */
} oasiskv_reader_spec;

typedef struct oasiskv_reader_info {
  size_t struct_size;
  uint32_t sealed;
  uint64_t token_count;
  uint32_t blocks;
  uint32_t first_head, head_count;
  uint32_t first_topk_k;
  const int32_t* first_topk; /* [layers][kv_heads][k]; lives as long as the reader */
  const void* blob;          /* likewise */
  size_t blob_size;
} oasiskv_reader_info;

typedef struct oasiskv_entry_read {
  uint32_t block, layer, head; /* head counted within the shard */
  void* into;                  /* entry_bytes */
} oasiskv_entry_read;

OASISKV_API int oasiskv_reader_attach(oasiskv_client* client, const oasiskv_reader_spec* spec,
                                      oasiskv_reader** out);
/* Cancels nothing: free (or wait for) the reader's fetches first. */
OASISKV_API void oasiskv_reader_free(oasiskv_reader* reader);
OASISKV_API int oasiskv_reader_info_get(oasiskv_reader* reader, oasiskv_reader_info* out);
OASISKV_API int oasiskv_reader_health(oasiskv_reader* reader);
OASISKV_API int oasiskv_reader_release(oasiskv_reader* reader);
/* timeout_ms 0: the client's read_timeout. */
OASISKV_API int oasiskv_reader_fetch(oasiskv_reader* reader, const oasiskv_entry_read* entries,
                                     size_t count, uint64_t timeout_ms);
OASISKV_API int oasiskv_reader_fetch_start(oasiskv_reader* reader,
                                           const oasiskv_entry_read* entries, size_t count,
                                           uint64_t timeout_ms, oasiskv_fetch** out);
/* layers x all attached heads of one block, [layer][head] entries, contiguous. */
OASISKV_API int oasiskv_reader_fetch_layers(oasiskv_reader* reader, uint32_t block,
                                            uint32_t first_layer, uint32_t layers, void* into,
                                            uint64_t timeout_ms);
/* [block][layer][head][min|max][head_dim], attached heads. */
OASISKV_API int oasiskv_reader_fetch_summaries(oasiskv_reader* reader, uint32_t first_block,
                                               uint32_t blocks, void* into, uint64_t timeout_ms);
/* blocks[i] of one layer and head into (char*)into + i * stride; -1 is padding. */
OASISKV_API int oasiskv_reader_fetch_topk(oasiskv_reader* reader, uint32_t layer, uint32_t head,
                                          const int32_t* blocks, size_t count, void* into,
                                          int64_t stride, uint64_t timeout_ms);
/* *done becomes 1 when the outcome is known. */
OASISKV_API int oasiskv_fetch_done(oasiskv_fetch* fetch, uint32_t* done);
OASISKV_API int oasiskv_fetch_wait(oasiskv_fetch* fetch);
OASISKV_API int oasiskv_fetch_cancel(oasiskv_fetch* fetch);
/* Cancels if it is still running; after it nothing writes to the buffers. */
OASISKV_API void oasiskv_fetch_free(oasiskv_fetch* fetch);

/* --- Working set ------------------------------------------------------------------------------ */

typedef struct oasiskv_source oasiskv_source;
typedef struct oasiskv_working_set oasiskv_working_set;
enum { OASISKV_HOST_CACHE_AUTO = 0, OASISKV_HOST_CACHE_ALWAYS = 1, OASISKV_HOST_CACHE_NEVER = 2 };
enum { OASISKV_MODE_CAPPED = 0, OASISKV_MODE_EXACT = 1 };
enum { OASISKV_LATE_WAIT = 0, OASISKV_LATE_SKIP = 1 };
enum { OASISKV_LOSS_FAIL = 0, OASISKV_LOSS_DEGRADE = 1 };
/* The element type of a working set's key summaries. FLOAT8 is E4M3, rounded outward; head_dim must
 * then be a multiple of 16 (oasiskv/selection.h says what it costs). */
enum { OASISKV_SUMMARIES_AS_KEYS = 0, OASISKV_SUMMARIES_FLOAT8 = 1 };

typedef struct oasiskv_source_options {
  size_t struct_size;
  uint32_t host_cache;
  uint64_t host_cache_bytes; /* 0: 4 GiB */
} oasiskv_source_options;

typedef struct oasiskv_source_stats {
  size_t struct_size;
  uint64_t remote_bytes, remote_entries, host_hits, host_bytes, written_back;
} oasiskv_source_stats;

/* Joins readers (shards) into the heads of one decode rank, in order. The source keeps what the
 * readers are attached to: the reader handles may be freed afterwards. */
OASISKV_API int oasiskv_source_make(oasiskv_reader* const* readers, size_t count,
                                    const oasiskv_source_options* options, oasiskv_source** out);
OASISKV_API void oasiskv_source_free(oasiskv_source* source);
OASISKV_API int oasiskv_source_stats_get(oasiskv_source* source, oasiskv_source_stats* out);

typedef struct oasiskv_working_set_options {
  size_t struct_size;
  const oasiskv_geometry* geometry; /* of the decode rank */
  uint32_t query_heads;
  uint32_t resident_blocks; /* 0: 128 */
  double fetch_ratio;       /* 0: 0.05; negative: a cap of 0 */
  uint32_t mode, combine, late, loss;
  uint64_t late_deadline_ms;         /* 0: 5,000 */
  uint32_t max_requests;             /* 0: 1 */
  uint32_t max_blocks;               /* 0: 8,192 */
  double bound_weight;               /* 0: 1.0; negative: a weight of 0 */
  uint32_t summaries, ranked_blocks; /* ranked_blocks 0: resident_blocks */
} oasiskv_working_set_options;

typedef struct oasiskv_working_set_stats {
  size_t struct_size;
  uint64_t steps, predicted, hit, admitted, promoted, refused_by_cap, late, skipped, degraded,
      demanded;
  uint64_t bytes_moved, bytes_used, admission_bytes, agreement_samples;
  double agreement_sum;
} oasiskv_working_set_stats;

typedef struct oasiskv_resident_view {
  size_t struct_size;
  const void* pages;  /* [head][K + 1][entry]; page K is the local block */
  const int32_t* map; /* [head][K] -> logical block, -1 empty */
  uint32_t local_tokens;
  uint32_t local_block;
} oasiskv_resident_view;

OASISKV_API int oasiskv_working_set_create(const oasiskv_working_set_options* options,
                                           oasiskv_working_set** out);
OASISKV_API void oasiskv_working_set_free(oasiskv_working_set* ws);
OASISKV_API int oasiskv_working_set_admit(oasiskv_working_set* ws, oasiskv_source* source,
                                          uint32_t* slot);
OASISKV_API int oasiskv_working_set_leave(oasiskv_working_set* ws, uint32_t slot);
/* [row][head][head_dim], element type of the geometry; values NULL for latent packing. */
OASISKV_API int oasiskv_working_set_append(oasiskv_working_set* ws, uint32_t layer,
                                           const uint32_t* slots, size_t rows, const void* keys,
                                           const void* values);
/* float32 [row][query_head][head_dim]. */
OASISKV_API int oasiskv_working_set_submit(oasiskv_working_set* ws, uint32_t layer,
                                           const uint32_t* slots, size_t rows,
                                           const float* queries);
/* int32 [row][head][k], -1 for padding. */
OASISKV_API int oasiskv_working_set_submit_topk(oasiskv_working_set* ws, uint32_t layer,
                                                const uint32_t* slots, size_t rows,
                                                const int32_t* topk, uint32_t k);
OASISKV_API int oasiskv_working_set_attention_done(oasiskv_working_set* ws, uint32_t layer,
                                                   const uint32_t* slots, size_t rows);
OASISKV_API int oasiskv_working_set_wait(oasiskv_working_set* ws, uint32_t layer,
                                         const uint32_t* slots, size_t rows);
OASISKV_API int oasiskv_working_set_resolve(oasiskv_working_set* ws, uint32_t layer,
                                            const uint32_t* slots, size_t rows,
                                            const float* queries);
OASISKV_API int oasiskv_working_set_sample_agreement(oasiskv_working_set* ws, uint32_t layer,
                                                     const uint32_t* slots, size_t rows,
                                                     const float* queries);
OASISKV_API int oasiskv_working_set_view(oasiskv_working_set* ws, uint32_t layer, uint32_t slot,
                                         oasiskv_resident_view* out);
OASISKV_API int oasiskv_working_set_fetch_cap(oasiskv_working_set* ws, uint32_t* out);
OASISKV_API int oasiskv_working_set_stats_get(oasiskv_working_set* ws,
                                              oasiskv_working_set_stats* out);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* OASISKV_OASISKV_H_ */
