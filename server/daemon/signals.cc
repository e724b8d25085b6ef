#include "server/daemon/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "common/log.h"
#include "common/mutex.h"

namespace oasiskv::server {
namespace {

struct State {
  Mutex mutex;
  CondVar changed;
  bool serving ABSL_GUARDED_BY(mutex) = false;
  int first ABSL_GUARDED_BY(mutex) = 0;
};

// Never destroyed: the thread that waits for signals outlives main.
State& GetState() {
  static State* const kState = new State;
  return *kState;
}

sigset_t HandledSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  return set;
}

void Run() {
  State& state = GetState();
  const sigset_t set = HandledSignals();
  for (;;) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    if (signal == SIGHUP) {
      // Its default would end the daemon, and with it all KV, when a terminal is closed.
      LogInfo("daemon", "SIGHUP: nothing can be reloaded without a restart yet; it goes on");
      continue;
    }
    MutexLock lock(state.mutex);
    if (!state.serving) {
      LogInfo("daemon", "stopped while starting");
      ::_exit(0);
    }
    if (state.first != 0) {
      LogWarning("daemon", "a second signal: ending at once");
      ::_exit(1);
    }
    state.first = signal;
    state.changed.NotifyAll();
  }
}

}  // namespace

void InstallSignals() {
  ::signal(SIGPIPE, SIG_IGN);
  const sigset_t set = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread(Run).detach();
}

void BeginServing() {
  State& state = GetState();
  MutexLock lock(state.mutex);
  state.serving = true;
}

int WaitForStop() {
  State& state = GetState();
  MutexLock lock(state.mutex);
  while (state.first == 0) state.changed.Wait(state.mutex);
  return state.first;
}

}  // namespace oasiskv::server
