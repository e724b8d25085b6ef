// The choice of a GID over tables as users report them, and the hellos' bytes.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/fabric/verbs/gid.h"
#include "common/fabric/verbs/hello.h"
#include "common/fabric/verbs/port.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

using ::testing::HasSubstr;

Gid ToGid(const char* text) {
  Gid gid{};
  EXPECT_EQ(::inet_pton(AF_INET6, text, gid.data()), 1) << text;
  return gid;
}

GidEntry Entry(uint32_t index, GidType type, const char* gid, const char* interface) {
  return {index, type, ToGid(gid), interface};
}

constexpr GidType kV1 = GidType::kRoceV1;
constexpr GidType kV2 = GidType::kRoceV2;

uint32_t Chosen(const std::vector<GidEntry>& table, GidWish wish = {}) {
  const auto choice = ChooseGid(table, 256, wish);
  EXPECT_TRUE(choice.ok()) << choice.status();
  return choice.ok() ? choice->entry.index : ~0u;
}

// One interface with an IPv4 address: v1 and v2 of each address side by side, link-local ones
// first.
const std::vector<GidEntry> kConnectX = {
    Entry(0, kV1, "fe80::bace:f6ff:fe01:203", "ens1f0np0"),
    Entry(1, kV2, "fe80::bace:f6ff:fe01:203", "ens1f0np0"),
    Entry(2, kV1, "::ffff:10.0.0.1", "ens1f0np0"),
    Entry(3, kV2, "::ffff:10.0.0.1", "ens1f0np0"),
};

TEST(Gid, TakesTheRoutableRoceV2OfAnOrdinaryTable) {
  const auto choice = ChooseGid(kConnectX, 256, {});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->entry.index, 3u);
  EXPECT_THAT(choice->reason, HasSubstr("index 3 (RoCE v2, ::ffff:10.0.0.1, ens1f0np0)"));
  EXPECT_THAT(choice->reason, HasSubstr("first of 4"));
}

TEST(Gid, PrefersV2EvenWhereOnlyV1IsRoutable) {
  EXPECT_EQ(Chosen({Entry(0, kV1, "::ffff:10.0.0.1", "e"), Entry(1, kV2, "fe80::1", "e")}), 1u);
  EXPECT_EQ(Chosen({Entry(4, kV1, "::ffff:10.0.0.1", "e")}), 4u);
}

TEST(Gid, RoutableGoesBeforeLinkLocalInBothFamilies) {
  EXPECT_EQ(Chosen({Entry(0, kV2, "fe80::1", "e"), Entry(1, kV2, "::ffff:169.254.3.4", "e"),
                    Entry(2, kV2, "2001:db8::5", "e")}),
            2u);
  EXPECT_EQ(Chosen({Entry(0, kV2, "2001:db8::5", "e"), Entry(1, kV2, "::ffff:10.0.0.1", "e")}), 1u);
  EXPECT_EQ(Chosen({Entry(7, kV2, "fd00::5", "e"), Entry(2, kV2, "fe80::1", "e")}), 7u);
  EXPECT_EQ(Chosen({Entry(0, kV2, "fe80::1", "e")}), 0u);
}

// In a pod: the table is the host's, most entries belong to interfaces elsewhere, places in between
// are empty.
TEST(Gid, SkipsNullAndForeignEntriesAndSaysSo) {
  const std::vector<GidEntry> pod = {
      Entry(0, kV1, "fe80::", "net1"),
      Entry(1, kV2, "fe80::a1", ""),
      Entry(2, kV2, "::ffff:192.168.7.1", ""),
      Entry(3, kV2, "::", "net1"),
      Entry(4, kV2, "::ffff:127.0.0.1", "lo"),
      Entry(5, kV2, "fe80::b2", "net1"),
      Entry(6, kV2, "::ffff:172.16.9.9", "net1"),
  };
  const auto choice = ChooseGid(pod, 256, {});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->entry.index, 6u);
  EXPECT_THAT(choice->reason, HasSubstr("2 empty"));
  EXPECT_THAT(choice->reason, HasSubstr("2 of another network namespace"));
  EXPECT_THAT(choice->reason, HasSubstr("1 that name no port"));
}

TEST(Gid, InfinibandNeedsNoInterface) {
  EXPECT_EQ(Chosen({Entry(0, GidType::kInfiniband, "fe80::ec0d:9a03:0:1", "")}), 0u);
}

TEST(Gid, FollowsTheOtherSidesKind) {
  std::vector<GidEntry> table = kConnectX;
  table.push_back(Entry(5, kV2, "2001:db8::1", "ens1f0np0"));
  EXPECT_EQ(Chosen(table, {-1, GidWish::Peer{kV2, ToGid("2001:db8::2")}}), 5u);
  EXPECT_EQ(Chosen(table, {-1, GidWish::Peer{kV2, ToGid("fe80::9")}}), 1u);
  EXPECT_EQ(Chosen(table, {-1, GidWish::Peer{kV1, ToGid("::ffff:10.0.0.2")}}), 2u);
  const auto none = ChooseGid(table, 256, {-1, GidWish::Peer{kV2, ToGid("::ffff:169.254.0.1")}});
  EXPECT_EQ(ErrorCodeOf(none.status()), ErrorCode::kUnsupported);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("::ffff:169.254.0.1"));
}

