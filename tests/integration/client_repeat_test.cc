// Calls whose answers are lost and repeated: the same bytes, memory and grants as without loss
// (rule 8 of server/lease/README.md).
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/integration/client_fixture.h"

namespace oasiskv::testing {
namespace {

// What is left when a program is over.
struct EndState {
  uint64_t used_bytes = 0, quarantined_bytes = 0, open = 0, sealed = 0, readers = 0, writers = 0;
  friend bool operator==(const EndState&, const EndState&) = default;
  friend std::ostream& operator<<(std::ostream& os, const EndState& s) {
    return os << s.used_bytes << " bytes used, " << s.quarantined_bytes << " quarantined, "
              << s.open << " open, " << s.sealed << " sealed, " << s.readers << " readers, "
              << s.writers << " writers";
  }
};

class ClientRepeat : public ClientTest {
 protected:
  void StartWith(std::vector<std::string> flags) {
    flags.push_back("--pool_bytes=64MiB");
    flags.push_back("--slab_bytes=1MiB");
    StartCluster(DaemonMode::kInProcess, std::move(flags));
  }
  EndState State() const {
    const server::CapacityInfo c = Capacity();
    return {c.used_bytes,       c.quarantined_bytes, c.sequences_open,
            c.sequences_sealed, c.grants_reader,     c.grants_writer};
  }

  // Every kind of call, in an order and with sizes that the seed says. The readers that it leaves
  // attached are in `kept`, what it leaves in the daemon in `left`.
  void Run(Client& client, uint32_t seed, std::vector<Reader>& kept, EndState& left) {
    std::mt19937 random(seed);
    const Geometry g = Shape(2, 2, 16);
    for (int i = 0; i < 3; ++i) {
      const std::string name = absl::StrCat("s", i);
      const Content content(g, 1 + random() % 80, seed * 3 + static_cast<uint32_t>(i));
      ProducerSpec spec = SpecOf(name, content);
      spec.blocks = random() % (content.blocks() + 1);
      ASSERT_OK_AND_ASSIGN(Producer producer, client.Open(spec));
      while (producer.blocks() < content.blocks()) {
        const uint32_t missing = content.blocks() - producer.blocks();
        ASSERT_OK(producer.Extend(1 + random() % missing));
      }
      ASSERT_OK(WriteAll(producer, content));
      const uint32_t end = random() % 6;
      if (end == 0) {
        ASSERT_OK(producer.Abort("test"));
        continue;
      }
      SealSpec seal;
      seal.token_count = content.tokens();
      seal.blob = absl::StrCat("blob ", i);
      ASSERT_OK(producer.Seal(seal));
      ASSERT_OK_AND_ASSIGN(Reader reader, client.Attach(ReadSpecOf(name, g)));
      EXPECT_EQ(reader.blob(), seal.blob);
      std::vector<std::byte> into;
      const std::vector<EntryRead> reads = AllEntries(content, into);
      ASSERT_OK(reader.FetchEntries(reads, Soon())->Wait());
      EXPECT_TRUE(AllRight(content, reads)) << "seed " << seed;
      if (end == 1 || end >= 4) left.used_bytes += content.blocks() * g.frame_stride();
      if (end == 1) {
        kept.push_back(std::move(reader));
        ++left.readers;
      } else {
        ASSERT_OK(reader.Release());
      }
      if (end >= 4) {
        ++left.sealed;
      } else {
        ASSERT_OK_AND_ASSIGN(const uint32_t released,
                             client.ReleaseSequences({name}, TestIdentity()));
        EXPECT_EQ(released, 1u) << "seed " << seed;
      }
    }
  }
  void Forget(Client& client) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(client.Abort(absl::StrCat("s", i), TestIdentity(), "").ok());
    }
  }
};

TEST_P(ClientRepeat, LostAnswersChangeNothing) {
  StartWith({"--lose_answers=30", "--lose_answers_seed=5"});
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  for (uint32_t seed = 0; seed < 200 && !HasFailure(); ++seed) {
    std::vector<Reader> kept;
    EndState left;
    Run(*client, seed, kept, left);
    // The daemon lets go of a writer over shm, and of a request over ucx, a moment after the answer.
    ASSERT_EVENTUALLY(State() == left) << "seed " << seed << ": " << State() << "; want " << left;
    Forget(*client);
    ASSERT_EVENTUALLY(State() == EndState());
  }
}

// The answer comes never, and the caller gives up: what the daemon opened all the same must not stay
// until a lease of an hour ends, nor, over shm, in quarantine as long as the client lives.
TEST_P(ClientRepeat, AnOpenThatIsGivenUpLeavesNothingBehind) {
  StartCluster(DaemonMode::kProcess, {"--default_lease=1h", "--max_lease=1h"});
  ClientOptions options = Options();
  options.rpc_timeout = std::chrono::milliseconds(500);
  const auto client = Connect(options);
  ASSERT_NE(client, nullptr);
  const Content content(Shape(2, 2, 16), 20, 1);
  ASSERT_OK(Put(*client, "warm", content));
  ProducerSpec spec = SpecOf("given up", content);
  spec.blocks = 5000;  // of 8,192 that the pool has
  ASSERT_OK(cluster_->daemon().Pause());
  EXPECT_THAT(client->Open(spec).status(), Fails(ErrorCode::kDeadlineExceeded));
  ASSERT_OK(cluster_->daemon().Resume());
  spec.name = "next";
  ASSERT_EVENTUALLY(client->Open(spec).ok());
}

INSTANTIATE_OVER_FABRICS(ClientRepeat);

}  // namespace
}  // namespace oasiskv::testing
