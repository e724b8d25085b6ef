// Values that daemon and client both send and receive, to protobuf messages and back. No protobuf
// header.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "oasiskv/geometry.h"
#include "oasiskv/ids.h"

namespace oasiskv::v1 {
class Geometry;
class Grant;
class Identity;
}  // namespace oasiskv::v1

namespace oasiskv::wire {

// A right to a sequence, as its holder is given it. The holder counts the lease from the moment it
// sent the call.
struct Grant {
  GrantId id;
  Epoch epoch;
  WordSlot word_slot;
  Duration lease{0};
  std::vector<FrameAddress> frames;  // by block
};

// Thread contract: pure functions.
//
// Into structs they refuse what a struct cannot hold (INVALID_ARGUMENT naming the field); whether a
// value makes sense is for the caller to say.
void ToMessage(const Identity& identity, v1::Identity& message);
Identity FromMessage(const v1::Identity& message);
void ToMessage(const Geometry& geometry, v1::Geometry& message);
absl::StatusOr<Geometry> FromMessage(const v1::Geometry& message);
void ToMessage(const Grant& grant, v1::Grant& message);
Grant FromMessage(const v1::Grant& message);

}  // namespace oasiskv::wire
