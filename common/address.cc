#include "common/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/mapped_memory.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

absl::Status Malformed(absl::string_view text, absl::string_view why) {
  return MakeError(ErrorCode::kInvalidArgument,
                   absl::StrCat("'", text, "' is not an address: ", why,
                                "; write host:port, 1.2.3.4:port or [v6]:port"));
}

bool IsNumeric(int family, const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return ::inet_pton(family, host.c_str(), bytes) == 1;
}

bool NumericIpv6(absl::string_view host) {
  const size_t percent = host.find('%');
  if (percent == absl::string_view::npos) return IsNumeric(AF_INET6, std::string(host));
  return percent + 1 < host.size() && IsNumeric(AF_INET6, std::string(host.substr(0, percent)));
}

absl::StatusOr<uint16_t> ParsePort(absl::string_view text, absl::string_view port) {
  uint32_t value = 0;
  // SimpleAtoi also accepts signs and blanks.
  const bool digits = !port.empty() && port.find_first_not_of("0123456789") == port.npos;
  if (!digits || !absl::SimpleAtoi(port, &value) || value > 65535) {
    return Malformed(text, absl::StrCat("'", port, "' is not a port (0 to 65535)"));
  }
  return static_cast<uint16_t>(value);
}

absl::Status CheckName(absl::string_view text, absl::string_view host) {
  if (host.empty()) return Malformed(text, "the host is empty");
  for (const char c : host) {
    const bool good = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      c == '.' || c == '-' || c == '_';
    if (!good) return Malformed(text, absl::StrCat("'", host, "' is not a host name"));
  }
  return absl::OkStatus();
}

}  // namespace

bool Address::IsIpv6() const { return NumericIpv6(host); }

bool Address::IsIpv4() const { return IsNumeric(AF_INET, host); }

std::string Address::ToString() const {
  return IsIpv6() ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<Address> ParseAddress(absl::string_view text, uint16_t default_port) {
  Address out;
  out.port = default_port;
  if (text.empty()) return Malformed(text, "it is empty");
  if (text.front() == '[') {
    const size_t close = text.find(']');
    if (close == text.npos) return Malformed(text, "']' is missing");
    const absl::string_view host = text.substr(1, close - 1);
    if (!NumericIpv6(host)) {
      return Malformed(text, absl::StrCat("'", host, "' is not an IPv6 address"));
    }
    out.host = std::string(host);
    const absl::string_view rest = text.substr(close + 1);
    if (rest.empty()) return out;
    if (rest.front() != ':') return Malformed(text, "after ']' only :port may follow");
    auto port = ParsePort(text, rest.substr(1));
    if (!port.ok()) return port.status();
    out.port = *port;
    return out;
  }
  if (NumericIpv6(text)) {
    out.host = std::string(text);
    return out;
  }
  const size_t colon = text.find(':');
  const absl::string_view host = text.substr(0, colon);
  if (colon != text.npos) {
    if (text.find(':', colon + 1) != text.npos) {
      return Malformed(text, "it has several ':' and is not an IPv6 address");
    }
    auto port = ParsePort(text, text.substr(colon + 1));
    if (!port.ok()) return port.status();
    out.port = *port;
  }
  if (absl::Status status = CheckName(text, host); !status.ok()) return status;
  out.host = std::string(host);
  return out;
}

std::string GrpcTarget(const Address& address) {
  if (address.IsIpv4()) return absl::StrCat("ipv4:", address.ToString());
  if (address.IsIpv6()) {
    return absl::StrCat("ipv6:%5B", absl::StrReplaceAll(address.host, {{"%", "%25"}}),
                        "%5D:", address.port);
  }
  return absl::StrCat("dns:///", address.ToString());
}

Address SocketAddress::ToAddress() const {
  char host[NI_MAXHOST] = "";
  char port[NI_MAXSERV] = "";
  ::getnameinfo(get(), length, host, sizeof(host), port, sizeof(port),
                NI_NUMERICHOST | NI_NUMERICSERV);
  Address out;
  out.host = host;
  uint32_t value = 0;
  if (absl::SimpleAtoi(port, &value)) out.port = static_cast<uint16_t>(value);
  return out;
}

absl::StatusOr<SocketAddress> Resolve(const Address& address, int family) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int rc =
      ::getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (rc != 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("the host of '", address.ToString(),
                                  "' cannot be resolved: ", ::gai_strerror(rc)));
  }
  SocketAddress out;
  std::memcpy(&out.storage, found->ai_addr, found->ai_addrlen);
  out.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return out;
}

absl::Status CheckBindable(const Address& address) {
  auto socket_address = Resolve(address);
  if (!socket_address.ok()) return socket_address.status();
  UniqueFd fd(::socket(socket_address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  // As every listener of the daemon does, so that connections of an earlier run that are still in
  // TIME_WAIT do not block the port.
  if (fd) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (!fd || ::bind(fd.get(), socket_address->get(), socket_address->length) != 0 ||
      ::listen(fd.get(), 1) != 0) {
    const int error = errno;
    ErrorCode code = ErrorCode::kInvalidArgument;
    if (error == EADDRINUSE) code = ErrorCode::kAlreadyExists;
    if (error == EACCES || error == EPERM) code = ErrorCode::kPermissionDenied;
    return MakeError(
        code, absl::StrCat("cannot listen on ", address.ToString(), ": ", std::strerror(error)));
  }
  return absl::OkStatus();
}

}  // namespace oasiskv
