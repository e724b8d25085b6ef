// A writer that the service test kills or stops while it holds a grant: the test program itself,
// started once more as `--hold_writer ADDRESS`.
#pragma once

#include <unistd.h>

#include <chrono>

#include "tests/integration/client_fixture.h"

namespace oasiskv::testing {

// Writes a sequence of 64 tokens under a lease of 2 s, commits nothing and stays. Returns only
// where that failed: the process's exit code.
inline int HoldWriter(const ClientOptions& options) {
  const Content content(QwenLike(), 64, 1);
  auto client = Client::Connect(options);
  if (!client.ok()) return 1;
  ProducerSpec spec = SpecOf("held", content);
  spec.lease = std::chrono::seconds(2);
  auto producer = (*client)->Open(spec);
  if (!producer.ok() || !WriteAll(*producer, content).ok()) return 1;
  while (true) ::pause();
}

}  // namespace oasiskv::testing
