// All that the checks read of the machine.
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
// Everything that a check may read: the files below `root`, and what is in no file. Tests make one
// over a folder of their own.
struct World {
  struct Limit {
    uint64_t soft = kUnlimited;
    uint64_t hard = kUnlimited;
  };

  std::string root;  // before each path; empty on the real machine
  Limit locked_memory;
  Limit open_files;
  std::map<std::string, std::string> environment;
  // The RDMA port that the verbs fabric would use, and the version of the UCX library that programs
  // on this machine load.
  absl::StatusOr<fabric::verbs::TakenPort> verbs_port;
  absl::StatusOr<std::string> ucx_version;
  // Free bytes of the file system that `path` (with root) lies on.
  std::function<std::optional<uint64_t>(const std::string& path)> free_bytes;

  static World OfThisMachine(const fabric::VerbsPortOptions& options);

  // The text without white space at its ends; nothing when it is empty or cannot be read.
  std::optional<std::string> File(const std::string& path) const;
  std::optional<uint64_t> Number(const std::string& path) const;
  // The value of a line "Key: 12 kB" or "Key 12", as in /proc/meminfo; in bytes if it is in kB.
  std::optional<uint64_t> Field(const std::string& path, const std::string& key) const;
  // Names in a folder, shorter ones first (so that numbers are in order); empty without a folder.
  std::vector<std::string> Names(const std::string& path) const;
  bool Exists(const std::string& path) const;
  bool CanReadAndWrite(const std::string& path) const;
  // Whether this process can make files in the folder.
  bool CanMakeFilesIn(const std::string& path) const;
  std::string Variable(const std::string& name) const;  // empty when it is not set
};

}  // namespace oasiskv::oasisctl
