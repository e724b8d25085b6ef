// What every layer uses: errors, geometry, checksums, memory, pause points, sizes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "common/byte_size.h"
#include "common/crc32c.h"
#include "common/log.h"
#include "common/mapped_memory.h"
#include "common/pause_point.h"
#include "oasiskv/error.h"
#include "oasiskv/geometry.h"
#include "oasiskv/v1/types.pb.h"

namespace oasiskv {
namespace {

using ::testing::HasSubstr;

Geometry Qwen3() {
  Geometry g;
  g.layers = 36;
  g.kv_heads = 8;
  g.head_dim = 128;
  g.element_type = ElementType::kBFloat16;
  g.total_kv_heads = 8;
  return g;
}

// A code that one of the two enums does not have would reach users as a number without a name.
TEST(Error, EveryCodeOfTheProtoHasTheSameNameHere) {
  const auto* codes = v1::ErrorCode_descriptor();
  for (int i = 0; i < codes->value_count(); ++i) {
    const auto* value = codes->value(i);
    const absl::Status status = MakeError(static_cast<ErrorCode>(value->number()), "text");
    EXPECT_EQ("ERROR_CODE_" + std::string(ErrorCodeName(static_cast<ErrorCode>(value->number()))),
              value->name());
    EXPECT_EQ(static_cast<int>(ErrorCodeOf(status)), value->number());
  }
}

TEST(Error, ContextKeepsTheCode) {
  const absl::Status status =
      Annotate(MakeError(ErrorCode::kStale, "the grant is gone"), "attach 'a'");
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kStale);
  EXPECT_EQ(status.message(), "attach 'a': STALE: the grant is gone");
}

TEST(Error, ALibrarysErrorIsNeverTakenForSuccess) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "theirs");
    EXPECT_NE(ErrorCodeOf(status), ErrorCode::kUnspecified) << status;
  }
  EXPECT_EQ(ErrorCodeOf(absl::OkStatus()), ErrorCode::kUnspecified);
}

TEST(GeometryTest, SizesOfQwen3) {
  const Geometry g = Qwen3();
  ASSERT_TRUE(g.Validate().ok());
  EXPECT_EQ(g.entry_bytes(), 8192u);
  EXPECT_EQ(g.layer_entries_bytes(), 65536u);
  EXPECT_EQ(g.summary_bytes(), 512u);
  EXPECT_EQ(g.frame_bytes(),
            16u * 144 * 1024 / 16 * 17);  // 144 KiB a token, and 1/16 of it in summaries
  EXPECT_EQ(g.BlocksFor(0), 0u);
  EXPECT_EQ(g.BlocksFor(17), 2u);
}

TEST(GeometryTest, EntriesAndSummariesTileTheFrame) {
  for (const Packing packing : {Packing::kKeyThenValue, Packing::kLatent}) {
    Geometry g = Qwen3();
    g.packing = packing;
    if (packing == Packing::kLatent) g.kv_heads = g.total_kv_heads = 1;
    uint32_t at = 0;
    for (uint32_t l = 0; l < g.layers; ++l) {
      for (uint32_t h = 0; h < g.kv_heads; ++h, at += g.entry_bytes()) {
        ASSERT_EQ(g.entry_offset(LayerIndex(l), HeadIndex(h)), at);
      }
    }
    for (uint32_t l = 0; l < g.layers; ++l) {
      for (uint32_t h = 0; h < g.kv_heads; ++h, at += g.summary_bytes()) {
        ASSERT_EQ(g.summary_offset(LayerIndex(l), HeadIndex(h)), at);
      }
    }
    EXPECT_EQ(at, g.frame_bytes());
    EXPECT_GE(g.frame_stride(), g.frame_bytes());
  }
}

TEST(GeometryTest, RefusalsNameTheField) {
  const std::pair<const char*, void (*)(Geometry&)> cases[] = {
      {"layers", [](Geometry& g) { g.layers = 0; }},
      {"kv_heads", [](Geometry& g) { g.kv_heads = 100000; }},
      {"head_dim", [](Geometry& g) { g.head_dim = 0; }},
      {"block_tokens", [](Geometry& g) { g.block_tokens = 1u << 31; }},
      {"element_type", [](Geometry& g) { g.element_type = ElementType::kUnspecified; }},
      {"element_type", [](Geometry& g) { g.element_type = static_cast<ElementType>(77); }},
      {"packing", [](Geometry& g) { g.packing = static_cast<Packing>(9); }},
      {"kv_heads", [](Geometry& g) { g.packing = Packing::kLatent; }},
      {"first_head", [](Geometry& g) { g.first_head = 1; }},
      {"first_head", [](Geometry& g) { g.first_head = 0xFFFFFFFF; }},
      {"frame", [](Geometry& g) { g.layers = 1024, g.head_dim = 8192; }},
  };
  for (const auto& [field, spoil] : cases) {
    Geometry g = Qwen3();
    spoil(g);
    const absl::Status status = g.Validate();
    EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  }
}

