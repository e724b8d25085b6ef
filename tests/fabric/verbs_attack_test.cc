// Clients that break the rules: the device refuses them, whatever they believe.
#include <functional>

#include "tests/fabric/verbs_fixture.h"

namespace oasiskv::fabric::verbs {
namespace {

using ::testing::HasSubstr;

// A control plane that claims another access and changes the daemon's answer.
class BentControl : public DirectControl {
 public:
  using Bend = std::function<void(ServerHello&)>;
  BentControl(Endpoint& endpoint, Access claimed, Bend bend)
      : DirectControl(endpoint), claimed_(claimed), bend_(std::move(bend)) {}
  absl::StatusOr<std::string> Accept(const std::string& hello) override {
    ClientHello claimed = *ParseClientHello(hello);
    claimed.access = claimed_;
    auto answer = DirectControl::Accept(Serialize(claimed));
    if (!answer.ok()) return answer;
    ServerHello bent = *ParseServerHello(*answer);
    bend_(bent);
    return Serialize(bent);
  }

 private:
  const Access claimed_;
  const Bend bend_;
};

class VerbsAttack : public VerbsTest {
 protected:
  void SetUp() override {
    OASISKV_NEED_RXE();
    Serve();
  }
  // The keys that a client of that access is given.
  std::vector<RemoteMemory> KeysOf(Access access) {
    std::vector<RemoteMemory> keys;
    auto control = std::make_shared<BentControl>(*endpoint_, access,
                                                 [&](ServerHello& hello) { keys = hello.arenas; });
    Connect(Options(access), control);
    return keys;
  }
  absl::Status WriteAs(Access claimed, const std::vector<RemoteMemory>& keys) {
    auto control = std::make_shared<BentControl>(*endpoint_, claimed,
                                                 [&](ServerHello& hello) { hello.arenas = keys; });
    auto writer = Connect(Options(Access::kWrite), control);
    std::vector<std::byte> source(64, std::byte{0x99});
    const std::vector<WritePiece> pieces = {{{0, 0, 64}, source.data()}};
    return writer->Write(pool_.Grant(1, Access::kWrite), pieces, Soon())->Wait();
  }
  bool Untouched() const { return TestPool::Holds(pool_.frame(0), {0, 0, 4096}); }
};

TEST_F(VerbsAttack, AReadersKeyCannotWrite) {
  const auto reader_keys = KeysOf(Access::kRead);
  const auto writer_keys = KeysOf(Access::kWrite);
  ASSERT_NE(reader_keys[0].key, writer_keys[0].key);
  // On a queue pair that may write, so that it is the key that refuses.
  const absl::Status by_key = WriteAs(Access::kWrite, reader_keys);
  EXPECT_EQ(ErrorCodeOf(by_key), ErrorCode::kPeerLost);
  EXPECT_THAT(std::string(by_key.message()), HasSubstr("remote access error"));
  EXPECT_TRUE(Untouched());
  // With the key that may write, on a reader's queue pair.
  const absl::Status by_pair = WriteAs(Access::kRead, writer_keys);
  EXPECT_EQ(ErrorCodeOf(by_pair), ErrorCode::kPeerLost);
  EXPECT_THAT(std::string(by_pair.message()), HasSubstr("remote "));
  EXPECT_TRUE(Untouched());
  EXPECT_EQ(WriteAs(Access::kWrite, writer_keys), absl::OkStatus());
  EXPECT_FALSE(Untouched());
}

TEST_F(VerbsAttack, ReadsBeyondTheArenaAndWithOtherKeysAreRefused) {
  auto attempt = [&](const BentControl::Bend& bend) {
    auto reader = Connect(Options(Access::kRead),
                          std::make_shared<BentControl>(*endpoint_, Access::kRead, bend));
    std::vector<std::byte> target(kFrameBytes);
    const std::vector<ReadPiece> pieces = {{{0, 0, kFrameBytes}, target.data()}};
    return reader->Read(pool_.Grant(1, Access::kRead), pieces, Soon())->Wait();
  };
  EXPECT_EQ(attempt([](ServerHello&) {}), absl::OkStatus());
  for (const BentControl::Bend& bend : std::vector<BentControl::Bend>{
           [](ServerHello& h) { h.arenas[0].address += kArenaBytes - 64; },
           [](ServerHello& h) { h.arenas[0].address -= 1; },
           [](ServerHello& h) { h.arenas[0].key ^= 1; },
           [](ServerHello& h) { h.arenas[0].key = h.words.key; },
           [](ServerHello& h) { h.words.address += h.words.bytes; }}) {
    const absl::Status status = attempt(bend);
    EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kPeerLost) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("remote access error"));
  }
}

}  // namespace
}  // namespace oasiskv::fabric::verbs
