// Lanes as UCX itself tells of them, and the ring that one-sided bytes go through.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fabric/ucx/bounce.h"
#include "common/fabric/ucx/lanes.h"

namespace oasiskv::fabric::ucx {
namespace {

constexpr char kHead[] =
    "#\n"
    "# UCP endpoint \n"
    "#\n"
    "#               peer: <no debug data>\n";

std::string Text(const std::string& lanes) { return absl::StrCat(kHead, lanes, "#\n"); }

// UCX 1.13.1 between two processes over TCP: get and put are emulated, and none is listed.
TEST(UcxLanesTest, OverTcpNothingIsOneSided) {
  const Lanes lanes = ParseLanes(
      Text("#                 lane[0]: cm tcp\n"
           "#                 lane[1]:  0:tcp/lo.0 md[0]               -> md[0]/tcp/sysdev[255] "
           "rma_bw#0 am am_bw#0\n"
           "#\n"
           "#                am_send: 0..<egr/short>..8184..<egr/zcopy>..262144..<rndv>..(inf)\n"
           "#\n"
           "#                  rma_bw: mds [0] rndv_rkey_size 10\n"));
  ASSERT_EQ(lanes.lanes.size(), 2u);
  EXPECT_TRUE(lanes.lanes[0].only_connections);
  EXPECT_EQ(lanes.lanes[1].device, "lo");
  EXPECT_FALSE(lanes.one_sided);
  EXPECT_EQ(lanes.Transport(), "tcp");
  EXPECT_EQ(lanes.TransportAndDevice(), "tcp/lo");
}

// A device whose name has a point in it, and a UCX that marks no lane for bulk transfers.
TEST(UcxLanesTest, ThePathIsWhatStandsBehindTheLastPoint) {
  const Lanes lanes = ParseLanes(
      Text("#                 lane[0]:  0:tcp/eth0.100.0 md[0]         -> md[0]/tcp/sysdev[255] "
           "am am_bw#0\n"));
  EXPECT_EQ(lanes.TransportAndDevice(), "tcp/eth0.100");
  EXPECT_FALSE(lanes.one_sided);
}

// UCX 1.13.1 on soft-RoCE devices.
constexpr char kRcVerbs[] =
    "#                 lane[0]:  3:rc_verbs/rxe0:1.0 md[1]       -> md[1]/ib/sysdev[255] am "
    "am_bw#0 wireup\n"
    "#\n"
    "#                  put[0]: 0..<short>..81..<bcopy>..16384..<zcopy>..(inf)\n"
    "#                  get[0]: 0..<bcopy>..945..<zcopy>..(inf)\n"
    "#\n"
    "#                  rma_bw: mds ";

TEST(UcxLanesTest, OverRcVerbsAllIsOneSided) {
  const Lanes lanes = ParseLanes(Text(kRcVerbs));
  EXPECT_TRUE(lanes.one_sided);
  EXPECT_EQ(lanes.Transport(), "rc_verbs");
  EXPECT_EQ(lanes.TransportAndDevice(), "rc_verbs/rxe0:1");
  ASSERT_EQ(lanes.lanes.size(), 1u);
  EXPECT_TRUE(lanes.lanes[0].remote_memory);
}

// The same device, UD only: what there is of get and put is emulated.
TEST(UcxLanesTest, OverUdNothingIsOneSided) {
  const Lanes lanes = ParseLanes(
      Text("#                 lane[0]:  0:ud_verbs/rxe0:1.0 md[0]       -> md[0]/ib/sysdev[255] am "
           "am_bw#0 wireup\n#\n#\n#                  rma_bw: mds "));
  EXPECT_FALSE(lanes.one_sided);
  EXPECT_EQ(lanes.Transport(), "ud_verbs");
}

// As 1.13 prints them, of a Mellanox device (mlx5_0 as in public reports): keep-alive over UD, and
// two rails.
TEST(UcxLanesTest, OverRcMlx5WithUdForKeepAliveAllIsOneSided) {
  const Lanes lanes = ParseLanes(
      Text("#                 lane[0]: cm rdmacm\n"
           "#                 lane[1]:  7:rc_mlx5/mlx5_0:1.0 md[6]      -> md[6]/ib/sysdev[0] "
           "rma_bw#0 am am_bw#0\n"
           "#                 lane[2]:  8:rc_mlx5/mlx5_2:1.0 md[7]      -> md[7]/ib/sysdev[1] "
           "rma_bw#1 am_bw#1\n"
           "#                 lane[3]:  9:ud_mlx5/mlx5_0:1.0 md[6]      -> md[6]/ib/sysdev[0] "
           "keepalive wireup\n"
           "#\n"
           "#                  put[1]: 0..<short>..220..<bcopy>..16384..<zcopy>..(inf)\n"
           "#                  get[1]: 0..<bcopy>..16384..<zcopy>..(inf)\n"));
  EXPECT_TRUE(lanes.one_sided);
  EXPECT_EQ(lanes.TransportAndDevice(), "rc_mlx5/mlx5_0:1");
}

// As later releases print them: "seg" among the words, and no lines for put and get.
constexpr char kDc[] =
    "#                 lane[0]:  0:dc_mlx5/mlx5_0:1.0 md[0]      -> md[0]/ib/sysdev[1] seg 8256 "
    "am am_bw#0\n"
    "#                 lane[1]:  4:dc_mlx5/mlx5_2:1.0 md[2]      -> md[2]/ib/sysdev[3] seg 8256 "
    "rma_bw#0\n"
    "#                 lane[2]:  2:dc_mlx5/mlx5_1:1.0 md[1]      -> md[1]/ib/sysdev[2] seg 8256 "
    "rma_bw#1\n";

TEST(UcxLanesTest, OverDcAllIsOneSided) {
  const Lanes lanes = ParseLanes(Text(kDc));
  EXPECT_TRUE(lanes.one_sided);
  EXPECT_EQ(lanes.TransportAndDevice(), "dc_mlx5/mlx5_2:1");
}

// Where lanes of get and put are not listed, no other may carry data: it might be the one.
TEST(UcxLanesTest, ALaneWithoutKeysBesideUnlistedOnesSpoilsAll) {
  EXPECT_FALSE(ParseLanes(Text(absl::StrCat(kDc,
                                            "#                 lane[3]:  9:tcp/eth0.0 md[3] -> "
                                            "md[3]/tcp/sysdev[255] seg 8256 am_bw#1\n")))
                   .one_sided);
}

TEST(UcxLanesTest, OneLaneOfRemoteMemoryWithoutKeysSpoilsAll) {
  const std::string tcp =
      "#                 lane[1]:  0:tcp/eth0.0 md[0]             -> md[0]/tcp/sysdev[255] "
      "rma_bw#1\n";
  EXPECT_FALSE(ParseLanes(Text(tcp + kRcVerbs)).one_sided);
}

// Only put would be done by the device: get is emulated.
TEST(UcxLanesTest, PutAloneIsNotEnough) {
  std::string text = kRcVerbs;
  text.erase(text.find("#                  get[0]"));
  EXPECT_FALSE(ParseLanes(Text(text)).one_sided);
}

// UCX 1.13.1 on one host: its get and put there check nothing.
TEST(UcxLanesTest, OverSharedMemoryNothingIsOneSided) {
  const Lanes lanes = ParseLanes(
      Text("#                 lane[0]:  0:sysv/memory.0 md[0]           -> md[0]/sysv/sysdev[255] "
           "amo#0 am am_bw#0\n"
           "#                 lane[1]:  1:posix/memory.0 md[1]          -> md[1]/posix/sysdev[255] "
           "amo#1\n"
           "#                 lane[2]: 11:cma/memory.0 md[7]            -> md[7]/cma/sysdev[255] "
           "rma_bw#0\n"
           "#\n"
           "#                  put[0]: 0..<short>..4294967296..<bcopy>..(inf)\n"
           "#                  get[0]: 0..<bcopy>..(inf)\n"
           "#                  put[1]: 0..<short>..4294967296..<bcopy>..(inf)\n"
           "#                  get[1]: 0..<bcopy>..(inf)\n"));
  EXPECT_FALSE(lanes.one_sided);
  EXPECT_EQ(lanes.Transport(), "sysv");
  EXPECT_TRUE(lanes.lanes[1].remote_memory);
}

TEST(UcxLanesTest, AnotherTextHasNoLanes) {
  for (const char* text : {"", "lane", "lane[", "lane[x]: 1:rc_verbs/a:1.0", "lane[0]",
                           "put[0]: get[0]:", "# lane[0]: rc_verbs",
                           "lane[0]:", "lane[99999999999]: 1:rc_verbs/a.0 rma_bw#0"}) {
    const Lanes lanes = ParseLanes(text);
    EXPECT_FALSE(lanes.one_sided) << text;
    EXPECT_EQ(lanes.Transport(), "unknown") << text;
  }
}

TEST(UcxBounceRingTest, StretchesNeverOverlapAndAllComesBack) {
  std::mt19937 random(1);
  BounceRing ring(64 * BounceRing::kAlign);
  std::deque<std::pair<uint64_t, uint64_t>> out;  // offset, bytes
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (!out.empty() && random() % 2 == 0) {
      const size_t which = random() % out.size();
      ring.Give(out[which].first);
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(which));
      continue;
    }
    const uint64_t bytes = 1 + random() % (20 * BounceRing::kAlign);
    const auto offset = ring.Take(bytes);
    if (!offset.has_value()) {
      ++refused;
      continue;
    }
    ASSERT_LE(*offset + bytes, ring.size());
    ASSERT_EQ(*offset % BounceRing::kAlign, 0u);
    for (const auto& [begin, length] : out) {
      ASSERT_TRUE(*offset + bytes <= begin || begin + length <= *offset);
    }
    out.emplace_back(*offset, bytes);
  }
  EXPECT_GT(refused, 0);
  for (const auto& [offset, bytes] : out) ring.Give(offset);
  EXPECT_TRUE(ring.empty());
  EXPECT_TRUE(ring.Take(ring.size()).has_value());
  EXPECT_FALSE(ring.Take(1).has_value());
  EXPECT_FALSE(BounceRing(64).Take(65).has_value());
}

}  // namespace
}  // namespace oasiskv::fabric::ucx
