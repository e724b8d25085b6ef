#include "client/c_api/convert.h"
#include "client/c_api/handles.h"
#include "common/status_macros.h"

// This file defines extern "C" names only.
using namespace oasiskv;         // NOLINT(google-build-using-namespace)
using namespace oasiskv::c_api;  // NOLINT(google-build-using-namespace)

int oasiskv_client_connect(const oasiskv_client_options* options, oasiskv_client** out) {
  return With("out", out, [&]() -> absl::Status {
    oasiskv_client_options in;
    OASISKV_RETURN_IF_ERROR(ReadStruct(options, "options", in));
    ClientOptions o;
    if (in.address != nullptr) o.address = in.address;
    if (in.fabric != nullptr) o.fabric = in.fabric;
    if (in.rpc_timeout_ms != 0) o.rpc_timeout = Milliseconds(in.rpc_timeout_ms);
    if (in.read_timeout_ms != 0) o.read_timeout = Milliseconds(in.read_timeout_ms);
    o.lease = Milliseconds(in.lease_ms);
    o.verify_checksums = in.verify_checksums != 0;
    o.verbs_device = OrEmpty(in.verbs_device);
    o.verbs_port = in.verbs_port;
    if (in.verbs_gid_given != 0) o.verbs_gid_index = in.verbs_gid_index;
    o.verbs_peer_timeout = Milliseconds(in.verbs_peer_timeout_ms);
    NoteFirstHandle();
    return Give(Client::Connect(o), out);
  });
}

void oasiskv_client_free(oasiskv_client* client) { Free(client); }

int oasiskv_client_health(oasiskv_client* client) {
  return With("client", client, [&] { return client->client->Health(); });
}

int oasiskv_client_describe(oasiskv_client* client, char* buffer, size_t size) {
  return With("client", client, [&]() -> absl::Status {
    if (buffer == nullptr || size == 0) return NullArgument("buffer");
    const std::string text = client->client->Describe();
    const size_t n = std::min(size - 1, text.size());
    std::memcpy(buffer, text.data(), n);
    buffer[n] = 0;
    return absl::OkStatus();
  });
}

int oasiskv_client_stats_get(oasiskv_client* client, oasiskv_client_stats* out) {
  return With("client", client, [&]() -> absl::Status {
    const ClientStats s = client->client->Stats();
    oasiskv_client_stats c{};
    c.reads = s.reads;
    c.writes = s.writes;
    c.pieces = s.pieces;
    c.requests = s.requests;
    c.bytes_read = s.bytes_read;
    c.bytes_written = s.bytes_written;
    c.request_bytes = s.request_bytes;
    c.grant_checks = s.grant_checks;
    c.stale_reads = s.stale_reads;
    c.expired_reads = s.expired_reads;
    c.deadline_reads = s.deadline_reads;
    c.failed_reads = s.failed_reads;
    c.checksums_verified = s.checksums_verified;
    c.checksum_failures = s.checksum_failures;
    c.reconnects = s.reconnects;
    c.renewals = s.renewals;
    c.grants_lost = s.grants_lost;
    c.timed_reads = s.timed_reads;
    c.prepare_ns = s.prepare_ns;
    c.post_ns = s.post_ns;
    c.wire_ns = s.wire_ns;
    c.bytes_direct = s.bytes_direct;
    c.bytes_bounced = s.bytes_bounced;
    return WriteStruct(c, "out", out);
  });
}

int oasiskv_client_release_sequence(oasiskv_client* client, const char* name,
                                    const oasiskv_identity* identity, uint32_t* released) {
  return With("client", client, [&]() -> absl::Status {
    if (name == nullptr) return NullArgument("name");
    OASISKV_ASSIGN_OR_RETURN(Identity id, ToIdentity(identity));
    OASISKV_ASSIGN_OR_RETURN(uint32_t n, client->client->ReleaseSequences({name}, id));
    if (released != nullptr) *released = n;
    return absl::OkStatus();
  });
}

int oasiskv_client_abort(oasiskv_client* client, const char* name, const oasiskv_identity* identity,
                         const char* reason, uint32_t* grants_revoked) {
  return With("client", client, [&]() -> absl::Status {
    if (name == nullptr) return NullArgument("name");
    OASISKV_ASSIGN_OR_RETURN(Identity id, ToIdentity(identity));
    OASISKV_ASSIGN_OR_RETURN(uint32_t n, client->client->Abort(name, id, OrEmpty(reason)));
    if (grants_revoked != nullptr) *grants_revoked = n;
    return absl::OkStatus();
  });
}

int oasiskv_buffer_register(oasiskv_client* client, void* memory, size_t size,
                            oasiskv_buffer** out) {
  return With("client", client, [&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    return Give(client->client->RegisterBuffer({static_cast<std::byte*>(memory), size}), out);
  });
}

int oasiskv_buffer_direct(oasiskv_buffer* buffer, uint32_t* direct) {
  return With("buffer", buffer, [&]() -> absl::Status {
    if (direct == nullptr) return NullArgument("direct");
    *direct = buffer->buffer.direct() ? 1 : 0;
    return absl::OkStatus();
  });
}

void oasiskv_buffer_free(oasiskv_buffer* buffer) { Free(buffer); }
