// The C ABI against a daemon: the same bytes, the same errors, and mistakes that only a C caller can
// make.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "oasiskv/oasiskv.h"
#include "oasiskv/oasiskv_gpu.h"
#include "tests/integration/client_fixture.h"

namespace oasiskv::testing {
namespace {

oasiskv_geometry CGeometry() {
  const Geometry g = QwenLike();
  oasiskv_geometry c{};
  c.struct_size = sizeof(c);
  c.layers = g.layers;
  c.kv_heads = g.kv_heads;
  c.head_dim = g.head_dim;
  c.element_type = OASISKV_BFLOAT16;
  return c;
}

oasiskv_identity CIdentity() {
  oasiskv_identity c{};
  c.struct_size = sizeof(c);
  c.model = "test/model";
  c.revision = "r1";
  c.tenant = "tenant";
  return c;
}

#define ASSERT_CODE(expr, wanted)                                                       \
  do {                                                                                  \
    const int code = (expr);                                                            \
    ASSERT_EQ(code, wanted) << oasiskv_code_name(code) << ": " << oasiskv_last_error(); \
  } while (false)

class CApiTest : public ClientTest {
 protected:
  void SetUp() override { ConnectTo({}); }
  // A daemon with these flags, and a client of it.
  void ConnectTo(std::vector<std::string> flags) {
    StartCluster(DaemonMode::kInProcess, std::move(flags));
    if (HasFatalFailure()) return;
    address_ = cluster_->daemon().addresses().control_address;
    oasiskv_client_options options{};
    options.struct_size = sizeof(options);
    options.address = address_.c_str();
    const std::string fabric = GetParam();
    options.fabric = fabric.c_str();
    ASSERT_CODE(oasiskv_client_connect(&options, &client_), OASISKV_OK);
  }
  void TearDown() override {
    oasiskv_client_free(client_);
    ClientTest::TearDown();
  }

  int Open(const char* name, uint32_t blocks, oasiskv_producer** out) {
    oasiskv_producer_spec spec{};
    spec.struct_size = sizeof(spec);
    spec.name = name;
    spec.identity = &identity_;
    spec.geometry = &geometry_;
    spec.blocks = blocks;
    return oasiskv_producer_open(client_, &spec, out);
  }
  int Write(oasiskv_producer* producer, const Content& content) {
    for (uint32_t l = 0; l < geometry_.layers; ++l) {
      const KvView k = content.Keys(l, 0), v = content.Values(l, 0);
      const int code = oasiskv_producer_write_tokens(
          producer, l, 0, static_cast<uint32_t>(content.tokens()),
          {k.base, k.token_stride, k.head_stride}, {v.base, v.token_stride, v.head_stride});
      if (code != OASISKV_OK) return code;
    }
    return OASISKV_OK;
  }
  int Seal(oasiskv_producer* producer, uint64_t tokens) {
    oasiskv_seal_spec seal{};
    seal.struct_size = sizeof(seal);
    seal.token_count = tokens;
    seal.blob = "blob";
    seal.blob_size = 4;
    return oasiskv_producer_seal(producer, &seal);
  }
  int Attach(const char* name, uint32_t first_head, uint32_t heads, oasiskv_reader** out) {
    oasiskv_reader_spec spec{};
    spec.struct_size = sizeof(spec);
    spec.name = name;
    spec.identity = &identity_;
    spec.geometry = &geometry_;
    spec.first_head = first_head;
    spec.head_count = heads;
    return oasiskv_reader_attach(client_, &spec, out);
  }
  int Fetch(oasiskv_reader* reader, uint32_t block, uint32_t layer, uint32_t head) {
    into_.assign(QwenLike().entry_bytes(), std::byte{0x5A});
    const oasiskv_entry_read read{block, layer, head, into_.data()};
    return oasiskv_reader_fetch(reader, &read, 1, 0);
  }

