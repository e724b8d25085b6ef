// How a step on the device asks the host for blocks that it does not hold, and waits for them. All
// plain data: the kernels and the proxy thread share it.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/layout.h"

namespace oasiskv::gpu {

// One exchange in pinned host memory. The device writes all but `released`. The items belong to
// exchange `ready` if `writing` still equals it after they were read: a new exchange begins when
// the device has stopped waiting for the last, which the host may then still be reading (and which
// nobody waits for any more).
struct alignas(64) BoxHeader {
  uint64_t writing = 0;   // the exchange whose items are being written, or were last
  uint64_t ready = 0;     // the last whose items are all there (stored last, with release order)
  uint64_t released = 0;  // by the host: the last that it has done with, whatever became of it
  uint32_t count = 0;
  uint32_t layer = 0;
};

// The device's own notes of an exchange, device memory.
struct BoxNotes {
  uint64_t sequence = 0;
  uint64_t posted_ns = 0;
  uint32_t pending = 0;  // items of the exchange under way
  uint32_t pad = 0;
};

struct Box {
  BoxHeader* header = nullptr;  // pinned
  PlanItem* items = nullptr;    // pinned, [capacity of the plan]
  BoxNotes* notes = nullptr;    // device
};

// Copies the plan's items whose frames this host does not hold into the box, and rings. Nothing is
// posted when all are held.
LaunchError PostMisses(const Shape& shape, uint32_t layer, const Plan& plan,
                       const HeadSource* sources, const Box& box, Stream stream);

enum class WhenLate : uint32_t { kRefuse = 0, kRefuseAndReport = 1 };
// Holds the stream until the host has released the exchange, `limit_ns` after it was posted at the
// latest. Items whose frames are still missing then are marked kItemRefused; kRefuseAndReport says
// so in the error word when it was the limit. A prediction's that are missing when the limit has
// passed count as late.
LaunchError AwaitMisses(const Shape& shape, uint32_t layer, const Plan& plan,
                        const HeadSource* sources, const Box& box, uint64_t limit_ns, WhenLate late,
                        SlotCounters* counters, ErrorWord* error, Stream stream);

}  // namespace oasiskv::gpu
