#include "common/fabric/shm/memory_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/fabric/shm/protocol.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::shm {
namespace {

constexpr int kBacklog = 128;
constexpr auto kStartLockPatience = std::chrono::seconds(5);
constexpr auto kRetryPause = std::chrono::milliseconds(5);

absl::Status ErrnoError(ErrorCode code, absl::string_view what, int error) {
  return MakeError(code, absl::StrFormat("%s: %s", what, std::strerror(error)));
}

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrFormat("the shm socket's path '%s' has %d bytes; a Unix socket takes 1 to %d, so "
                        "choose a shorter one with --shm_socket",
                        path, path.size(), sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<UniqueFd> NewSocket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoError(ErrorCode::kInternal, "socket(AF_UNIX)", errno);
  return fd;
}

int Connect(int fd, const sockaddr_un& address) {
  const int rc = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  return rc == 0 ? 0 : errno;
}

// Two daemons that find the same dead socket file at once must not remove each other's new one, so
// looking, removing and binding happen under a lock of the folder. It leaves no file behind and
// goes with its holder.
absl::StatusOr<UniqueFd> LockFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path.substr(0, slash);
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) {
    return MakeError(ErrorCode::kInternal,
                     absl::StrFormat("the folder '%s' of the shm socket: %s; make it, or choose "
                                     "another path with --shm_socket",
                                     folder, std::strerror(errno)));
  }
  const auto give_up = Clock::Real().Now() + kStartLockPatience;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return ErrnoError(ErrorCode::kInternal, absl::StrFormat("flock(%s)", folder), errno);
    }
    if (Clock::Real().Now() > give_up) {
      return MakeError(ErrorCode::kInternal,
                       absl::StrFormat("another process keeps the folder '%s' locked (flock); "
                                       "choose another path with --shm_socket",
                                       folder));
    }
    std::this_thread::sleep_for(kRetryPause);
  }
  return fd;
}

// Makes room at `path` for a new socket file. REQUIRES: the folder's lock.
absl::Status RemoveDeadSocket(const std::string& path, const sockaddr_un& address) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoError(ErrorCode::kInternal, absl::StrFormat("lstat(%s)", path), errno);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return MakeError(ErrorCode::kAlreadyExists,
                     absl::StrFormat("'%s' is there and is no socket; remove it, or choose another "
                                     "path with --shm_socket",
                                     path));
  }
  OASISKV_ASSIGN_OR_RETURN(UniqueFd probe, NewSocket());
  // Only a refusal proves that nobody listens: a full queue, or a right that we lack, speaks of
  // someone alive.
  if (const int error = Connect(probe.get(), address); error != ECONNREFUSED && error != ENOENT) {
    return MakeError(ErrorCode::kAlreadyExists,
                     absl::StrFormat("another daemon serves the shm socket '%s' (%s); stop it, or "
                                     "choose another path with --shm_socket",
                                     path, error == 0 ? "it answers" : std::strerror(error)));
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoError(ErrorCode::kInternal, absl::StrFormat("unlink(%s)", path), errno);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ListeningSocket> ListeningSocket::Bind(const std::string& path, mode_t mode,
                                                      int64_t gid) {
  OASISKV_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  OASISKV_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  OASISKV_ASSIGN_OR_RETURN(const UniqueFd lock, LockFolderOf(path));
  OASISKV_RETURN_IF_ERROR(RemoveDeadSocket(path, address));
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoError(ErrorCode::kInternal, absl::StrFormat("bind(%s)", path), errno);
  }
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) {
    return ErrnoError(ErrorCode::kInternal, absl::StrFormat("lstat(%s)", path), errno);
  }
  ListeningSocket socket(std::move(fd), path, info.st_dev, info.st_ino);
  // Before listen: until then nobody can connect, whatever the mode.
  if (gid >= 0 && ::chown(path.c_str(), static_cast<uid_t>(-1), static_cast<gid_t>(gid)) != 0) {
    return ErrnoError(ErrorCode::kInternal, absl::StrFormat("chown(%s, group %d)", path, gid),
                      errno);
  }
  if (::chmod(path.c_str(), mode) != 0) {
    return ErrnoError(ErrorCode::kInternal, absl::StrFormat("chmod(%s, %o)", path, mode), errno);
  }
  if (::listen(socket.fd(), kBacklog) != 0) {
    return ErrnoError(ErrorCode::kInternal, absl::StrFormat("listen(%s)", path), errno);
  }
  return socket;
}

