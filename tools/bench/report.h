// What a run prints: one JSON object per line, or a table for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/samples.h"

namespace oasiskv::bench {

enum class Format { kTable, kJson };
Format FormatFromFlag();  // --json

// One point of `fetch`. Rates in GB/s (1e9) of useful bytes; times per batch in microseconds.
struct FetchRow {
  std::string fabric;
  uint64_t entry_bytes = 0;
  uint32_t batch = 0, depth = 0;
  uint64_t entries = 0;  // fetched while timed
  uint64_t bytes_verified = 0;
  Spread gbps;     // over rounds
  Spread ceiling;  // of the same rounds; 0: not measured
  std::string ceiling_name;
  std::optional<double> am_ceiling;  // ucx: UCX's own active messages
  double p50_us = 0, p99_us = 0, p999_us = 0;
  double prepare_us = 0, post_us = 0, wire_us = 0;  // means
  double cpu_client_s_per_gib = 0;
  // Absent: the daemon is not ours.
  std::optional<double> cpu_server_s_per_gib;
  // verbs: of the bytes, the part that landed in registered buffers.
  std::optional<double> direct_share;
  double request_bytes_per_entry = 0;
  double requests_per_entry = 0;  // below 1 where entries were coalesced
};

// One point of `attach`; times in microseconds.
struct AttachRow {
  std::string fabric;
  uint32_t frames = 0;
  uint64_t attaches = 0;
  double p50_us = 0, p99_us = 0, p999_us = 0;
};

// One setting of `put`.
struct PutRow {
  std::string fabric;
  std::string clear_frames;  // of the daemon
  uint32_t tenants = 0;      // that put in turn
  uint64_t sequence_bytes = 0;
  Spread gbps;  // of entries, over rounds
  double open_p50_us = 0, open_p99_us = 0;
};

void Print(const std::vector<FetchRow>& rows, Format format);
void Print(const std::vector<AttachRow>& rows, Format format);
void Print(const std::vector<PutRow>& rows, Format format);

}  // namespace oasiskv::bench
