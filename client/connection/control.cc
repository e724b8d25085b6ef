#include "client/connection/control.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "oasiskv/v1/kv_memory.grpc.pb.h"
#include "oasiskv/v1/kv_memory.pb.h"

namespace oasiskv::client {
namespace {

// Checksums of a whole shard come with the attach (4 bytes an entry): 16 million entries fit.
constexpr int kMaxReceiveBytes = 64 << 20;
// A restarted daemon is found again soon; the session adds its own back-off with jitter above it.
constexpr int kReconnectBackoffMs = 50;
constexpr int kMaxReconnectBackoffMs = 1000;

// An answer may be lost with its connection: the call is repeated, soon, and not for long, since the
// daemon may be gone too.
constexpr int kMostRepeats = 3;
constexpr auto kFirstPause = std::chrono::milliseconds(5);
constexpr char kErrorCodeKey[] = "oasiskv-error-code";

uint64_t ToMillis(Duration d) {
  // Rounded up: 0 would mean "the default" to the daemon.
  return static_cast<uint64_t>(
      std::chrono::ceil<std::chrono::milliseconds>(std::max(d, Duration{0})).count());
}

Duration FromMillis(uint64_t ms) {
  constexpr uint64_t kMost = uint64_t{1} << 40;  // centuries; keeps nanoseconds in range
  return std::chrono::milliseconds(static_cast<int64_t>(std::min(ms, kMost / 1000)));
}

void Fill(GrantKey from, v1::GrantRef* to) {
  to->set_grant_id(from.id.value());
  to->set_epoch(from.epoch.value());
}

GivenGrant ToGrant(const v1::Grant& message, MonotonicTime sent) {
  wire::Grant grant = wire::FromMessage(message);
  return {{grant.id, grant.epoch}, grant.word_slot, grant.lease, sent, std::move(grant.frames)};
}

}  // namespace

CallToken DrawToken() {
  std::random_device device;
  const uint64_t bits = uint64_t{device()} << 32 | device();
  return CallToken(std::max<uint64_t>(bits, 1));
}

struct ControlChannel::Rpc {
  std::string address;
  std::unique_ptr<v1::KvMemory::Stub> stub;

  absl::Status ToStatus(const char* method, const grpc::ClientContext& context,
                        const grpc::Status& status) const;

  template <typename Request, typename Response>
  absl::Status Call(const char* method,
                    grpc::Status (v1::KvMemory::Stub::*call)(grpc::ClientContext*, const Request&,
                                                             Response*),
                    const Request& request, Response* response, Duration timeout) const {
    const auto deadline = std::chrono::system_clock::now() +
                          std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout);
    auto pause = kFirstPause;
    for (int repeats = 0;; ++repeats, pause *= 4) {
      grpc::ClientContext context;
      context.set_deadline(deadline);
      const grpc::Status status = ((*stub).*call)(&context, request, response);
      if (status.ok()) return absl::OkStatus();
      const bool lost = status.error_code() == grpc::StatusCode::UNAVAILABLE &&
                        !context.GetServerTrailingMetadata().contains(kErrorCodeKey);
      if (!lost || repeats == kMostRepeats || std::chrono::system_clock::now() + pause > deadline) {
        return ToStatus(method, context, status);
      }
      std::this_thread::sleep_for(pause);
    }
  }
};

absl::Status ControlChannel::Rpc::ToStatus(const char* method, const grpc::ClientContext& context,
                                           const grpc::Status& status) const {
  const auto& trailers = context.GetServerTrailingMetadata();
  if (auto it = trailers.find(kErrorCodeKey); it != trailers.end()) {
    int value = 0;
    if (absl::SimpleAtoi(std::string(it->second.data(), it->second.size()), &value) && value != 0) {
      const auto code = static_cast<ErrorCode>(value);
      // The daemon's text begins with the code's name, which MakeError puts there again.
      const std::string message = status.error_message();
      absl::string_view text = message;
      const std::string prefix = absl::StrCat(ErrorCodeName(code), ": ");
      if (absl::StartsWith(text, prefix)) text.remove_prefix(prefix.size());
      return MakeError(code, text);
    }
  }
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return MakeError(ErrorCode::kPeerLost,
                     absl::StrCat(method, ": the daemon at ", address, " cannot be reached (",
                                  status.error_message(),
                                  "); check that oasiskvd runs there and the address is right"));
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return MakeError(ErrorCode::kDeadlineExceeded,
                     absl::StrCat(method, ": no answer from the daemon at ", address,
                                  " within the call's timeout (ClientOptions.rpc_timeout)"));
  }
  const absl::Status plain(static_cast<absl::StatusCode>(status.error_code()),
                           status.error_message());
  return MakeError(ErrorCodeOf(plain), absl::StrCat(method, ": ", status.error_message()));
}

ControlChannel::ControlChannel(const std::string& address) : rpc_(std::make_unique<Rpc>()) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectBackoffMs);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectBackoffMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectBackoffMs);
  // A new session must not inherit the back-off of the one before it.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A daemon is reached directly; an HTTP proxy of the environment is meant for other traffic.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  rpc_->address = address;
  rpc_->stub = v1::KvMemory::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
}

