// What a client of the shm fabric gets, and what happens when a peer misbehaves or stops.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "common/fabric/shm/memory_socket.h"
#include "common/fabric/shm/protocol.h"
#include "tests/unit/fabric/shm_fixture.h"

namespace oasiskv::fabric::shm {
namespace {

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}

// A client that can send anything.
class RawClient {
 public:
  explicit RawClient(const std::string& path) : socket_(*ConnectTo(path, Soon())) {}

  int fd() const { return socket_.get(); }
  template <typename T>
  bool Send(const T& message) {
    return SendMessage(fd(), BytesOf(message), {});
  }
  struct Answer {
    Welcome welcome;
    std::vector<UniqueFd> descriptors;
    bool ended = false;  // the daemon closed without a word
  };
  Answer Receive() {
    std::vector<std::byte> buffer(4096);
    auto message = ReceiveMessage(fd(), buffer, Soon());
    Answer answer;
    if (!message.ok() || message->bytes < sizeof(Welcome)) {
      answer.ended = true;
      return answer;
    }
    std::memcpy(&answer.welcome, buffer.data(), sizeof(Welcome));
    answer.descriptors = std::move(message->descriptors);
    return answer;
  }
  Answer Greet(Access access) {
    Hello hello;
    hello.access = static_cast<uint32_t>(access);
    Send(hello);
    return Receive();
  }

 private:
  UniqueFd socket_;
};

using ShmPeers = ShmTest;

bool MapsForWriting(int fd) {
  void* at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    EXPECT_EQ(errno, EACCES);
    return false;
  }
  ::munmap(at, 4096);
  return true;
}

TEST_F(ShmPeers, ReadersGetDescriptorsThatTheKernelWillNotMapForWriting) {
  Serve();
  RawClient reader(folder_.path());
  const auto answer = reader.Greet(Access::kRead);
  ASSERT_FALSE(answer.ended);
  EXPECT_EQ(answer.welcome.error, 0u);
  EXPECT_EQ(answer.welcome.incarnation, kIncarnation);
  ASSERT_EQ(answer.descriptors.size(), kArenas + 1);
  for (const UniqueFd& fd : answer.descriptors) {
    EXPECT_FALSE(MapsForWriting(fd.get()));
    auto mapping = Mapping::Map(fd.get(), 4096, Protection::kReadOnly);
    ASSERT_TRUE(mapping.ok());
    EXPECT_NE(::mprotect(mapping->data(), 4096, PROT_READ | PROT_WRITE), 0);
  }
}

TEST_F(ShmPeers, WritersGetArenasToWriteButNeverTheGrantWords) {
  Serve();
  RawClient writer(folder_.path());
  const auto answer = writer.Greet(Access::kWrite);
  ASSERT_EQ(answer.descriptors.size(), kArenas + 1);
  EXPECT_TRUE(MapsForWriting(answer.descriptors[0].get()));
  EXPECT_TRUE(MapsForWriting(answer.descriptors[1].get()));
  EXPECT_FALSE(MapsForWriting(answer.descriptors[2].get()));
}

TEST_F(ShmPeers, ConnectionsAreCountedAndTheirEndIsReported) {
  Serve();
  auto reader = Connect(Access::kRead);
  auto writer = Connect(Access::kWrite);
  const ConnectionId id = writer->connection_id();
  EXPECT_NE(id, reader->connection_id());
  EXPECT_NE(id, ConnectionId(0));
  EXPECT_TRUE(writer->Health().ok());
  EXPECT_EQ(server_->Stats().connections, 2u);
  EXPECT_EQ(server_->address(), folder_.path());
  EXPECT_NE(writer->Describe().find("2 arenas"), std::string::npos);
  EXPECT_TRUE(authority_.closed().empty());
  writer.reset();
  EXPECT_TRUE(Eventually([&] { return authority_.closed().size() == 1; }));
  EXPECT_EQ(authority_.closed()[0], id);
  EXPECT_EQ(server_->Stats().connections, 1u);
  EXPECT_EQ(server_->Stats().connections_total, 2u);
}

TEST_F(ShmPeers, AnotherIncarnationIsStale) {
  Serve();
  auto connection = ConnectShm(folder_.path(), kIncarnation + 1, Access::kRead);
  EXPECT_EQ(ErrorCodeOf(connection.status()), ErrorCode::kStale) << connection.status();
}

