// The other process of the verbs tests: a daemon, a client that is killed, or a daemon without the
// right to lock memory. Usage: verbs_peer daemon|client|memlock; descriptors 3: control socket, 4,
// 5: arenas, 6: grant words.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fabric/verbs_pool.h"

namespace oasiskv::fabric::verbs {
namespace {

constexpr int kSocket = 3;

std::vector<UniqueFd> Descriptors() {
  std::vector<UniqueFd> fds;
  for (int fd = 4; fd < 4 + static_cast<int>(kArenas) + 1; ++fd) fds.push_back(UniqueFd(fd));
  return fds;
}

int Fail(const absl::Status& status) {
  SendPacket(kSocket, Operation::kError, status.message());
  return 1;
}

int RunDaemon() {
  const TestPool pool(Descriptors());
  RecordingAuthority authority;
  auto endpoint = ServeVerbs({.port = {.device = "rxe1"}}, pool.Export(), authority);
  if (!endpoint.ok()) return Fail(endpoint.status());
  SendPacket(kSocket, Operation::kReady, "");
  while (true) {
    const std::string packet = ReceivePacket(kSocket);
    if (packet.empty()) return 0;
    const std::string bytes = packet.substr(1);
    if (packet[0] == static_cast<char>(Operation::kClose)) {
      uint64_t id = 0;
      std::memcpy(&id, bytes.data(), sizeof(id));
      (*endpoint)->Close(ConnectionId(id));
      continue;
    }
    const auto answer = (*endpoint)->Accept(bytes);
    if (!answer.ok()) return Fail(answer.status());
    SendPacket(kSocket, Operation::kAccept, *answer);
  }
}

// Connects to the daemon at the other end, says so, and reads until it is killed.
int RunClient() {
  TestPool pool(Descriptors());
  auto connection = ConnectVerbs({.port = {.device = "rxe0"}, .incarnation = kIncarnation},
                                 std::make_shared<SocketControl>(kSocket));
  if (!connection.ok()) return Fail(connection.status());
  const auto grant = pool.Grant(1, Access::kRead);
  std::vector<std::byte> bytes(kFrameBytes);
  const std::vector<ReadPiece> pieces = {{{0, 0, kFrameBytes}, bytes.data()}};
  SendPacket(kSocket, Operation::kReady, "");
  while (true) {
    const absl::Status status =
        (*connection)->Read(grant, pieces, Clock::Real().Now() + std::chrono::seconds(60))->Wait();
    if (!status.ok()) return Fail(status);
  }
}

int RunWithoutMemlock() {
  const TestPool pool(Descriptors());
  const rlimit little = {64 << 10, 64 << 10};
  if (::setrlimit(RLIMIT_MEMLOCK, &little) != 0 || ::setresuid(65534, 65534, 65534) != 0) return 2;
  RecordingAuthority authority;
  auto endpoint = ServeVerbs({.port = {.device = "rxe1"}}, pool.Export(), authority);
  if (!endpoint.ok()) return Fail(endpoint.status());
  SendPacket(kSocket, Operation::kReady, "");
  return 0;
}

}  // namespace
}  // namespace oasiskv::fabric::verbs

int main(int argc, char** argv) {
  const std::string role = argc == 2 ? argv[1] : "";
  if (role == "daemon") return oasiskv::fabric::verbs::RunDaemon();
  if (role == "client") return oasiskv::fabric::verbs::RunClient();
  if (role == "memlock") return oasiskv::fabric::verbs::RunWithoutMemlock();
  std::fprintf(stderr, "usage: verbs_peer daemon|client|memlock\n");
  return 2;
}