ControlChannel::~ControlChannel() = default;

absl::StatusOr<DaemonInfo> ControlChannel::Describe(Duration timeout) {
  v1::DescribeResponse response;
  OASISKV_RETURN_IF_ERROR(rpc_->Call("Describe", &v1::KvMemory::Stub::Describe,
                                     v1::DescribeRequest(), &response, timeout));
  DaemonInfo info;
  info.version = response.daemon_version();
  info.incarnation = response.incarnation();
  for (const v1::Endpoint& endpoint : response.endpoints()) {
    info.endpoints.push_back({endpoint.fabric(), endpoint.address(), endpoint.description()});
  }
  info.max_blob_bytes = response.max_blob_bytes();
  info.draining = response.draining();
  return info;
}

absl::StatusOr<GivenGrant> ControlChannel::Open(const OpenCall& call, Duration timeout) {
  v1::OpenRequest request;
  request.set_name(call.name);
  wire::ToMessage(call.identity, *request.mutable_identity());
  wire::ToMessage(call.geometry, *request.mutable_geometry());
  request.set_blocks(call.blocks);
  request.set_lease_ms(ToMillis(call.lease));
  request.set_writer_connection(call.connection.value());
  request.set_checksums(call.checksums);
  request.set_token(call.token.value());
  v1::OpenResponse response;
  const MonotonicTime sent = Clock::Real().Now();
  OASISKV_RETURN_IF_ERROR(
      rpc_->Call("Open", &v1::KvMemory::Stub::Open, request, &response, timeout));
  GivenGrant given = ToGrant(response.grant(), sent);
  given.sequence = SequenceId(response.sequence_id());
  return given;
}

absl::StatusOr<std::vector<FrameAddress>> ControlChannel::Extend(GrantKey grant,
                                                                 uint32_t first_block,
                                                                 uint32_t blocks,
                                                                 Duration timeout) {
  v1::ExtendRequest request;
  request.set_grant_id(grant.id.value());
  request.set_epoch(grant.epoch.value());
  request.set_expected_first_block(first_block);
  request.set_blocks(blocks);
  v1::ExtendResponse response;
  OASISKV_RETURN_IF_ERROR(
      rpc_->Call("Extend", &v1::KvMemory::Stub::Extend, request, &response, timeout));
  if (response.first_block() != first_block || response.frames_size() != static_cast<int>(blocks)) {
    return MakeError(ErrorCode::kInternal,
                     absl::StrCat("Extend: blocks [", first_block, ", ", first_block + blocks,
                                  ") asked, the daemon gave ", response.frames_size(), " from ",
                                  response.first_block()));
  }
  std::vector<FrameAddress> frames;
  frames.reserve(response.frames_size());
  for (const uint64_t frame : response.frames()) frames.push_back(FrameAddress::Unpack(frame));
  return frames;
}

absl::Status ControlChannel::Commit(GrantKey grant, std::span<const LayerBlocks> ranges,
                                    std::span<const uint32_t> checksums, Duration timeout) {
  v1::CommitRequest request;
  request.set_grant_id(grant.id.value());
  request.set_epoch(grant.epoch.value());
  for (const LayerBlocks& range : ranges) {
    v1::LayerBlocks* out = request.add_ranges();
    out->set_first_layer(range.first_layer);
    out->set_layer_count(range.layer_count);
    out->set_first_block(range.first_block);
    out->set_block_count(range.block_count);
  }
  request.mutable_checksums()->Add(checksums.begin(), checksums.end());
  v1::CommitResponse response;
  return rpc_->Call("Commit", &v1::KvMemory::Stub::Commit, request, &response, timeout);
}

absl::Status ControlChannel::Seal(GrantKey grant, const SealCall& call, Duration timeout) {
  v1::SealRequest request;
  request.set_grant_id(grant.id.value());
  request.set_epoch(grant.epoch.value());
  request.set_token_count(call.token_count);
  request.set_first_topk(call.first_topk.data(), call.first_topk.size() * sizeof(int32_t));
  request.set_first_topk_k(call.first_topk_k);
  request.set_blob(call.blob);
  v1::SealResponse response;
  return rpc_->Call("Seal", &v1::KvMemory::Stub::Seal, request, &response, timeout);
}

absl::StatusOr<Attached> ControlChannel::Attach(const AttachCall& call, Duration timeout) {
  v1::AttachRequest request;
  request.set_name(call.name);
  wire::ToMessage(call.identity, *request.mutable_identity());
  wire::ToMessage(call.geometry, *request.mutable_geometry());
  request.set_first_head(call.first_head);
  request.set_head_count(call.head_count);
  request.set_lease_ms(ToMillis(call.lease));
  request.set_wait_for_seal_ms(ToMillis(call.wait_for_seal));
  request.set_token(call.token.value());
  v1::AttachResponse response;
  const MonotonicTime sent = Clock::Real().Now();
  OASISKV_RETURN_IF_ERROR(rpc_->Call("Attach", &v1::KvMemory::Stub::Attach, request, &response,
                                     timeout + std::max(call.wait_for_seal, Duration{0})));
  Attached out;
  out.grant = ToGrant(response.grant(), sent);
  out.sealed = response.state() == v1::SEQUENCE_STATE_SEALED;
  out.token_count = response.token_count();
  for (const v1::LayerBlocks& run : response.committed()) {
    out.committed.push_back(
        {run.first_layer(), run.layer_count(), run.first_block(), run.block_count()});
  }
  out.first_topk.resize(response.first_topk().size() / sizeof(int32_t));
  if (!out.first_topk.empty()) {  // an empty vector has no address, which memcpy may not be given
    std::memcpy(out.first_topk.data(), response.first_topk().data(),
                out.first_topk.size() * sizeof(int32_t));
  }
  out.first_topk_k = response.first_topk_k();
  out.blob = std::move(*response.mutable_blob());
  out.checksums.assign(response.checksums().begin(), response.checksums().end());
  return out;
}