TEST(Gid, TheOperatorsIndexIsTakenOrRefused) {
  EXPECT_EQ(Chosen(kConnectX, {0, {}}), 0u);
  auto refused = [](const std::vector<GidEntry>& table, int64_t index) {
    const auto choice = ChooseGid(table, 16, {index, {}});
    EXPECT_EQ(ErrorCodeOf(choice.status()), ErrorCode::kInvalidArgument) << choice.status();
    return std::string(choice.status().message());
  };
  EXPECT_THAT(refused(kConnectX, 16), HasSubstr("16 places"));
  EXPECT_THAT(refused(kConnectX, int64_t{1} << 40), HasSubstr("--verbs_gid_index=1099511627776"));
  EXPECT_THAT(refused(kConnectX, 9), HasSubstr("empty"));
  EXPECT_THAT(refused(kConnectX, -2), HasSubstr("-2"));
  EXPECT_THAT(refused({Entry(0, kV2, "::ffff:10.0.0.1", "")}, 0), HasSubstr("namespace"));
  EXPECT_THAT(refused(kConnectX, 9), HasSubstr("index 3 (RoCE v2, ::ffff:10.0.0.1"));
}

TEST(Gid, AnEmptyTableIsAnErrorThatNamesTheMend) {
  const auto choice = ChooseGid({}, 256, {});
  EXPECT_EQ(ErrorCodeOf(choice.status()), ErrorCode::kUnsupported);
  EXPECT_THAT(std::string(choice.status().message()), HasSubstr("--verbs_gid_index"));
}

ClientHello SomeClientHello() {
  ClientHello hello;
  hello.incarnation = 0x0123456789abcdef;
  hello.access = Access::kWrite;
  hello.port = {ToGid("::ffff:10.0.0.1"), kV2, 7, 4096};
  hello.max_rd_atomic = 16;
  hello.queue_pairs = {{0xff'ffff, 1}, {2, 0xab'cdef}};
  return hello;
}

ServerHello SomeServerHello() {
  ServerHello hello;
  hello.incarnation = 99;
  hello.connection = ConnectionId(0xfeedfacecafebeef);
  hello.port = {ToGid("fe80::1"), kV1, 0, 1024};
  hello.max_rd_atomic = 4;
  hello.queue_pairs = {{5, 6}};
  hello.arenas = {{0x7f00'0000'0000, 1 << 30, 17}, {0x7e00'0000'0000, 4096, 18}};
  hello.words = {0x1000, 512, 19};
  return hello;
}

TEST(Hello, ComesBackAsItWas) {
  const auto client = ParseClientHello(Serialize(SomeClientHello()));
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(*client, SomeClientHello());
  const auto server = ParseServerHello(Serialize(SomeServerHello()));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(*server, SomeServerHello());
}

TEST(Hello, EveryTruncationAndAnyTailIsRefused) {
  const std::string client = Serialize(SomeClientHello());
  const std::string server = Serialize(SomeServerHello());
  for (size_t n = 0; n < client.size(); ++n) {
    EXPECT_FALSE(ParseClientHello(client.substr(0, n)).ok()) << n;
  }
  for (size_t n = 0; n < server.size(); ++n) {
    EXPECT_FALSE(ParseServerHello(server.substr(0, n)).ok()) << n;
  }
  EXPECT_FALSE(ParseClientHello(client + "x").ok());
  EXPECT_FALSE(ParseServerHello(server + "x").ok());
  EXPECT_FALSE(ParseServerHello(client).ok());
}

TEST(Hello, NumbersOutOfRangeAreRefused) {
  ClientHello client = SomeClientHello();
  client.queue_pairs.resize(kMaxQueuePairs + 1);
  EXPECT_EQ(ErrorCodeOf(ParseClientHello(Serialize(client)).status()), ErrorCode::kInvalidArgument);
  client = SomeClientHello();
  client.queue_pairs[0].number = 1 << 24;
  EXPECT_FALSE(ParseClientHello(Serialize(client)).ok());
  client = SomeClientHello();
  client.access = static_cast<Access>(2);
  EXPECT_FALSE(ParseClientHello(Serialize(client)).ok());
  client = SomeClientHello();
  client.version = 2;
  EXPECT_EQ(ErrorCodeOf(ParseClientHello(Serialize(client)).status()), ErrorCode::kUnsupported);
  ServerHello server = SomeServerHello();
  server.arenas[0] = {~uint64_t{0} - 10, 100, 1};
  EXPECT_FALSE(ParseServerHello(Serialize(server)).ok());
}

TEST(Port, ADeviceThatIsNotThereIsAnErrorWithTheDevicesSeen) {
  const auto port = OpenPort({.device = "nosuch0"});
  EXPECT_EQ(ErrorCodeOf(port.status()), ErrorCode::kUnsupported);
  const std::string text(port.status().message());
  EXPECT_THAT(text, HasSubstr("'nosuch0'"));
  EXPECT_THAT(text, HasSubstr("devices seen: " + DevicesSeen()));
}

}  // namespace
}  // namespace oasiskv::fabric::verbs
