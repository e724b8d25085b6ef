#include "tests/integration/http_get.h"

#include <sys/socket.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/address.h"
#include "common/mapped_memory.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::testing {

absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path) {
  OASISKV_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address, 80));
  OASISKV_ASSIGN_OR_RETURN(const SocketAddress target, Resolve(parsed));
  const UniqueFd fd(::socket(target.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), target.get(), target.length) != 0) {
    return MakeError(ErrorCode::kPeerLost, absl::StrCat("nobody listens at ", address));
  }
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return MakeError(ErrorCode::kPeerLost, "the request could not be sent");
  }
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = ::recv(fd.get(), buffer, sizeof(buffer), 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  const size_t body = answer.find("\r\n\r\n");
  if (body == std::string::npos || answer.find(" 200 ") > answer.find("\r\n")) {
    return MakeError(ErrorCode::kInternal, absl::StrCat("no 200: ", answer.substr(0, 80)));
  }
  return answer.substr(body + 4);
}

std::map<std::string, double> ParseMetrics(const std::string& text) {
  std::map<std::string, double> out;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const size_t blank = line.rfind(' ');
    double value = 0;
    if (line.front() == '#' || blank == line.npos) continue;
    if (absl::SimpleAtod(line.substr(blank + 1), &value))
      out[std::string(line.substr(0, blank))] = value;
  }
  return out;
}

}  // namespace oasiskv::testing
