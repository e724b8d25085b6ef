// Fetches entries of 8 KiB over verbs, for callgrind to count what each costs (see
// count-instructions): verbs_count ENTRIES BATCH. Daemon and client are both in this process; the
// daemon's half does nothing while its device is read.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/fabric/verbs_pool.h"

namespace oasiskv::fabric::verbs {
namespace {

constexpr uint32_t kEntryBytes = 8192;
constexpr uint32_t kPlaces = 4096;  // in the buffer, taken in turn
constexpr uint32_t kEntriesOfAFrame = static_cast<uint32_t>(kFrameBytes) / kEntryBytes;

absl::Status Fetch(uint32_t entries, uint32_t batch) {
  TestPool pool;
  RecordingAuthority authority;
  auto endpoint = ServeVerbs({.port = {.device = "rxe1"}}, pool.Export(), authority);
  if (!endpoint.ok()) return endpoint.status();
  VerbsConnectOptions options;
  options.port.device = "rxe0";
  options.incarnation = kIncarnation;
  options.peer_patience = std::chrono::seconds(20);  // everything is slow here
  auto connection = ConnectVerbs(options, std::make_shared<DirectControl>(**endpoint));
  if (!connection.ok()) return connection.status();
  std::vector<std::byte> buffer(uint64_t{kPlaces} * kEntryBytes);
  auto registration = (*connection)->RegisterBuffer(buffer);
  if (!registration.ok()) return registration.status();
  const auto grant = pool.Grant(1, Access::kRead);
  // Made beforehand, as a working set's list of misses is. No two that follow each other are
  // neighbours on either side.
  std::vector<ReadPiece> pieces(batch);
  for (uint32_t i = 0; i < batch; ++i) {
    const uint32_t place = i * 5 % kPlaces;
    pieces[i] = {{i * 7 % kFrames, i * 3 % kEntriesOfAFrame * kEntryBytes, kEntryBytes},
                 buffer.data() + uint64_t{place} * kEntryBytes};
  }
  for (uint32_t done = 0; done < entries; done += batch) {
    const MonotonicTime deadline = Clock::Real().Now() + std::chrono::seconds(300);
    absl::Status status = (*connection)->Read(grant, pieces, deadline)->Wait();
    if (!status.ok()) return status;
  }
  const ConnectionStats stats = (*connection)->Stats();
  std::printf("entries=%llu requests=%llu direct=%llu\n",
              static_cast<unsigned long long>(stats.pieces),
              static_cast<unsigned long long>(stats.requests),
              static_cast<unsigned long long>(stats.bytes_direct / kEntryBytes));
  return absl::OkStatus();
}

}  // namespace
}  // namespace oasiskv::fabric::verbs

int main(int argc, char** argv) {
  const long entries = argc == 3 ? std::atol(argv[1]) : 0;
  const long batch = argc == 3 ? std::atol(argv[2]) : 0;
  if (batch <= 0 || entries <= 0 || entries % batch != 0) {
    std::fprintf(stderr, "usage: verbs_count ENTRIES BATCH, a multiple of the other\n");
    return 2;
  }
  const absl::Status status =
      oasiskv::fabric::verbs::Fetch(static_cast<uint32_t>(entries), static_cast<uint32_t>(batch));
  if (!status.ok()) std::fprintf(stderr, "verbs_count: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