  std::string address_;
  oasiskv_client* client_ = nullptr;
  oasiskv_geometry geometry_ = CGeometry();
  oasiskv_identity identity_ = CIdentity();
  std::vector<std::byte> into_;
};
INSTANTIATE_OVER_FABRICS(CApiTest);

TEST_P(CApiTest, PutAndFetchGivesTheSameBytes) {
  const Content content(QwenLike(), 70, 3);
  oasiskv_producer* producer = nullptr;
  ASSERT_CODE(Open("a", content.blocks(), &producer), OASISKV_OK);
  ASSERT_CODE(Write(producer, content), OASISKV_OK);
  ASSERT_CODE(Seal(producer, content.tokens()), OASISKV_OK);
  oasiskv_producer_free(producer);

  oasiskv_reader* reader = nullptr;
  ASSERT_CODE(Attach("a", 0, 0, &reader), OASISKV_OK);
  oasiskv_reader_info info{};
  info.struct_size = sizeof(info);
  ASSERT_CODE(oasiskv_reader_info_get(reader, &info), OASISKV_OK);
  EXPECT_EQ(info.sealed, 1u);
  EXPECT_EQ(info.token_count, 70u);
  EXPECT_EQ(info.blocks, 5u);
  ASSERT_EQ(info.blob_size, 4u);
  EXPECT_EQ(std::memcmp(info.blob, "blob", 4), 0);
  for (uint32_t block = 0; block < 5; ++block) {
    ASSERT_CODE(Fetch(reader, block, 2, 5), OASISKV_OK);
    EXPECT_EQ(into_, content.Entry(block, 2, 5));
  }
  // In flight, then ended by the caller; a handle may outlive its reader.
  const oasiskv_entry_read read{1, 0, 0, into_.data()};
  oasiskv_fetch* fetch = nullptr;
  ASSERT_CODE(oasiskv_reader_fetch_start(reader, &read, 1, 0, &fetch), OASISKV_OK);
  oasiskv_reader_free(reader);
  ASSERT_CODE(oasiskv_fetch_wait(fetch), OASISKV_OK);
  uint32_t done = 0;
  ASSERT_CODE(oasiskv_fetch_done(fetch, &done), OASISKV_OK);
  EXPECT_EQ(done, 1u);
  EXPECT_EQ(into_, content.Entry(1, 0, 0));
  oasiskv_fetch_free(fetch);

  oasiskv_client_stats stats{};
  stats.struct_size = sizeof(stats);
  ASSERT_CODE(oasiskv_client_stats_get(client_, &stats), OASISKV_OK);
  EXPECT_EQ(stats.reads, 6u);
  EXPECT_EQ(stats.stale_reads, 0u);
}

// Rule 8 of server/lease/README.md: each call, with answers that are lost.
class CApiRepeat : public CApiTest {
 protected:
  void SetUp() override { ConnectTo({"--lose_answers=30", "--lose_answers_seed=3"}); }
};
INSTANTIATE_OVER_FABRICS(CApiRepeat);

TEST_P(CApiRepeat, LostAnswersChangeNothing) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Content content(QwenLike(), 20 + seed % 40, seed);
    oasiskv_producer* producer = nullptr;
    ASSERT_CODE(Open("s", 1, &producer), OASISKV_OK);
    ASSERT_CODE(oasiskv_producer_extend(producer, content.blocks() - 1), OASISKV_OK);
    ASSERT_CODE(Write(producer, content), OASISKV_OK);
    if (seed % 5 == 0) {
      ASSERT_CODE(oasiskv_producer_abort(producer, "test"), OASISKV_OK);
    } else {
      ASSERT_CODE(Seal(producer, content.tokens()), OASISKV_OK);
      oasiskv_reader* reader = nullptr;
      ASSERT_CODE(Attach("s", 0, 0, &reader), OASISKV_OK);
      EXPECT_EQ(Capacity().used_bytes, content.blocks() * QwenLike().frame_stride());
      ASSERT_CODE(Fetch(reader, content.blocks() - 1, 0, 0), OASISKV_OK);
      EXPECT_EQ(into_, content.Entry(content.blocks() - 1, 0, 0)) << "seed " << seed;
      oasiskv_reader_free(reader);
      uint32_t released = 0;
      ASSERT_CODE(oasiskv_client_release_sequence(client_, "s", &identity_, &released), OASISKV_OK);
      EXPECT_EQ(released, 1u) << "seed " << seed;
    }
    oasiskv_producer_free(producer);
    ASSERT_EVENTUALLY(Capacity().used_bytes == 0);
  }
}

