// oasiskvd: the daemon's process. Exit codes: 0 stopped on a signal, 1 could not start or was ended
// by a second signal, 2 a flag is wrong.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/byte_size.h"
#include "common/log.h"
#include "common/version.h"
#include "server/daemon/daemon.h"
#include "server/daemon/ready_file.h"
#include "server/daemon/signals.h"
#include "server/options/options.h"

namespace oasiskv::server {
namespace {

int Fail(int code, const absl::Status& status) {
  std::fprintf(stderr, "oasiskvd: %s\n", std::string(status.message()).c_str());
  return code;
}

void LogServing(const Daemon& daemon, const Options& options) {
  const BoundAddresses& bound = daemon.bound();
  std::string line =
      absl::StrCat("oasiskvd ", Version(), " serves: control ", bound.control_address, ", metrics ",
                   bound.metrics_address.empty() ? "off" : bound.metrics_address);
  for (const fabric::EndpointInfo& info : bound.endpoints) {
    absl::StrAppend(&line, ", ", info.fabric, " ", info.address);
  }
  LogInfo("daemon",
          absl::StrCat(line, ", pool ", AbslUnparseFlag(ByteSize{options.core.pool_bytes}),
                       ", incarnation ", daemon.incarnation()));
}

int Run(const Options& options) {
  SetLogLevel(options.log_level);
  InstallSignals();
  ReadyFile::RemoveStale(options.ready_file);
  auto daemon = Daemon::Listen(options);
  if (!daemon.ok()) return Fail(1, daemon.status());
  if (const absl::Status status = (*daemon)->Serve(); !status.ok()) return Fail(1, status);
  BeginServing();
  auto ready = ReadyFile::Write(options.ready_file, **daemon);
  if (!ready.ok()) return Fail(1, ready.status());
  LogServing(**daemon, options);

  const int signal = WaitForStop();
  LogInfo("daemon", absl::StrCat("signal ", signal, ": draining for at most ",
                                 absl::FormatDuration(absl::FromChrono(options.drain_timeout))));
  (*daemon)->BeginDrain();
  if (!(*daemon)->WaitDrained(options.drain_timeout)) {
    const CapacityInfo info = (*daemon)->core()->Capacity();
    LogWarning("daemon", absl::StrCat("stopping with ", info.grants_reader + info.grants_writer,
                                      " grants that were not given back and ",
                                      info.sequences_open + info.sequences_sealed,
                                      " sequences that were not released"));
  }
  return 0;
}

int Main(int argc, char** argv) {
  const auto line = ParseCommandLine(std::vector<std::string>(argv + 1, argv + argc));
  if (!line.ok()) return Fail(2, line.status());
  if (line->action != Action::kServe) {
    std::fputs(line->text.c_str(), stdout);
    return 0;
  }
  return Run(line->options);
}

}  // namespace
}  // namespace oasiskv::server

int main(int argc, char** argv) { return oasiskv::server::Main(argc, argv); }
