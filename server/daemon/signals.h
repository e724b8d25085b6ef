// SIGTERM and SIGINT as something main can wait for.
#pragma once

namespace oasiskv::server {

// Thread contract: all are called from the main thread; Install first, before any other thread is
// started, since threads inherit what it blocks.

// From now on the first SIGTERM or SIGINT ends the process at once with 0, for nothing has begun
// that needs an end; a broken pipe is an error of the write, never a signal.
void InstallSignals();
// From now on the first signal is what WaitForStop waits for, and the second ends the process at
// once with 1.
void BeginServing();
// Returns the number of the first signal.
int WaitForStop();

}  // namespace oasiskv::server