TEST_P(CApiTest, EachRefusalHasItsOwnCode) {
  const Content content(QwenLike(), 64, 1);
  oasiskv_producer* producer = nullptr;
  ASSERT_CODE(Open("a", content.blocks(), &producer), OASISKV_OK);
  ASSERT_CODE(Write(producer, content), OASISKV_OK);
  ASSERT_CODE(oasiskv_producer_commit(producer, 0, 3, 0, 2), OASISKV_OK);
  oasiskv_reader* reader = nullptr;
  ASSERT_CODE(Attach("a", 2, 2, &reader), OASISKV_OK);
  EXPECT_EQ(Fetch(reader, 0, 1, 2), OASISKV_OK);
  EXPECT_EQ(Fetch(reader, 2, 1, 2), OASISKV_NOT_COMMITTED);
  EXPECT_EQ(Fetch(reader, 4, 1, 2), OASISKV_OUT_OF_RANGE);
  EXPECT_EQ(Fetch(reader, 0, 3, 2), OASISKV_OUT_OF_RANGE);
  EXPECT_EQ(Fetch(reader, 0, 1, 4), OASISKV_FOREIGN);
  EXPECT_NE(std::strstr(oasiskv_last_error(), "head 4"), nullptr);
  const std::vector<std::byte> untouched(QwenLike().entry_bytes(), std::byte{0x5A});
  EXPECT_EQ(into_, untouched);
  ASSERT_CODE(oasiskv_reader_release(reader), OASISKV_OK);
  EXPECT_EQ(Fetch(reader, 0, 1, 2), OASISKV_STALE);
  oasiskv_reader_free(reader);

  reader = nullptr;
  EXPECT_EQ(Attach("nobody", 0, 0, &reader), OASISKV_NOT_FOUND);
  EXPECT_EQ(reader, nullptr) << "an output is written only on success";
  oasiskv_producer* again = nullptr;
  EXPECT_EQ(Open("a", 1, &again), OASISKV_ALREADY_EXISTS);
  geometry_.block_tokens = 32;
  EXPECT_EQ(Attach("a", 0, 0, &reader), OASISKV_GEOMETRY_MISMATCH);
  geometry_.block_tokens = 16;
  oasiskv_producer_free(producer);  // unsealed: thrown away
  EXPECT_TRUE(Eventually([&] {
    oasiskv_reader* late = nullptr;
    const int code = Attach("a", 0, 0, &late);
    oasiskv_reader_free(late);
    return code == OASISKV_NOT_FOUND;
  }));
}