ListeningSocket::~ListeningSocket() {
  if (!fd_) return;
  struct stat info;
  if (::lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
}

absl::StatusOr<UniqueFd> ConnectTo(const std::string& path, MonotonicTime deadline) {
  OASISKV_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  OASISKV_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  while (true) {
    const int error = Connect(fd.get(), address);
    if (error == 0) return fd;
    // The queue of a listener that takes nobody now (stopped, or just starting) is full.
    if ((error == EAGAIN || error == EINTR) && Clock::Real().Now() < deadline) {
      std::this_thread::sleep_for(kRetryPause);
      continue;
    }
    if (error == EACCES || error == EPERM) {
      return MakeError(ErrorCode::kPermissionDenied,
                       absl::StrFormat("this user may not open the shm socket '%s': run as the "
                                       "daemon's user, or let the daemon allow this one",
                                       path));
    }
    return MakeError(
        ErrorCode::kPeerLost,
        absl::StrFormat("nobody answers at the shm socket '%s': %s", path, std::strerror(error)));
  }
}

absl::StatusOr<PeerIdentity> IdentityOf(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoError(ErrorCode::kInternal, "getsockopt(SO_PEERCRED)", errno);
  }
  PeerIdentity peer{credentials.uid, credentials.gid, credentials.pid, {}};
  length = 0;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, nullptr, &length) != 0 && errno == ERANGE) {
    peer.groups.resize(length / sizeof(gid_t));
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, peer.groups.data(), &length) != 0) {
      return ErrnoError(ErrorCode::kInternal, "getsockopt(SO_PEERGROUPS)", errno);
    }
  }
  return peer;
}

bool SendMessage(int socket, std::span<const std::byte> message, std::span<const int> descriptors) {
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  std::vector<std::byte> control;
  if (!descriptors.empty()) {
    control.resize(CMSG_SPACE(descriptors.size_bytes()));
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(message.size());
}

absl::StatusOr<ReceivedMessage> ReceiveMessage(int socket, std::span<std::byte> buffer,
                                               MonotonicTime deadline) {
  std::vector<std::byte> control(CMSG_SPACE(kMaxDescriptors * sizeof(int)));
  bool reset_seen = false;
  while (true) {
    iovec part{buffer.data(), buffer.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t received = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received >= 0) {
      ReceivedMessage message{static_cast<size_t>(received), {}};
      for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
          int fd;
          std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
          message.descriptors.emplace_back(fd);
        }
      }
      if ((header.msg_flags & MSG_CTRUNC) != 0) {
        return MakeError(ErrorCode::kInternal,
                         "not all descriptors could be received; raise 'ulimit -n'");
      }
      if ((header.msg_flags & MSG_TRUNC) != 0) {
        return MakeError(ErrorCode::kInternal,
                         absl::StrFormat("a message larger than %d bytes came", buffer.size()));
      }
      return message;
    }
    // A peer that refuses before it has read our words resets the connection; its answer stands
    // behind the reset.
    if (errno == ECONNRESET && !std::exchange(reset_seen, true)) continue;
    if (errno != EAGAIN && errno != EINTR) {
      return ErrnoError(ErrorCode::kPeerLost, "the peer closed the connection", errno);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::Real().Now());
    if (left.count() <= 0) {
      return MakeError(ErrorCode::kPeerLost, "the peer did not answer in time");
    }
    pollfd waiting{socket, POLLIN, 0};
    ::poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left.count(), 60'000)));
  }
}

absl::StatusOr<uint64_t> RandomToken() {
  uint64_t token = 0;
  while (token == 0) {
    if (::getrandom(&token, sizeof(token), 0) != sizeof(token) && errno != EINTR) {
      return ErrnoError(ErrorCode::kInternal, "getrandom", errno);
    }
  }
  return token;
}

}  // namespace oasiskv::fabric::shm
