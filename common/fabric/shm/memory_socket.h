// Unix sockets that carry whole messages and descriptors, and whom they talk to.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mapped_memory.h"

namespace oasiskv::fabric::shm {

// Thread contract: not safe for concurrent use; a move-only owner.
//
// A listening socket and its file, which goes with it unless another daemon has put its own there.
class ListeningSocket {
 public:
  // Replaces the file of a dead daemon. `mode` is the file's; `gid` its group, or -1. Errors: see
  // ServeShm.
  static absl::StatusOr<ListeningSocket> Bind(const std::string& path, mode_t mode, int64_t gid);

  ListeningSocket(ListeningSocket&&) = default;
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket();

  int fd() const { return fd_.get(); }

 private:
  ListeningSocket(UniqueFd fd, std::string path, dev_t device, ino_t inode)
      : fd_(std::move(fd)), path_(std::move(path)), device_(device), inode_(inode) {}

  UniqueFd fd_;
  std::string path_;
  dev_t device_;
  ino_t inode_;
};

// PEER_LOST when nobody listens at `path` or the listener takes nobody until `deadline`.
absl::StatusOr<UniqueFd> ConnectTo(const std::string& path, MonotonicTime deadline);

// Who is at the other end, as the kernel recorded it when the connection was made.
struct PeerIdentity {
  uint32_t uid = 0;
  uint32_t gid = 0;
  int32_t pid = 0;
  std::vector<gid_t> groups;  // supplementary ones
};
absl::StatusOr<PeerIdentity> IdentityOf(int socket);

// Sends one message without blocking; false with errno set when it did not go out.
bool SendMessage(int socket, std::span<const std::byte> message, std::span<const int> descriptors);

struct ReceivedMessage {
  size_t bytes = 0;  // 0: end of the stream, or an empty message
  std::vector<UniqueFd> descriptors;
};
// Receives one message with its descriptors, at the latest until `deadline`. PEER_LOST when the
// peer is gone or silent, INTERNAL when the message is larger than `buffer` or its descriptors did
// not all arrive.
absl::StatusOr<ReceivedMessage> ReceiveMessage(int socket, std::span<std::byte> buffer,
                                               MonotonicTime deadline);

// A number nobody can guess, never 0.
absl::StatusOr<uint64_t> RandomToken();

}  // namespace oasiskv::fabric::shm