// The keeper is held at a pause point, so that the lease ends as when a process gets no CPU.
TEST_P(CApiTest, AnExpiredGrantIsLeaseExpired) {
  const Content content(QwenLike(), 64, 1);
  oasiskv_producer* producer = nullptr;
  ASSERT_CODE(Open("a", content.blocks(), &producer), OASISKV_OK);
  ASSERT_CODE(Write(producer, content), OASISKV_OK);
  ASSERT_CODE(Seal(producer, 64), OASISKV_OK);
  oasiskv_producer_free(producer);
  oasiskv_reader_spec spec{};
  spec.struct_size = sizeof(spec);
  spec.name = "a";
  spec.identity = &identity_;
  spec.geometry = &geometry_;
  spec.lease_ms = 300;
  oasiskv_reader* reader = nullptr;
  PausePoints::Arm("client.keeper.renew");  // the holder is too busy to renew
  ASSERT_CODE(oasiskv_reader_attach(client_, &spec, &reader), OASISKV_OK);
  ASSERT_TRUE(PausePoints::WaitReached("client.keeper.renew"));
  int code = OASISKV_OK;
  EXPECT_TRUE(Eventually([&] { return (code = Fetch(reader, 0, 0, 0)) != OASISKV_OK; }));
  EXPECT_EQ(code, OASISKV_LEASE_EXPIRED) << oasiskv_last_error();
  PausePoints::Release("client.keeper.renew");
  oasiskv_reader_free(reader);
}

TEST_P(CApiTest, WrongCallsAreErrors) {
  oasiskv_reader* reader = nullptr;
  EXPECT_EQ(oasiskv_client_connect(nullptr, &client_), OASISKV_INVALID_ARGUMENT);
  oasiskv_client_options unset{};
  oasiskv_client* none = nullptr;
  EXPECT_EQ(oasiskv_client_connect(&unset, &none), OASISKV_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(oasiskv_last_error(), "struct_size"), nullptr);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(oasiskv_reader_attach(client_, nullptr, &reader), OASISKV_INVALID_ARGUMENT);
  EXPECT_EQ(oasiskv_reader_fetch(nullptr, nullptr, 1, 0), OASISKV_INVALID_ARGUMENT);
  EXPECT_EQ(oasiskv_fetch_wait(nullptr), OASISKV_INVALID_ARGUMENT);
  EXPECT_EQ(oasiskv_working_set_admit(nullptr, nullptr, nullptr), OASISKV_INVALID_ARGUMENT);
  EXPECT_EQ(oasiskv_set_log_level(17), OASISKV_INVALID_ARGUMENT);
  oasiskv_working_set_options options{};
  options.struct_size = sizeof(options);
  options.geometry = &geometry_;
  options.query_heads = geometry_.kv_heads;
  oasiskv_working_set* set = nullptr;
  options.bound_weight = 1.5;
  EXPECT_EQ(oasiskv_working_set_create(&options, &set), OASISKV_INVALID_ARGUMENT);
  EXPECT_THAT(oasiskv_last_error(), ::testing::HasSubstr("bound_weight is 1.5"));
  options.bound_weight = -1;  // stands for 0
  options.combine = OASISKV_COMBINE_NORMALIZED_MAX;
  ASSERT_CODE(oasiskv_working_set_create(&options, &set), OASISKV_OK);
  oasiskv_working_set_free(set);
  options.summaries = OASISKV_SUMMARIES_FLOAT8 + 1;
  EXPECT_EQ(oasiskv_working_set_create(&options, &set), OASISKV_INVALID_ARGUMENT);
  EXPECT_THAT(oasiskv_last_error(), ::testing::HasSubstr("options.summaries"));
  options.summaries = OASISKV_SUMMARIES_FLOAT8;
  if (geometry_.head_dim % 16 == 0) {
    ASSERT_CODE(oasiskv_working_set_create(&options, &set), OASISKV_OK);
    oasiskv_working_set_free(set);
  } else {
    EXPECT_EQ(oasiskv_working_set_create(&options, &set), OASISKV_INVALID_ARGUMENT);
    EXPECT_THAT(oasiskv_last_error(), ::testing::HasSubstr("kFloat8 with head_dim"));
  }
  options.summaries = OASISKV_SUMMARIES_AS_KEYS;
  options.combine = OASISKV_COMBINE_NORMALIZED_MAX + 1;
  EXPECT_EQ(oasiskv_working_set_create(&options, &set), OASISKV_INVALID_ARGUMENT);
  // The same on a GPU, where there may be none.
  oasiskv_gpu_working_set* gpu = nullptr;
  oasiskv_gpu_working_set_options gpu_options{};
  EXPECT_EQ(oasiskv_gpu_working_set_create(&gpu_options, &gpu), OASISKV_INVALID_ARGUMENT);
  gpu_options.struct_size = sizeof(gpu_options);
  EXPECT_EQ(oasiskv_gpu_working_set_create(&gpu_options, &gpu), OASISKV_INVALID_ARGUMENT);
  gpu_options.base = &options;  // its combine is still wrong
  EXPECT_EQ(oasiskv_gpu_working_set_create(&gpu_options, &gpu), OASISKV_INVALID_ARGUMENT);
  options.combine = OASISKV_COMBINE_MAX;
  if (const int code = oasiskv_gpu_working_set_create(&gpu_options, &gpu); code != OASISKV_OK) {
    EXPECT_EQ(code, OASISKV_UNSUPPORTED) << oasiskv_last_error();
    EXPECT_THAT(oasiskv_last_error(), ::testing::AnyOf(::testing::HasSubstr("OASISKV_CUDA"),
                                                       ::testing::HasSubstr("no GPU")));
    EXPECT_EQ(gpu, nullptr);
  }
  oasiskv_gpu_working_set_free(gpu);
  EXPECT_EQ(oasiskv_gpu_working_set_set_rows(nullptr, nullptr, 0, nullptr),
            OASISKV_INVALID_ARGUMENT);
  EXPECT_EQ(oasiskv_gpu_working_set_error(nullptr), OASISKV_INVALID_ARGUMENT);
  EXPECT_STREQ(oasiskv_code_name(OASISKV_STALE), "STALE");
  oasiskv_client_free(nullptr);
  oasiskv_fetch_free(nullptr);
  // An older caller's shorter structure: missing fields have their defaults.
  struct {
    size_t struct_size;
    const char* address;
  } old{sizeof(old), address_.c_str()};
  ASSERT_CODE(oasiskv_client_connect(reinterpret_cast<const oasiskv_client_options*>(&old), &none),
              OASISKV_OK);
  oasiskv_client_free(none);
}

