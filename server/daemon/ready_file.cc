#include "server/daemon/ready_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "oasiskv/error.h"

namespace oasiskv::server {

absl::StatusOr<ReadyFile> ReadyFile::Write(const std::string& path, const Daemon& daemon) {
  if (path.empty()) return ReadyFile();
  const BoundAddresses& bound = daemon.bound();
  nlohmann::json fabrics = nlohmann::json::object();
  for (const fabric::EndpointInfo& info : bound.endpoints) fabrics[info.fabric] = info.address;
  const nlohmann::json content = {
      {"pid", ::getpid()},
      {"control_address", bound.control_address},
      {"metrics_address", bound.metrics_address},
      {"fabrics", fabrics},
      {"incarnation", daemon.incarnation()},
  };
  const std::string beside = absl::StrCat(path, ".", ::getpid());
  std::ofstream out(beside);
  out << content.dump(2) << "\n";
  out.close();
  if (!out || std::rename(beside.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(beside.c_str());
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrCat("--ready_file=", path, ": cannot write it: ", std::strerror(error)));
  }
  return ReadyFile(path);
}

void ReadyFile::RemoveStale(const std::string& path) {
  if (!path.empty()) ::unlink(path.c_str());
}

}  // namespace oasiskv::server