TEST_F(ShmPeers, NobodyThereIsPeerLost) {
  auto connection = ConnectShm(folder_.path(), kIncarnation, Access::kRead);
  EXPECT_EQ(ErrorCodeOf(connection.status()), ErrorCode::kPeerLost) << connection.status();
}

TEST_F(ShmPeers, BadHellosAreRefusedWithAReasonAndCounted) {
  Serve();
  struct Long {
    Hello hello;
    uint64_t more = 0;
  };
  Hello magic;
  magic.magic = 0;
  Hello version;
  version.version = kVersion + 1;
  Hello access;
  access.access = 2;
  const uint32_t half = 7;
  auto refused_with = [&](auto message) {
    RawClient client(folder_.path());
    client.Send(message);
    const auto answer = client.Receive();
    EXPECT_FALSE(answer.ended);
    EXPECT_TRUE(answer.descriptors.empty());
    EXPECT_GT(answer.welcome.message_bytes, 0u);
    EXPECT_TRUE(client.Receive().ended);
    return static_cast<ErrorCode>(answer.welcome.error);
  };
  EXPECT_EQ(refused_with(magic), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused_with(version), ErrorCode::kUnsupported);
  EXPECT_EQ(refused_with(access), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused_with(half), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused_with(Long{}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(server_->Stats().connections_refused, 5u);
  EXPECT_EQ(server_->Stats().malformed, 4u);  // a version of the future is well formed
  EXPECT_EQ(server_->Stats().connections, 0u);
  EXPECT_TRUE(authority_.closed().empty());
  EXPECT_NE(Connect(Access::kRead), nullptr);
}

TEST_F(ShmPeers, ASilentPeerIsDroppedAndATalkingOneIsNot) {
  Serve({.hello_timeout = std::chrono::milliseconds(20)});
  auto connection = Connect(Access::kRead);
  RawClient silent(folder_.path());
  EXPECT_TRUE(silent.Receive().ended);
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections_refused == 1; }));
  EXPECT_TRUE(connection->Health().ok());
}

TEST_F(ShmPeers, TooManyConnectionsAreRefusedUntilOneGoes) {
  Serve({.max_connections = 2});
  auto first = Connect(Access::kRead);
  auto second = Connect(Access::kRead);
  auto third = ConnectShm(folder_.path(), kIncarnation, Access::kRead);
  EXPECT_EQ(ErrorCodeOf(third.status()), ErrorCode::kCapacity) << third.status();
  EXPECT_EQ(server_->Stats().connections_refused, 1u);
  first.reset();
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 1; }));
  EXPECT_NE(Connect(Access::kRead), nullptr);
}