TEST_P(CApiTest, ABufferIsRegisteredAndFreed) {
  std::byte memory[64];
  oasiskv_buffer* buffer = nullptr;
  ASSERT_CODE(oasiskv_buffer_register(client_, memory, sizeof(memory), &buffer), OASISKV_OK);
  uint32_t direct = 7;
  ASSERT_CODE(oasiskv_buffer_direct(buffer, &direct), OASISKV_OK);
  EXPECT_EQ(direct, 0u);  // these fabrics make no copies of their own
  ASSERT_CODE(oasiskv_buffer_direct(buffer, nullptr), OASISKV_INVALID_ARGUMENT);
  ASSERT_CODE(oasiskv_buffer_direct(nullptr, &direct), OASISKV_INVALID_ARGUMENT);
  oasiskv_buffer_free(buffer);
  oasiskv_buffer_free(nullptr);
  buffer = nullptr;
  ASSERT_CODE(oasiskv_buffer_register(client_, nullptr, 64, &buffer), OASISKV_INVALID_ARGUMENT);
  ASSERT_CODE(oasiskv_buffer_register(client_, memory, 0, &buffer), OASISKV_INVALID_ARGUMENT);
  ASSERT_CODE(oasiskv_buffer_register(nullptr, memory, 64, &buffer), OASISKV_INVALID_ARGUMENT);
  ASSERT_CODE(oasiskv_buffer_register(client_, memory, 64, nullptr), OASISKV_INVALID_ARGUMENT);
  EXPECT_EQ(buffer, nullptr);
}

TEST_P(CApiTest, AForkedChildIsRefused) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(oasiskv_client_health(client_) == OASISKV_WRONG_STATE ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(oasiskv_client_health(client_), OASISKV_OK) << "the parent goes on";
}

}  // namespace
}  // namespace oasiskv::testing