absl::StatusOr<Renewed> ControlChannel::Renew(std::span<const GrantKey> grants, Duration lease,
                                              Duration timeout) {
  v1::RenewRequest request;
  for (GrantKey grant : grants) Fill(grant, request.add_grants());
  request.set_lease_ms(ToMillis(lease));
  v1::RenewResponse response;
  const MonotonicTime sent = Clock::Real().Now();
  OASISKV_RETURN_IF_ERROR(
      rpc_->Call("Renew", &v1::KvMemory::Stub::Renew, request, &response, timeout));
  Renewed out;
  out.lease = FromMillis(response.lease_ms());
  out.sent = sent;
  out.incarnation = response.incarnation();
  for (const auto& lost : response.lost()) {
    out.lost.push_back({GrantId(lost.grant_id()), static_cast<ErrorCode>(lost.reason())});
  }
  return out;
}

absl::Status ControlChannel::Release(std::span<const GrantKey> grants, Duration timeout) {
  v1::ReleaseRequest request;
  for (GrantKey grant : grants) Fill(grant, request.add_grants());
  v1::ReleaseResponse response;
  return rpc_->Call("Release", &v1::KvMemory::Stub::Release, request, &response, timeout);
}

absl::StatusOr<uint32_t> ControlChannel::ReleaseSequences(const std::vector<std::string>& names,
                                                          const Identity& identity, CallToken token,
                                                          Duration timeout) {
  v1::ReleaseRequest request;
  for (const std::string& name : names) request.add_sequences()->set_name(name);
  wire::ToMessage(identity, *request.mutable_identity());
  request.set_token(token.value());
  v1::ReleaseResponse response;
  OASISKV_RETURN_IF_ERROR(
      rpc_->Call("Release", &v1::KvMemory::Stub::Release, request, &response, timeout));
  return response.sequences_released();
}

absl::StatusOr<uint32_t> ControlChannel::Abort(const std::string& name, SequenceId sequence,
                                               const Identity& identity, const std::string& reason,
                                               CallToken token, Duration timeout) {
  v1::AbortRequest request;
  request.set_name(name);
  request.set_sequence_id(sequence.value());
  request.set_token(token.value());
  wire::ToMessage(identity, *request.mutable_identity());
  request.set_reason(reason);
  v1::AbortResponse response;
  OASISKV_RETURN_IF_ERROR(
      rpc_->Call("Abort", &v1::KvMemory::Stub::Abort, request, &response, timeout));
  return response.grants_revoked();
}

absl::Status ControlChannel::AbandonOpen(CallToken open, Duration timeout) {
  v1::AbortRequest request;
  request.set_open_token(open.value());
  v1::AbortResponse response;
  return rpc_->Call("Abort", &v1::KvMemory::Stub::Abort, request, &response, timeout);
}

absl::StatusOr<std::string> ControlChannel::ConnectFabric(const std::string& fabric,
                                                          const std::string& client_hello,
                                                          Duration timeout) {
  v1::ConnectFabricRequest request;
  request.set_fabric(fabric);
  request.set_client_hello(client_hello);
  v1::ConnectFabricResponse response;
  OASISKV_RETURN_IF_ERROR(
      rpc_->Call("ConnectFabric", &v1::KvMemory::Stub::ConnectFabric, request, &response, timeout));
  return std::move(*response.mutable_server_hello());
}

absl::Status ControlChannel::FenceWriter(const std::string& fabric, ConnectionId connection,
                                         GrantId grant, Duration timeout) {
  v1::FenceWriterRequest request;
  request.set_fabric(fabric);
  request.set_connection(connection.value());
  request.set_grant_id(grant.value());
  v1::FenceWriterResponse response;
  return rpc_->Call("FenceWriter", &v1::KvMemory::Stub::FenceWriter, request, &response, timeout);
}

absl::Status ControlChannel::DisconnectFabric(const std::string& fabric, ConnectionId connection,
                                              Duration timeout) {
  v1::DisconnectFabricRequest request;
  request.set_fabric(fabric);
  request.set_connection(connection.value());
  v1::DisconnectFabricResponse response;
  return rpc_->Call("DisconnectFabric", &v1::KvMemory::Stub::DisconnectFabric, request, &response,
                    timeout);
}

}  // namespace oasiskv::client
