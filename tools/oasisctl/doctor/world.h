// The machine as the checks see it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/fabric/verbs/inventory.h"

namespace oasiskv::oasisctl {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// Thread contract: a plain value.
//
// Everything a check may look at: the files below `root`, and what no file tells. Tests make one
// over a folder of their own; the checks ask nothing else.
struct World {
  struct Limit {
    uint64_t soft = kUnlimited;
    uint64_t hard = kUnlimited;
  };

  std::string root;  // before each path; empty on the real machine
  Limit locked_memory;
  Limit open_files;
  std::map<std::string, std::string> environment;
  // What the verbs fabric would take of the RDMA devices, and the version of the UCX library that
  // programs of this machine load.
  absl::StatusOr<fabric::verbs::TakenPort> verbs_port;
  absl::StatusOr<std::string> ucx_version;
  // Free bytes of the file system that `path` (with root) lies on.
  std::function<std::optional<uint64_t>(const std::string& path)> free_bytes;

  static World OfThisMachine(const fabric::VerbsPortOptions& options);

  // Without white space at its ends; nothing when it is empty or cannot be read.
  std::optional<std::string> File(const std::string& path) const;
  std::optional<uint64_t> Number(const std::string& path) const;
  // Of lines "Key: 12 kB" or "Key 12", as /proc/meminfo has them, in bytes when the line says kB.
  std::optional<uint64_t> Field(const std::string& path, const std::string& key) const;
  // Names in a folder, the shorter first (so numbers come by value); empty when there is none.
  std::vector<std::string> Names(const std::string& path) const;
  bool Exists(const std::string& path) const;
  bool CanReadAndWrite(const std::string& path) const;
  // Whether this process can make files in the folder.
  bool CanMakeFilesIn(const std::string& path) const;
  std::string Variable(const std::string& name) const;  // empty when it is not set
};

}  // namespace oasiskv::oasisctl
