// ib_read_bw as the ceiling of fetches over verbs.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/ceiling.h"
#include "tools/bench/child_process.h"

namespace oasiskv::bench {
namespace {

// Another than perftest's own (18515), so as to keep clear of a run beside this one.
constexpr int kPort = 18615;
// As many as a verbs connection of the client has.
constexpr uint32_t kQueuePairs = 4;
constexpr int kAttempts = 2;

// The average column, MiB/s, of the line that begins with the size:
// #bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps]
absl::StatusOr<double> AverageMegabytes(const std::string& output, uint64_t bytes) {
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    double rate = 0;
    if (fields.size() >= 4 && fields[0] == absl::StrCat(bytes) &&
        absl::SimpleAtod(fields[3], &rate)) {
      return rate;
    }
  }
  return MakeError(ErrorCode::kInternal,
                   absl::StrCat("ib_read_bw printed no line of ", bytes, " bytes:\n", output));
}

}  // namespace

absl::StatusOr<double> VerbsCeiling::Round(double seconds) {
  // As long a run as fills the time, by what the last one did; the first is short.
  const double per_second = rate_ * (1 << 20) / static_cast<double>(bytes_);
  const auto iterations = std::max<uint64_t>(
      5, static_cast<uint64_t>(per_second * seconds) / std::min(kQueuePairs, outstanding_));
  const Duration limit =
      patience_ + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(4 * seconds));
  // perftest has little patience with a device that drops packets and gives up then; or, where the
  // device takes its seven repetitions for "for ever", none at all and hangs.
  absl::StatusOr<double> rate;
  for (int attempt = 0; attempt < kAttempts && !rate.ok(); ++attempt) {
    rate = RunOnce(rate_ == 0 ? 20 : iterations, limit);
    if (ErrorCodeOf(rate.status()) == ErrorCode::kNotFound) break;
  }
  if (!rate.ok()) return rate.status();
  rate_ = *rate;
  return rate_ * (1 << 20) / 1e9;
}

absl::StatusOr<double> VerbsCeiling::RunOnce(uint64_t iterations, Duration limit) {
  const uint32_t pairs = std::min(kQueuePairs, outstanding_);
  const uint32_t depth = std::max(1u, outstanding_ / pairs);
  std::vector<std::string> common = {"-F",
                                     "-p",
                                     absl::StrCat(kPort),
                                     "-s",
                                     absl::StrCat(bytes_),
                                     "-q",
                                     absl::StrCat(pairs),
                                     "-t",
                                     absl::StrCat(depth),
                                     "-o",
                                     absl::StrCat(std::min(depth, 16u)),
                                     "-n",
                                     absl::StrCat(iterations)};
  if (port_.port != 0) common.insert(common.end(), {"-i", absl::StrCat(port_.port)});
  if (port_.gid_index >= 0) common.insert(common.end(), {"-x", absl::StrCat(port_.gid_index)});
  const auto side = [&](const std::string& device) {
    std::vector<std::string> args = {"ib_read_bw"};
    if (!device.empty()) args.insert(args.end(), {"-d", device});
    args.insert(args.end(), common.begin(), common.end());
    return args;
  };
  std::vector<std::string> args = side(port_.client_device);
  args.push_back("127.0.0.1");
  command_ = absl::StrJoin(args, " ");
  OASISKV_ASSIGN_OR_RETURN(ChildProcess server,
                           ChildProcess::Start(side(port_.daemon_device), {}, ""));
  const MonotonicTime deadline = Clock::Real().Now() + limit;
  absl::Status last;
  do {  // until the server listens; a client that comes too early ends at once
    OASISKV_ASSIGN_OR_RETURN(ChildProcess client, ChildProcess::Start(args, {}, ""));
    absl::StatusOr<std::string> output = client.ReadAll(deadline - Clock::Real().Now());
    if (output.ok()) return AverageMegabytes(*output, bytes_);
    last = output.status();
    if (ErrorCodeOf(last) == ErrorCode::kDeadlineExceeded) {
      return MakeError(ErrorCode::kDeadlineExceeded,
                       absl::StrCat("'", command_, "' did not end within ",
                                    std::chrono::duration_cast<std::chrono::seconds>(limit).count(),
                                    " s and was killed; --ceiling=false measures without it"));
    }
    std::this_thread::sleep_for(Millis(50));
  } while (server.Running() && Clock::Real().Now() < deadline);
  return Annotate(last, command_);
}

}  // namespace oasiskv::bench
