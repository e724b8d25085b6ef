// What goes over the wire of the ucx fabric: active messages, each with a fixed little-endian
// header.
//
//   client -> daemon   Hello                                  once, first
//   daemon -> client   HelloReply, payload: text              code 0: welcome
//   daemon -> client   Ping                                   now and then, not over TCP
//   client -> daemon   ReadRequest, payload: RemoteRange[]
//   daemon -> client   Data, payload: bytes                   any number a request, in any order
//   client -> daemon   WriteRequest RemoteRange[], payload: the ranges' bytes, one after another
//   daemon -> client   Trailer, payload: text                 the one end of each request,
//                                                             unless a Data was whole
//
// A ReadRequest message may hold several requests: behind the ranges of one comes the head of the
// next with its own grant, then its ranges. A Data message may hold several whole answers: behind
// the `bytes` of one comes the head of the next. Each is checked and judged by itself.
//
// Everything is sent eagerly: a rendezvous would have one side write into the other's memory on its
// own.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/fabric/fabric.h"

namespace oasiskv::fabric::ucx {

static_assert(std::endian::native == std::endian::little,
              "headers go over the wire as they lie in memory");
static_assert(sizeof(RemoteRange) == 12, "RemoteRange is a wire format");

constexpr uint32_t kMagic = 0x58'4b'53'4f;  // "OSKX" in memory
constexpr uint16_t kVersion = 3;

// Active-message ids. The server registers a handler for every id below kMessageIds, so that a
// stranger's is counted.
enum class MessageId : uint16_t {
  kHello = 1,
  kHelloReply = 2,
  kRead = 3,
  kData = 4,
  kWrite = 5,
  kTrailer = 6,
  kPing = 7,
};
constexpr unsigned kMessageIds = 32;

// What one request may ask for. A client that asks for more is refused with INVALID_ARGUMENT.
constexpr uint32_t kMaxReadRanges = 512;
constexpr uint32_t kMaxWriteRanges = 64;
constexpr uint64_t kMaxRequestBytes = uint64_t{1} << 20;
// Requests of one connection that the daemon keeps waiting. A client that has more open is
// disconnected.
constexpr size_t kMaxOpenRequests = 1024;
constexpr size_t kMaxTextBytes = 1024;
// Payload of one Data or WriteRequest message: with its header it must fit into one TCP segment of
// UCX (worker.cc), so that no fragments have to be put together on arrival.
constexpr uint64_t kMaxPayloadBytes = uint64_t{128} << 10;

struct Head {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  MessageId id{};
};

struct Hello {
  Head head{.id = MessageId::kHello};
  uint64_t incarnation = 0;  // the one the client expects; 0: any
};

struct HelloReply {
  Head head{.id = MessageId::kHelloReply};
  uint64_t incarnation = 0;
  int32_t code = 0;  // oasiskv::ErrorCode
  uint32_t text_bytes = 0;
};

// Says nothing: that it can be sent is what the daemon wants to know.
struct Ping {
  Head head{.id = MessageId::kPing};
};

struct ReadRequest {
  Head head{.id = MessageId::kRead};
  uint64_t request = 0;  // the client's number, new for every request of a connection
  uint64_t grant = 0;
  uint64_t epoch = 0;
  uint32_t ranges = 0;
  uint32_t reserved = 0;
};

struct WriteRequest {
  Head head{.id = MessageId::kWrite};
  uint64_t request = 0;
  uint64_t grant = 0;
  uint64_t epoch = 0;
  uint32_t ranges = 0;
  uint32_t reserved = 0;
};

struct Data {
  Head head{.id = MessageId::kData};
  uint64_t request = 0;
  uint64_t position = 0;  // of the payload's first byte in the request's ranges laid end to end
  uint64_t word = 0;      // when `whole`, as in a Trailer
  uint32_t whole = 0;     // 1: these are all bytes of the request, and no Trailer follows
  uint32_t bytes = 0;     // when `whole`, how many; else the payload's size says
};

struct Trailer {
  Head head{.id = MessageId::kTrailer};
  uint64_t request = 0;
  uint64_t word =
      0;  // the grant word, sampled after the last byte of the request was read or written
  int32_t code = 0;  // oasiskv::ErrorCode
  uint32_t text_bytes = 0;
};

static_assert(sizeof(Head) == 8 && sizeof(Hello) == 16 && sizeof(HelloReply) == 24);
static_assert(sizeof(ReadRequest) == 40 && sizeof(WriteRequest) == 40);
static_assert(sizeof(Data) == 40 && sizeof(Trailer) == 32);

// True when `bytes` begins with a T of this protocol and version; copies it out, since UCX aligns
// nothing.
template <typename T>
bool ParseHeader(const void* bytes, size_t length, T& out) {
  const Head expected = T{}.head;
  if (bytes == nullptr || length < sizeof(T)) return false;
  std::memcpy(&out, bytes, sizeof(T));
  return out.head.magic == expected.magic && out.head.version == expected.version &&
         out.head.id == expected.id;
}

}  // namespace oasiskv::fabric::ucx