// A peer with the arenas mapped that breaks the protocol: it is not served, costs no CPU (nothing
// reads its socket any more), and still counts as connected until it is gone, because its mappings
// are still there.
TEST_F(ShmPeers, GarbageAfterTheHelloIsIgnoredAndTheConnectionCountsUntilItEnds) {
  Serve();
  struct {
    const char* name;
    Access access;
    std::vector<std::byte> message;
  } cases[] = {
      {"garbage", Access::kWrite, std::vector<std::byte>(300, std::byte{0xaa})},
      {"half a fence", Access::kWrite, std::vector<std::byte>(8)},
      {"a fence with another magic", Access::kWrite, std::vector<std::byte>(sizeof(Fence))},
      {"empty", Access::kWrite, {}},
  };
  size_t closed = 0;
  uint64_t malformed = 0;
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    auto client = std::make_unique<RawClient>(folder_.path());
    const auto answer = client->Greet(c.access);
    ASSERT_FALSE(answer.ended);
    EXPECT_TRUE(SendMessage(client->fd(), c.message, {}));
    if (!c.message.empty()) ++malformed;
    EXPECT_TRUE(Eventually([&] { return server_->Stats().malformed == malformed; }));
    // Sending goes on until the socket is full, which shows that nobody reads it.
    int sent = 0;
    while (sent < 100'000 && SendMessage(client->fd(), c.message, {})) ++sent;
    EXPECT_LT(sent, 100'000);
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_EQ(server_->Stats().malformed, malformed);
    EXPECT_EQ(server_->Stats().connections, 1u);
    EXPECT_EQ(authority_.closed().size(), closed);
    // Closing one direction does not end it either.
    ::shutdown(client->fd(), SHUT_WR);
    EXPECT_NE(Connect(Access::kRead), nullptr);
    EXPECT_TRUE(Eventually([&] { return authority_.closed().size() == closed + 1; }));
    EXPECT_EQ(server_->Stats().connections, 1u);
    client.reset();
    closed += 2;
    EXPECT_TRUE(Eventually([&] { return authority_.closed().size() == closed; }));
    EXPECT_EQ(authority_.closed().back(), ConnectionId(answer.welcome.connection));
  }
  EXPECT_TRUE(authority_.fenced().empty());
  EXPECT_EQ(server_->Stats().requests, 0u);
}

TEST_F(ShmPeers, AReaderHasNothingToFence) {
  Serve();
  RawClient reader(folder_.path());
  ASSERT_FALSE(reader.Greet(Access::kRead).ended);
  Fence fence;
  fence.grant = 1;
  reader.Send(fence);
  EXPECT_TRUE(Eventually([&] { return server_->Stats().malformed == 1; }));
  EXPECT_TRUE(authority_.fenced().empty());
}

TEST_F(ShmPeers, PathsAreChecked) {
  ShmOptions options;
  options.socket_path = std::string(200, 'x');
  auto server = ServeShm(options, pool_.Export(), authority_);
  EXPECT_EQ(ErrorCodeOf(server.status()), ErrorCode::kInvalidArgument) << server.status();
  EXPECT_NE(server.status().message().find("200 bytes"), absl::string_view::npos);
  EXPECT_EQ(ErrorCodeOf(ConnectShm(options.socket_path, 1, Access::kRead).status()),
            ErrorCode::kInvalidArgument);

  options.socket_path = folder_.path();
  UniqueFd file(::open(options.socket_path.c_str(), O_CREAT | O_WRONLY, 0600));
  server = ServeShm(options, pool_.Export(), authority_);
  EXPECT_EQ(ErrorCodeOf(server.status()), ErrorCode::kAlreadyExists) << server.status();
  EXPECT_EQ(::access(options.socket_path.c_str(), F_OK), 0)
      << "a file that is not a socket was removed";

  ExportedMemory many = pool_.Export();
  many.arenas.resize(kMaxArenas + 1, many.arenas[0]);
  server = ServeShm(options, many, authority_);
  EXPECT_EQ(ErrorCodeOf(server.status()), ErrorCode::kInvalidArgument) << server.status();
}

TEST_F(ShmPeers, ALiveDaemonKeepsItsSocketADeadOnesIsReplaced) {
  const std::string path = folder_.path();
  {
    UniqueFd dead(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::listen(dead.get(), 1), 0);
  }
  // It is closed now, and its file stays.
  ASSERT_EQ(::access(path.c_str(), F_OK), 0);
  Serve();
  ShmOptions options;
  options.socket_path = path;
  auto second = ServeShm(options, pool_.Export(), authority_);
  EXPECT_EQ(ErrorCodeOf(second.status()), ErrorCode::kAlreadyExists) << second.status();
  EXPECT_NE(Connect(Access::kRead), nullptr);
  struct stat info;
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  server_.reset();
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "the socket file was left behind";
}

TEST_F(ShmPeers, AStoppingDaemonTellsItsClientsAndWaitsForNone) {
  Serve();
  auto reader = Connect(Access::kRead);
  auto writer = Connect(Access::kWrite);
  RawClient half_way(folder_.path());
  auto grant = pool_.Grant(1, Access::kRead);
  std::byte byte;
  const std::vector<ReadPiece> pieces = {{{0, 0, 1}, &byte}};
  EXPECT_TRUE(reader->Read(grant, pieces, Soon())->Wait().ok());
  server_.reset();
  EXPECT_EQ(ErrorCodeOf(reader->Health()), ErrorCode::kPeerLost);
  EXPECT_EQ(ErrorCodeOf(writer->Health()), ErrorCode::kPeerLost);
  EXPECT_EQ(ErrorCodeOf(reader->Read(grant, pieces, Soon())->Wait()), ErrorCode::kPeerLost);
  writer->FenceWriter(GrantId(5));  // there is no daemon to tell; returns
  // Their mappings are still there, so their connections are not reported as closed.
  EXPECT_TRUE(authority_.closed().empty());
  // A daemon of the same place and another incarnation is none of theirs.
  Serve();
  EXPECT_EQ(ErrorCodeOf(reader->Health()), ErrorCode::kPeerLost);
}

}  // namespace
}  // namespace oasiskv::fabric::shm
