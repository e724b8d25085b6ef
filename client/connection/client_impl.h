// What stands behind Client, for the files that define its calls by subject.
#pragma once

#include <memory>
#include <utility>

#include "client/connection/core.h"
#include "oasiskv/client.h"

namespace oasiskv {

// Thread contract: safe for concurrent use.
class Client::Impl {
 public:
  explicit Impl(std::shared_ptr<client::Core> made) : core(std::move(made)) {}
  const std::shared_ptr<client::Core> core;
};

}  // namespace oasiskv
