// One daemon's Admin, KvMemory and Health services, as the commands call them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "tools/oasisctl/command.h"

namespace oasiskv::v1 {
class DescribeResponse;
class GetCapacityResponse;
class ListGrantsRequest;
class ListGrantsResponse;
class ListSequencesRequest;
class ListSequencesResponse;
}  // namespace oasiskv::v1

namespace oasiskv::oasisctl {

// --address, --timeout and --json: flags of every command that asks a daemon.
std::vector<FlagSpec> CommonFlags();

// Thread contract: used by one thread at a time.
//
// Every call ends within the timeout. Errors carry the daemon's own code; PEER_LOST: no daemon
// answered.
class Connection {
 public:
  // To --address, or $OASISKV_ADDRESS, or 127.0.0.1:7400. Does not connect yet. Error:
  // INVALID_ARGUMENT.
  static absl::StatusOr<Connection> Make(const Arguments& arguments);
  Connection(Connection&&) noexcept;
  ~Connection();

  absl::Status GetCapacity(v1::GetCapacityResponse& response);
  absl::Status ListSequences(const v1::ListSequencesRequest& request,
                             v1::ListSequencesResponse& response);
  absl::Status ListGrants(const v1::ListGrantsRequest& request, v1::ListGrantsResponse& response);
  absl::Status Describe(v1::DescribeResponse& response);
  // "SERVING", "NOT_SERVING", ... of the daemon as a whole.
  absl::StatusOr<std::string> Health();
  // Calls `got` for every answer until it returns false or the daemon ends the stream.
  absl::Status WatchCapacity(Duration interval,
                             const std::function<bool(const v1::GetCapacityResponse&)>& got);
  const std::string& address() const;

 private:
  struct Impl;
  explicit Connection(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Prints the error to stderr and returns its exit code.
int Report(const absl::Status& status);
// The same for an error in the command line.
int Usage(const absl::Status& status);

}  // namespace oasiskv::oasisctl
