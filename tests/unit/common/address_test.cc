#include "common/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "oasiskv/error.h"

namespace oasiskv {
namespace {

using ::testing::HasSubstr;

struct Good {
  const char* text;
  const char* host;
  uint16_t port;
  const char* printed;
};

class AddressGood : public ::testing::TestWithParam<Good> {};

TEST_P(AddressGood, IsParsedAndPrintedBack) {
  const Good& good = GetParam();
  auto address = ParseAddress(good.text, 7400);
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->host, good.host);
  EXPECT_EQ(address->port, good.port);
  EXPECT_EQ(address->ToString(), good.printed);
  auto again = ParseAddress(address->ToString(), 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *address);
}

INSTANTIATE_TEST_SUITE_P(
    All, AddressGood,
    ::testing::Values(Good{"127.0.0.1:0", "127.0.0.1", 0, "127.0.0.1:0"},
                      Good{"127.0.0.1", "127.0.0.1", 7400, "127.0.0.1:7400"},
                      Good{"[::1]:0", "::1", 0, "[::1]:0"}, Good{"::1", "::1", 7400, "[::1]:7400"},
                      Good{"::", "::", 7400, "[::]:7400"}, Good{"[::]", "::", 7400, "[::]:7400"},
                      Good{"[fe80::1%lo]:1", "fe80::1%lo", 1, "[fe80::1%lo]:1"},
                      Good{"fe80::1%lo", "fe80::1%lo", 7400, "[fe80::1%lo]:7400"},
                      Good{"::ffff:1.2.3.4", "::ffff:1.2.3.4", 7400, "[::ffff:1.2.3.4]:7400"},
                      Good{"node-7.rack_1", "node-7.rack_1", 7400, "node-7.rack_1:7400"},
                      Good{"node:65535", "node", 65535, "node:65535"}));

TEST(AddressTest, WhatIsNoAddressIsRefusedWithTheText) {
  for (const char* text : {"",           ":1",
                           "[::1",       "[::1]1",
                           "[::1]:",     "[::1]x:1",
                           "host:",      "host:-1",
                           "host:+1",    "host: 1",
                           "host:65536", "host:99999999999999999999",
                           "host:1:2",   "a b:1",
                           "[host]:1",   "[1.2.3.4]:1",
                           "::1%",       "http://host:1",
                           "host:0x10",  "1::2::3"}) {
    auto address = ParseAddress(text, 7400);
    ASSERT_FALSE(address.ok()) << text << " became " << address->ToString();
    EXPECT_EQ(ErrorCodeOf(address.status()), ErrorCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(address.status().message()), HasSubstr(text));
  }
}

TEST(AddressTest, GrpcTargetsNameTheFamilyAndEncodeTheScope) {
  EXPECT_EQ(GrpcTarget({"10.0.0.1", 5}), "ipv4:10.0.0.1:5");
  EXPECT_EQ(GrpcTarget({"::1", 5}), "ipv6:%5B::1%5D:5");
  EXPECT_EQ(GrpcTarget({"fe80::1%lo", 5}), "ipv6:%5Bfe80::1%25lo%5D:5");
  EXPECT_EQ(GrpcTarget({"node", 5}), "dns:///node:5");
}

TEST(AddressTest, ResolvesNumericAddressesAndKeepsTheScope) {
  auto v4 = Resolve({"127.0.0.1", 5});
  ASSERT_TRUE(v4.ok()) << v4.status();
  EXPECT_EQ(v4->ToAddress(), (Address{"127.0.0.1", 5}));
  auto scoped = Resolve({"fe80::1%lo", 5});
  ASSERT_TRUE(scoped.ok()) << scoped.status();
  EXPECT_EQ(scoped->ToAddress(), (Address{"fe80::1%lo", 5}));
  auto none = Resolve({"name.invalid", 5});
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("name.invalid"));
}

TEST(AddressTest, ATakenPortIsFoundAndAForeignAddressRefused) {
  EXPECT_TRUE(CheckBindable({"127.0.0.1", 0}).ok());
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  auto any = Resolve({"127.0.0.1", 0});
  ASSERT_TRUE(any.ok());
  ASSERT_EQ(::bind(fd, any->get(), any->length), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&bound.storage), &bound.length), 0);
  const absl::Status taken = CheckBindable(bound.ToAddress());
  EXPECT_EQ(ErrorCodeOf(taken), ErrorCode::kAlreadyExists) << taken;
  EXPECT_THAT(std::string(taken.message()), HasSubstr(bound.ToAddress().ToString()));
  ::close(fd);
  const absl::Status foreign = CheckBindable({"192.0.2.1", 0});
  EXPECT_EQ(ErrorCodeOf(foreign), ErrorCode::kInvalidArgument) << foreign;
}

}  // namespace
}  // namespace oasiskv
