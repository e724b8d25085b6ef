// Lets main wait for SIGTERM and SIGINT.
#pragma once

namespace oasiskv::server {

// Thread contract: all are called from the main thread, InstallSignals before any other thread is
// started, since threads inherit the signals that it blocks.

// From now on the first SIGTERM or SIGINT ends the process at once with exit code 0, since nothing
// has started yet that must be stopped. A broken pipe is an error of the write, never a signal.
// SIGHUP is logged and changes nothing.
void InstallSignals();
// From now on WaitForStop waits for the first signal, and the second ends the process at once with
// exit code 1.
void BeginServing();
// Returns the number of the first signal.
int WaitForStop();

}  // namespace oasiskv::server