TEST(GeometryTest, EveryDifferingFieldIsRefusedWithBothValues) {
  const std::pair<std::vector<const char*>, void (*)(Geometry&)> cases[] = {
      {{"layers", "36", "32"}, [](Geometry& g) { g.layers = 32; }},
      {{"kv_heads", "8", "4"}, [](Geometry& g) { g.kv_heads = 4; }},
      {{"head_dim", "128", "64"}, [](Geometry& g) { g.head_dim = 64; }},
      {{"block_tokens", "16", "32"}, [](Geometry& g) { g.block_tokens = 32; }},
      {{"element_type", "bfloat16", "float16"},
       [](Geometry& g) { g.element_type = ElementType::kFloat16; }},
      {{"packing", "key_then_value", "latent"}, [](Geometry& g) { g.packing = Packing::kLatent; }},
      {{"first_head", "0", "8"}, [](Geometry& g) { g.first_head = 8; }},
      {{"total_kv_heads", "8", "16"}, [](Geometry& g) { g.total_kv_heads = 16; }},
  };
  for (const auto& [texts, change] : cases) {
    Geometry asked = Qwen3();
    change(asked);
    const absl::Status status = Qwen3().CheckSame(asked);
    EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kGeometryMismatch);
    for (const char* text : texts) EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
  EXPECT_TRUE(Qwen3().CheckSame(Qwen3()).ok());
}

std::span<const std::byte> Bytes(const char* text) {
  return {reinterpret_cast<const std::byte*>(text), std::strlen(text)};
}

TEST(Crc32cTest, KnownValues) {  // RFC 3720 appendix B.4, and the polynomial's usual check value
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283u);
  const std::vector<std::byte> zeros(32), ones(32, std::byte{0xFF});
  EXPECT_EQ(Crc32c(zeros), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(ones), 0x62A8AB43u);
}

TEST(Crc32cTest, InstructionAndTableAgreeAndContinue) {
  std::mt19937 random(1);
  std::vector<std::byte> data(1000);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  for (size_t from = 0; from < 16; ++from) {
    for (size_t size : {0, 1, 7, 8, 9, 63, 64, 65, 900}) {
      const auto part = std::span<const std::byte>(data).subspan(from, size);
      ASSERT_EQ(Crc32c(part), Crc32cPortable(part));
      const size_t cut = size / 3;
      ASSERT_EQ(Crc32c(part.subspan(cut), Crc32c(part.first(cut))), Crc32c(part));
    }
  }
}

TEST(MappedMemory, AReadersDescriptorCannotBeMappedForWriting) {
  auto fd = CreateMemfd("test", 1 << 20, PageKind::kNormal);
  ASSERT_TRUE(fd.ok()) << fd.status();
  auto reader = ReopenReadOnly(fd->get());
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto writable = Mapping::Map(fd->get(), 1 << 20, Protection::kReadWrite);
  ASSERT_TRUE(writable.ok());
  EXPECT_FALSE(Mapping::Map(reader->get(), 1 << 20, Protection::kReadWrite).ok());
  auto readable = Mapping::Map(reader->get(), 1 << 20, Protection::kReadOnly);
  ASSERT_TRUE(readable.ok());
  writable->data()[4097] = std::byte{42};
  EXPECT_EQ(readable->data()[4097], std::byte{42});
  EXPECT_NE(::ftruncate(fd->get(), 0), 0) << "a shrunken file would be a SIGBUS for its readers";
}

