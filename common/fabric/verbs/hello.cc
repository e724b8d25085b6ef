#include "common/fabric/verbs/hello.h"

#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

constexpr uint32_t kClientMagic = 0x4f4b5643;  // "OKVC"
constexpr uint32_t kServerMagic = 0x4f4b5653;  // "OKVS"

// Thread contract: used by one thread. Appends numbers, least significant byte first.
class Writer {
 public:
  template <typename T>
  void Put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>((static_cast<uint64_t>(value) >> (8 * i)) & 0xff));
    }
  }
  void Put(const PortAddress& port) {
    bytes_.append(reinterpret_cast<const char*>(port.gid.data()), port.gid.size());
    Put(static_cast<uint8_t>(port.gid_type));
    Put(port.lid);
    Put(port.mtu_bytes);
  }
  void Put(const QueuePairAddress& pair) {
    Put(pair.number);
    Put(pair.psn);
  }
  void Put(const RemoteMemory& memory) {
    Put(memory.address);
    Put(memory.bytes);
    Put(memory.key);
  }
  template <typename T>
  void Put(const std::vector<T>& list) {
    Put(static_cast<uint32_t>(list.size()));
    for (const T& item : list) Put(item);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Thread contract: used by one thread. Takes what a Writer put; once something is missing or out of
// range, `ok` stays false.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      return T{};
    }
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= uint64_t{static_cast<uint8_t>(bytes_[i])} << (8 * i);
    }
    bytes_.remove_prefix(sizeof(T));
    return static_cast<T>(value);
  }
  template <typename T>
  T GetUpTo(T most) {
    const T value = Get<T>();
    if (value > most) ok_ = false;
    return value;
  }
  PortAddress GetPort() {
    PortAddress port;
    for (uint8_t& byte : port.gid) byte = Get<uint8_t>();
    port.gid_type = static_cast<GidType>(GetUpTo<uint8_t>(static_cast<uint8_t>(GidType::kRoceV2)));
    port.lid = Get<uint16_t>();
    port.mtu_bytes = Get<uint32_t>();
    return port;
  }
  RemoteMemory GetMemory() {
    RemoteMemory memory;
    memory.address = Get<uint64_t>();
    memory.bytes = Get<uint64_t>();
    memory.key = Get<uint32_t>();
    if (memory.address + memory.bytes < memory.address) ok_ = false;
    return memory;
  }
  std::vector<QueuePairAddress> GetQueuePairs() {
    std::vector<QueuePairAddress> pairs;
    const uint32_t count = GetUpTo<uint32_t>(kMaxQueuePairs);
    for (uint32_t i = 0; ok_ && i < count; ++i) {
      QueuePairAddress pair;
      pair.number = GetUpTo<uint32_t>(0xff'ffff);
      pair.psn = GetUpTo<uint32_t>(0xff'ffff);
      pairs.push_back(pair);
    }
    return pairs;
  }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && bytes_.empty(); }

 private:
  absl::string_view bytes_;
  bool ok_ = true;
};

absl::Status CheckHead(Reader& in, uint32_t magic, uint32_t& version) {
  if (in.Get<uint32_t>() != magic) {
    return MakeError(ErrorCode::kInvalidArgument, "these bytes are no verbs hello of oasiskv");
  }
  version = in.Get<uint32_t>();
  if (version != kHelloVersion) {
    return MakeError(ErrorCode::kUnsupported,
                     absl::StrCat("the other side speaks version ", version,
                                  " of the verbs hello, this side version ", kHelloVersion,
                                  "; install equal versions"));
  }
  return absl::OkStatus();
}

absl::Status Malformed(absl::string_view what) {
  return MakeError(
      ErrorCode::kInvalidArgument,
      absl::StrCat("a verbs ", what, " that ends early, goes on, or holds numbers out of range"));
}

}  // namespace

std::string Serialize(const ClientHello& hello) {
  Writer out;
  out.Put(kClientMagic);
  out.Put(hello.version);
  out.Put(hello.incarnation);
  out.Put(static_cast<uint8_t>(hello.access));
  out.Put(hello.port);
  out.Put(hello.max_rd_atomic);
  out.Put(hello.queue_pairs);
  return out.Take();
}

std::string Serialize(const ServerHello& hello) {
  Writer out;
  out.Put(kServerMagic);
  out.Put(hello.version);
  out.Put(hello.incarnation);
  out.Put(hello.connection.value());
  out.Put(hello.port);
  out.Put(hello.max_rd_atomic);
  out.Put(hello.queue_pairs);
  out.Put(hello.arenas);
  out.Put(hello.words);
  return out.Take();
}

absl::StatusOr<ClientHello> ParseClientHello(absl::string_view bytes) {
  Reader in(bytes);
  ClientHello hello;
  if (absl::Status head = CheckHead(in, kClientMagic, hello.version); !head.ok()) return head;
  hello.incarnation = in.Get<uint64_t>();
  hello.access = static_cast<Access>(in.GetUpTo<uint8_t>(static_cast<uint8_t>(Access::kWrite)));
  hello.port = in.GetPort();
  hello.max_rd_atomic = in.Get<uint32_t>();
  hello.queue_pairs = in.GetQueuePairs();
  if (!in.done()) return Malformed("client hello");
  return hello;
}

absl::StatusOr<ServerHello> ParseServerHello(absl::string_view bytes) {
  Reader in(bytes);
  ServerHello hello;
  if (absl::Status head = CheckHead(in, kServerMagic, hello.version); !head.ok()) return head;
  hello.incarnation = in.Get<uint64_t>();
  hello.connection = ConnectionId(in.Get<uint64_t>());
  hello.port = in.GetPort();
  hello.max_rd_atomic = in.Get<uint32_t>();
  hello.queue_pairs = in.GetQueuePairs();
  const uint32_t arenas = in.GetUpTo<uint32_t>(kMaxHelloArenas);
  for (uint32_t i = 0; in.ok() && i < arenas; ++i) hello.arenas.push_back(in.GetMemory());
  hello.words = in.GetMemory();
  if (!in.done()) return Malformed("server hello");
  return hello;
}

}  // namespace oasiskv::fabric::verbs
