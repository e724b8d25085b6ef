// A daemon's endpoint on rxe1 in this process and connections to it from rxe0; other processes.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/fabric/verbs/port.h"
#include "common/pause_point.h"
#include "tests/fabric/verbs_pool.h"
#include "tests/integration/eventually.h"

namespace oasiskv::fabric::verbs {

inline MonotonicTime In(int64_t millis) { return Clock::Real().Now() + Millis(millis); }
inline MonotonicTime Soon() { return In(120'000); }

// Devices and processors are emulated.
template <typename Condition>
bool Eventually(Condition condition) {
  return ::oasiskv::testing::Eventually(condition, std::chrono::seconds(60));
}

inline bool HaveDevices() {
  const std::string seen = DevicesSeen();
  return seen.find("rxe0 (port 1 active") != std::string::npos &&
         seen.find("rxe1 (port 1 active") != std::string::npos;
}

#define OASISKV_NEED_RXE()                                                             \
  if (!HaveDevices()) {                                                                \
    GTEST_SKIP() << "needs the soft-RoCE devices rxe0 and rxe1; run the test through " \
                    "tests/fabric/in-rdma-guest";                                      \
  }

// Drops what comes back to rxe0 over the cable: a daemon that says nothing more.
class Silence {
 public:
  Silence() { EXPECT_EQ(std::system("ip rule add pref 50 iif rdma0 blackhole"), 0); }
  ~Silence() { EXPECT_EQ(std::system("ip rule del pref 50"), 0); }
};

// Another process, killed with this object; see verbs_peer.cc.
class PeerProcess {
 public:
  PeerProcess(const std::string& role, const TestPool& pool) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = UniqueFd(ends[0]);
    const UniqueFd theirs(ends[1]);
    std::string self(4096, '\0');
    self.resize(static_cast<size_t>(::readlink("/proc/self/exe", self.data(), self.size())));
    const std::string program = self.substr(0, self.rfind('/')) + "/verbs_peer";
    // First to numbers that none of those wanted has, lest one overwrite another.
    const int from[] = {theirs.get(), pool.fd(0), pool.fd(1), pool.fd(2)};
    pid_ = ::fork();
    if (pid_ == 0) {
      int moved[4];
      for (int i = 0; i < 4; ++i) moved[i] = ::fcntl(from[i], F_DUPFD, 100);
      for (int i = 0; i < 4; ++i) ::dup2(moved[i], 3 + i);
      for (int i = 0; i < 4; ++i) ::close(moved[i]);
      ::execl(program.c_str(), program.c_str(), role.c_str(), nullptr);
      ::_exit(127);
    }
  }
  ~PeerProcess() {
    Signal(SIGKILL);
    Reap();
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  void Signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
  }
  void Reap() {
    if (pid_ > 0) ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  int socket() const { return socket_.get(); }

 private:
  pid_t pid_ = -1;
  UniqueFd socket_;
};

class VerbsTest : public ::testing::Test {
 protected:
  void Serve(Duration probe_interval = std::chrono::seconds(5)) {
    auto endpoint = ServeVerbs({.port = {.device = "rxe1"}, .probe_interval = probe_interval},
                               pool_.Export(), authority_);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    endpoint_ = *std::move(endpoint);
    control_ = std::make_shared<DirectControl>(*endpoint_);
  }
  static VerbsConnectOptions Options(Access access) {
    VerbsConnectOptions options;
    options.port.device = "rxe0";
    options.incarnation = kIncarnation;
    options.access = access;
    // The devices are emulated: what takes microseconds elsewhere takes a tenth of a second.
    options.drain_patience = std::chrono::seconds(5);
    options.peer_patience = std::chrono::seconds(3);
    return options;
  }
  std::unique_ptr<Connection> Connect(const VerbsConnectOptions& options,
                                      std::shared_ptr<ControlPlane> control) {
    auto connection = ConnectVerbs(options, std::move(control));
    EXPECT_TRUE(connection.ok()) << connection.status();
    return connection.ok() ? *std::move(connection) : nullptr;
  }
  std::unique_ptr<Connection> Connect(Access access) { return Connect(Options(access), control_); }
  static std::unique_ptr<BufferRegistration> Register(Connection& connection,
                                                      std::vector<std::byte>& memory) {
    auto registration = connection.RegisterBuffer(memory);
    EXPECT_TRUE(registration.ok()) << registration.status();
    return *std::move(registration);
  }
  void TearDown() override { EXPECT_EQ(PausePoints::Waiting(), 0); }

  TestPool pool_;
  RecordingAuthority authority_;
  std::unique_ptr<Endpoint> endpoint_;
  std::shared_ptr<ControlPlane> control_;
};

}  // namespace oasiskv::fabric::verbs
