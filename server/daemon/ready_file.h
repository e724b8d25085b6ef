// A file that says that the daemon serves, and where.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/daemon/daemon.h"

namespace oasiskv::server {

// Thread contract: not safe for concurrent use; move-only.
//
// A JSON object with pid, control_address, metrics_address (empty: not served), fabrics (an object:
// name to address) and incarnation. It appears complete (written to another file and renamed) and
// is removed with this object.
class ReadyFile {
 public:
  // Errors: INVALID_ARGUMENT naming --ready_file.
  static absl::StatusOr<ReadyFile> Write(const std::string& path, const Daemon& daemon);
  // Removes the file that a killed daemon left at `path`.
  static void RemoveStale(const std::string& path);

  ReadyFile() = default;
  ReadyFile(ReadyFile&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ReadyFile& operator=(ReadyFile&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~ReadyFile() { RemoveStale(path_); }

 private:
  explicit ReadyFile(std::string path) : path_(std::move(path)) {}
  std::string path_;  // empty: none
};

}  // namespace oasiskv::server