TEST(MappedMemory, NobodyCanForbidLaterWritersToMap) {
  auto fd = CreateMemfd("test", 1 << 20, PageKind::kNormal);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_NE(::fcntl(fd->get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  EXPECT_TRUE(Mapping::Map(fd->get(), 1 << 20, Protection::kReadWrite).ok());
}

TEST(MappedMemory, MoreThanTheMachineHasIsRefusedWithTheSizes) {
  const auto fd = CreateMemfd("test", uint64_t{1} << 50, PageKind::kNormal);
  EXPECT_EQ(ErrorCodeOf(fd.status()), ErrorCode::kCapacity);
  EXPECT_THAT(std::string(fd.status().message()), HasSubstr(std::to_string(uint64_t{1} << 50)));
}

TEST(MappedMemory, HugePagesThatAreNotThereAreRefusedWithTheMend) {
  const uint64_t page = HugePageBytes();
  if (page == 0) GTEST_SKIP() << "needs a kernel with huge pages";
  const auto fd = CreateMemfd("test", page << 24, PageKind::kHuge);
  EXPECT_EQ(ErrorCodeOf(fd.status()), ErrorCode::kCapacity);
  EXPECT_THAT(std::string(fd.status().message()), HasSubstr("vm.nr_hugepages"));
  EXPECT_EQ(ErrorCodeOf(CreateMemfd("test", page + 4096, PageKind::kHuge).status()),
            ErrorCode::kInvalidArgument);
}

TEST(PausePoint, HoldsOneThreadUntilReleased) {
  std::atomic<int> passed{0};
  PausePoints::Arm("test.point");
  const auto body = [&] {
    OASISKV_PAUSE_POINT("test.point");
    ++passed;
  };
  std::thread held(body);
  ASSERT_TRUE(PausePoints::WaitReached("test.point"));
  EXPECT_EQ(PausePoints::Waiting(), 1);
  std::thread other(body);  // one thread per arming
  other.join();
  EXPECT_EQ(passed, 1);
  PausePoints::Release("test.point");
  held.join();
  EXPECT_EQ(passed, 2);
  EXPECT_EQ(PausePoints::Waiting(), 0);
  EXPECT_FALSE(PausePoints::AnyArmed());
}

// An Arm right after Release was lost once: the thread that woke up removed the new arming.
TEST(PausePoint, ArmedAgainBeforeTheHeldThreadWokeUp) {
  for (int round = 0; round < 200; ++round) {
    const auto body = [] { OASISKV_PAUSE_POINT("test.again"); };
    PausePoints::Arm("test.again");
    std::thread first(body);
    ASSERT_TRUE(PausePoints::WaitReached("test.again"));
    PausePoints::Release("test.again");
    PausePoints::Arm("test.again");
    first.join();
    std::thread second(body);
    ASSERT_TRUE(PausePoints::WaitReached("test.again", std::chrono::seconds(5)))
        << "round " << round;
    PausePoints::Release("test.again");
    second.join();
  }
  EXPECT_FALSE(PausePoints::AnyArmed());
}

TEST(PausePoint, AWaitForAPointNobodyReachesEnds) {
  PausePoints::Arm("test.never");
  EXPECT_FALSE(PausePoints::WaitReached("test.never", std::chrono::milliseconds(20)));
  PausePoints::Release("test.never");
  EXPECT_FALSE(PausePoints::AnyArmed());
}

// A client chooses the sequence's name, which must not be able to forge a log line.
TEST(LogTest, OneCallIsOneLine) {
  ::testing::internal::CaptureStderr();
  LogError("test", "name\nE 2026-01-01 forged: \x1b[2J\x7f\xc3\xa9");
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(line.substr(line.find("name")), "name?E 2026-01-01 forged: ?[2J?\xc3\xa9\n");
}

TEST(LogGateTest, LetsOneThroughAndTellsTheNextHowManyItHeldBack) {
  LogGate closed(std::chrono::hours(1));
  EXPECT_TRUE(closed.Pass());
  EXPECT_FALSE(closed.Pass());
  EXPECT_EQ(closed.suppressed(), 0u);
  LogGate gate(std::chrono::milliseconds(20));
  EXPECT_TRUE(gate.Pass());
  uint64_t held_back = 0;
  while (!gate.Pass()) ++held_back;
  EXPECT_EQ(gate.suppressed(), held_back);
}

TEST(ByteSizeTest, IsPrintedInTheLargestUnitThatDividesIt) {
  for (const char* text : {"0", "1", "1023", "1KiB", "1536KiB", "3GiB", "2TiB"}) {
    ByteSize size;
    std::string error;
    ASSERT_TRUE(AbslParseFlag(text, &size, &error)) << error;
    EXPECT_EQ(AbslUnparseFlag(size), text);
  }
}

}  // namespace
}  // namespace oasiskv
