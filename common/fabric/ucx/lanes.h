// Which transports UCX chose for an endpoint, read from what it says about it.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace oasiskv::fabric::ucx {

struct Lane {
  int index = 0;
  std::string transport;          // "rc_verbs"; empty for the lane that only makes connections
  std::string device;             // "mlx5_0:1"
  bool remote_memory = false;     // get and put go over it
  bool active_messages = false;   // messages go over it
  bool only_connections = false;  // carries no data: wire-up, keep-alive
};

// Thread contract: a value.
struct Lanes {
  std::vector<Lane> lanes;
  // Get and put go over lanes, and each of these is one whose device checks keys and bounds (RC and
  // DC queue pairs). Where UCX names no lane for them it emulates them by active messages, whose
  // receiver checks nothing.
  bool one_sided = false;

  // The lane that data goes over, for people and metrics: transport, and transport/device.
  std::string Transport() const;
  std::string TransportAndDevice() const;

 private:
  const Lane* Data() const;
};

// Reads the text of ucp_ep_print_info. Never fails: a text that it does not understand has no lane
// for remote memory.
Lanes ParseLanes(absl::string_view text);

}  // namespace oasiskv::fabric::ucx
