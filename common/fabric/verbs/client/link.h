// The client's end of one connection: the opened port and what is made on it once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fabric/verbs/client/traffic.h"
#include "common/fabric/verbs/handles.h"
#include "common/fabric/verbs/hello.h"
#include "common/fabric/verbs/port.h"
#include "common/fabric/verbs/verbs.h"
#include "common/mapped_memory.h"

namespace oasiskv::fabric::verbs {

// Thread contract: constant after Connect. Must outlive everything made on its domain: queue pairs,
// regions, bounce areas.
class Link {
 public:
  // Errors: those of OpenPort; INVALID_ARGUMENT (options out of range), UNSUPPORTED (the device
  // cannot read), CAPACITY, INTERNAL.
  static absl::StatusOr<Link> Open(const VerbsConnectOptions& options);

  // The queue pairs of one connection, not yet connected.
  absl::StatusOr<std::vector<Pair>> MakePairs() const;
  ClientHello Hello(std::span<const Pair> pairs) const;
  // Connects `pairs` to what the daemon answered. STALE when it is another daemon.
  absl::Status Connect(const ServerHello& hello, std::span<Pair> pairs);

  const VerbsConnectOptions& options() const { return options_; }
  const Port& port() const { return port_; }
  const GidEntry& gid() const { return gid_; }
  const ServerHello& server() const { return server_; }
  ibv_pd* domain() const { return domain_.get(); }
  ibv_comp_channel* channel() const { return channel_.get(); }
  ibv_cq* completions() const { return completions_.get(); }
  uint32_t depth() const { return depth_; }    // work requests that one queue pair holds
  uint32_t window() const { return window_; }  // part of `depth`: for data
  uint32_t places() const { return options_.queue_pairs * depth_; }
  // Where the chunk of that place reads a grant word to.
  std::byte* word(uint64_t place) const { return words_.data() + place * sizeof(uint64_t); }
  uint32_t words_key() const { return words_key_->lkey; }

 private:
  Link(const VerbsConnectOptions& options, Port port, const GidEntry& gid)
      : options_(options), port_(std::move(port)), gid_(gid) {}
  absl::Status MakeObjects();

  VerbsConnectOptions options_;
  Port port_;
  GidEntry gid_;
  uint32_t max_rd_atomic_ = 0;  // of this side
  uint32_t depth_ = 0, window_ = 0;
  ServerHello server_;
  // Destroyed from the last to the first.
  ProtectionDomain domain_;
  CompletionChannel channel_;
  CompletionQueue completions_;
  UniqueFd words_fd_;
  Mapping words_;  // uint64_t[places]
  MemoryRegion words_key_;
};

}  // namespace oasiskv::fabric::verbs
