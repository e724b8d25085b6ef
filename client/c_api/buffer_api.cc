#include "client/c_api/guard.h"
#include "client/c_api/handles.h"
#include "common/status_macros.h"

// This file defines extern "C" names only.
using namespace oasiskv;         // NOLINT(google-build-using-namespace)
using namespace oasiskv::c_api;  // NOLINT(google-build-using-namespace)

int oasiskv_buffer_register(oasiskv_client* client, void* memory, size_t size,
                            oasiskv_buffer** out) {
  return Guard([&]() -> absl::Status {
    if (client == nullptr) return NullArgument("client");
    if (out == nullptr) return NullArgument("out");
    OASISKV_ASSIGN_OR_RETURN(RegisteredBuffer buffer, client->client->RegisterBuffer(
                                                          {static_cast<std::byte*>(memory), size}));
    *out = new oasiskv_buffer{std::move(buffer)};
    return absl::OkStatus();
  });
}

int oasiskv_buffer_direct(oasiskv_buffer* buffer, uint32_t* direct) {
  return Guard([&]() -> absl::Status {
    if (buffer == nullptr) return NullArgument("buffer");
    if (direct == nullptr) return NullArgument("direct");
    *direct = buffer->buffer.direct() ? 1 : 0;
    return absl::OkStatus();
  });
}

void oasiskv_buffer_free(oasiskv_buffer* buffer) { Free(buffer); }
