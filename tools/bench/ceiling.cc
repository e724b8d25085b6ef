#include "tools/bench/ceiling.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/child_process.h"

namespace oasiskv::bench {
namespace {

// ucx_perftest picks one fixed port; another than its default (13337) keeps clear of a run beside
// this one.
constexpr int kPort = 13437;

// The overall MB/s (2^20) column of perftest's "Final:" line:
// Final: iterations, typical lat, avg lat, overall lat, avg MB/s, overall MB/s, avg msg/s, overall
// msg/s.
absl::StatusOr<double> FinalMegabytes(const std::string& output) {
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    if (!absl::StartsWith(line, "Final:")) continue;
    std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    double rate = 0;
    if (fields.size() >= 7 && absl::SimpleAtod(fields[6], &rate)) return rate;
  }
  return MakeError(ErrorCode::kInternal,
                   absl::StrCat("ucx_perftest printed no Final line:\n", output));
}

// For a run that was made for a second or a few, on devices that may be emulated.
constexpr Duration kPatience = std::chrono::seconds(60);

std::vector<std::string> EnvironmentFor(const UcxRoute& route, const std::string& devices) {
  std::vector<std::string> out = {"UCX_TLS=" + route.transports, "UCX_WARN_UNUSED_ENV_VARS=n"};
  if (!devices.empty()) out.push_back("UCX_NET_DEVICES=" + devices);
  return out;
}

absl::StatusOr<double> RunOnce(const UcxRoute& route, const std::string& test, uint64_t bytes,
                               uint32_t outstanding, uint64_t iterations, std::string& command) {
  const std::string port = absl::StrCat(kPort);
  OASISKV_ASSIGN_OR_RETURN(ChildProcess server,
                           ChildProcess::Start({"ucx_perftest", "-p", port},
                                               EnvironmentFor(route, route.daemon_devices), ""));
  const std::vector<std::string> environment = EnvironmentFor(route, route.client_devices);
  const std::vector<std::string> args = {"ucx_perftest", "127.0.0.1",
                                         "-p",           port,
                                         "-t",           test,
                                         "-s",           absl::StrCat(bytes),
                                         "-O",           absl::StrCat(outstanding),
                                         "-n",           absl::StrCat(iterations),
                                         "-w",           absl::StrCat(iterations / 10 + 1)};
  command = absl::StrCat("UCX_TLS=", route.transports, " ", absl::StrJoin(args, " "));
  absl::Status last;
  for (int attempt = 0; attempt < 50; ++attempt) {  // until the server listens
    OASISKV_ASSIGN_OR_RETURN(ChildProcess client, ChildProcess::Start(args, environment, ""));
    absl::StatusOr<std::string> output = client.ReadAll(kPatience);
    if (output.ok()) return FinalMegabytes(*output);
    last = output.status();
    if (!server.Running()) break;
    std::this_thread::sleep_for(Millis(20));
  }
  return Annotate(last, command);
}

}  // namespace

double TimeMemcpy(std::span<const CopyPiece> pieces, size_t bytes_each) {
  const auto start = std::chrono::steady_clock::now();
  for (const CopyPiece& piece : pieces) std::memcpy(piece.into, piece.from, bytes_each);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

UcxRoute UcxRouteOf(const std::string& description) {
  UcxRoute out;
  const size_t at = description.find(", ucx ");
  if (at == std::string::npos) return out;
  const std::vector<std::string> parts =
      absl::StrSplit(description.substr(at + 1), absl::MaxSplits(", ", 1));
  // "rc_verbs/rxe0:1": UCX knows the family by the first word, and takes care of what it needs to
  // connect.
  const std::string lane = parts.back().substr(0, parts.back().find('/'));
  if (absl::StrContains(lane, '_')) out.transports = lane.substr(0, lane.find('_'));
  return out;
}

absl::StatusOr<UcxCeiling> MeasureUcx(const UcxRoute& route, const std::string& test,
                                      uint64_t bytes, uint32_t outstanding, double seconds) {
  UcxCeiling ceiling;
  // A short run tells how many gets fill the time.
  const uint64_t few = route.rdma() ? 200 : 2000;
  OASISKV_ASSIGN_OR_RETURN(double probe,
                           RunOnce(route, test, bytes, outstanding, few, ceiling.command));
  const double per_second = std::max(100.0, probe * (1 << 20) / static_cast<double>(bytes));
  const auto iterations = static_cast<uint64_t>(per_second * seconds) + few / 2;
  OASISKV_ASSIGN_OR_RETURN(double rate,
                           RunOnce(route, test, bytes, outstanding, iterations, ceiling.command));
  ceiling.gbps = rate * (1 << 20) / 1e9;
  return ceiling;
}

}  // namespace oasiskv::bench
