// Verbs objects as owned objects. Included by the .cc files and internal headers of this folder
// only.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

namespace oasiskv::fabric::verbs {

template <auto Free>
struct VerbsDeleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

// Thread contract: move-only owners, not safe for concurrent use. Each must go before what it was
// made from.
using Context = std::unique_ptr<ibv_context, VerbsDeleter<&ibv_close_device>>;
using ProtectionDomain = std::unique_ptr<ibv_pd, VerbsDeleter<&ibv_dealloc_pd>>;
using CompletionChannel =
    std::unique_ptr<ibv_comp_channel, VerbsDeleter<&ibv_destroy_comp_channel>>;
using CompletionQueue = std::unique_ptr<ibv_cq, VerbsDeleter<&ibv_destroy_cq>>;
using MemoryRegion = std::unique_ptr<ibv_mr, VerbsDeleter<&ibv_dereg_mr>>;
using QueuePair = std::unique_ptr<ibv_qp, VerbsDeleter<&ibv_destroy_qp>>;

}  // namespace oasiskv::fabric::verbs
