#include "tests/integration/control_stubs.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/strings/numbers.h"
#include "common/address.h"
#include "common/clock.h"
#include "common/fabric/registry.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "tests/support/shapes.h"

namespace oasiskv::testing {

std::ostream& operator<<(std::ostream& os, const Outcome& outcome) {
  return os << "[" << outcome.status.error_code() << " " << ErrorCodeName(outcome.code) << " "
            << outcome.status.error_message() << "]";
}

Outcome ToOutcome(const grpc::Status& status, const grpc::ClientContext& context) {
  Outcome out;
  out.status = status;
  const auto& trailers = context.GetServerTrailingMetadata();
  if (const auto it = trailers.find("oasiskv-error-code"); it != trailers.end()) {
    int code = 0;
    if (absl::SimpleAtoi(absl::string_view(it->second.data(), it->second.size()), &code)) {
      out.code = static_cast<ErrorCode>(code);
    }
  }
  return out;
}

ControlStubs::ControlStubs(const std::string& control_address) : address(control_address) {
  grpc::ChannelArguments arguments;
  // Every object has a connection of its own; gRPC would share one between equal channels.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel = grpc::CreateCustomChannel(GrpcTarget(*ParseAddress(control_address, 0)),
                                      grpc::InsecureChannelCredentials(), arguments);
  kv = v1::KvMemory::NewStub(channel);
  admin = v1::Admin::NewStub(channel);
  health = grpc::health::v1::Health::NewStub(channel);
}

Outcome ControlStubs::Extend(const v1::Grant& writer, uint32_t blocks,
                             v1::ExtendResponse* response) {
  v1::ExtendRequest request;
  request.set_grant_id(writer.id());
  request.set_epoch(writer.epoch());
  request.set_expected_first_block(static_cast<uint32_t>(writer.frames_size()));
  request.set_blocks(blocks);
  return Call(*kv, &v1::KvMemory::Stub::Extend, request, response);
}

absl::Status ControlStubs::Fill(const v1::Grant& writer, uint32_t blocks) {
  const fabric::Fabric* const ucx = fabric::FindFabric("ucx");
  v1::DescribeResponse daemon;
  if (const Outcome outcome = Describe(&daemon); !outcome.ok()) {
    return absl::InternalError(outcome.status.error_message());
  }
  fabric::ConnectTarget target;
  target.control_address = address;
  target.incarnation = daemon.incarnation();
  target.access = fabric::Access::kWrite;
  target.timeout = std::chrono::seconds(10);
  for (const v1::Endpoint& endpoint : daemon.endpoints()) {
    if (endpoint.fabric() == ucx->name)
      target.endpoint = {endpoint.fabric(), endpoint.address(), ""};
  }
  OASISKV_ASSIGN_OR_RETURN(const std::unique_ptr<fabric::Connection> connection,
                           ucx->connect({}, target));
  const wire::Grant grant = wire::FromMessage(writer);
  const uint32_t frame_bytes = Shape(2, 2, 64).frame_bytes();
  const std::vector<std::byte> zeros(frame_bytes);
  std::vector<fabric::WritePiece> pieces;
  for (uint32_t b = 0; b < blocks; ++b) pieces.push_back({{b, 0, frame_bytes}, zeros.data()});
  auto view = std::make_shared<const fabric::GrantView>(fabric::GrantView{
      grant.id, grant.epoch, grant.word_slot, fabric::Access::kWrite, frame_bytes, grant.frames});
  return connection->Write(std::move(view), pieces, Clock::Real().Now() + std::chrono::seconds(10))
      ->Wait();
}

Outcome ControlStubs::Commit(const v1::Grant& writer, uint32_t layers, uint32_t blocks) {
  v1::CommitRequest request;
  request.set_grant_id(writer.id());
  request.set_epoch(writer.epoch());
  request.add_ranges()->set_layer_count(layers);
  request.mutable_ranges(0)->set_block_count(blocks);
  v1::CommitResponse response;
  return Call(*kv, &v1::KvMemory::Stub::Commit, request, &response);
}

Outcome ControlStubs::Seal(const v1::Grant& writer, uint64_t tokens) {
  v1::SealRequest request;
  request.set_grant_id(writer.id());
  request.set_epoch(writer.epoch());
  request.set_token_count(tokens);
  v1::SealResponse response;
  return Call(*kv, &v1::KvMemory::Stub::Seal, request, &response);
}

Outcome ControlStubs::Renew(const v1::Grant& grant, v1::RenewResponse* response) {
  v1::RenewRequest request;
  request.add_grants()->set_grant_id(grant.id());
  request.mutable_grants(0)->set_epoch(grant.epoch());
  return Call(*kv, &v1::KvMemory::Stub::Renew, request, response);
}

Outcome ControlStubs::Release(const v1::Grant& grant) {
  v1::ReleaseRequest request;
  request.add_grants()->set_grant_id(grant.id());
  request.mutable_grants(0)->set_epoch(grant.epoch());
  v1::ReleaseResponse response;
  return Call(*kv, &v1::KvMemory::Stub::Release, request, &response);
}

Outcome ControlStubs::ReleaseSequence(const std::string& name) {
  v1::ReleaseRequest request;
  request.add_sequences()->set_name(name);
  *request.mutable_identity() = ProtoIdentity();
  v1::ReleaseResponse response;
  return Call(*kv, &v1::KvMemory::Stub::Release, request, &response);
}

Outcome ControlStubs::Abort(const std::string& name) {
  v1::AbortRequest request;
  request.set_name(name);
  *request.mutable_identity() = ProtoIdentity();
  v1::AbortResponse response;
  return Call(*kv, &v1::KvMemory::Stub::Abort, request, &response);
}

Outcome ControlStubs::Drain(bool enable) {
  v1::DrainRequest request;
  request.set_enable(enable);
  v1::DrainResponse response;
  return Call(*admin, &v1::Admin::Stub::Drain, request, &response);
}

v1::GetCapacityResponse ControlStubs::Capacity() {
  v1::GetCapacityResponse response;
  Call(*admin, &v1::Admin::Stub::GetCapacity, v1::GetCapacityRequest(), &response);
  return response;
}

grpc::health::v1::HealthCheckResponse::ServingStatus ControlStubs::Health(
    const std::string& service) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  Call(*health, &grpc::health::v1::Health::Stub::Check, request, &response);
  return response.status();
}

Outcome ControlStubs::MakeSealed(const std::string& name, uint32_t blocks) {
  v1::OpenResponse open;
  if (Outcome outcome = Open(OpenOf(name, blocks), &open); !outcome.ok()) return outcome;
  if (absl::Status filled = Fill(open.grant(), blocks); !filled.ok()) {
    return {{grpc::StatusCode::INTERNAL, filled.ToString()}, ErrorCodeOf(filled)};
  }
  if (Outcome outcome = Commit(open.grant(), 2, blocks); !outcome.ok()) return outcome;
  return Seal(open.grant(), uint64_t{16} * blocks);
}

v1::Geometry ProtoGeometry() {
  const Geometry geometry = Shape(2, 2, 64);
  v1::Geometry out;
  out.set_layers(geometry.layers);
  out.set_kv_heads(geometry.kv_heads);
  out.set_head_dim(geometry.head_dim);
  out.set_block_tokens(geometry.block_tokens);
  out.set_element_type(v1::ELEMENT_TYPE_BFLOAT16);
  out.set_packing(v1::PACKING_KEY_THEN_VALUE);
  out.set_total_kv_heads(geometry.total_kv_heads);
  return out;
}

v1::Identity ProtoIdentity() {
  const Identity identity = TestIdentity();
  v1::Identity out;
  out.set_model(identity.model);
  out.set_revision(identity.revision);
  out.set_tenant(identity.tenant);
  return out;
}

v1::OpenRequest OpenOf(const std::string& name, uint32_t blocks) {
  v1::OpenRequest out;
  out.set_name(name);
  *out.mutable_identity() = ProtoIdentity();
  *out.mutable_geometry() = ProtoGeometry();
  out.set_blocks(blocks);
  return out;
}

v1::AttachRequest AttachOf(const std::string& name) {
  v1::AttachRequest out;
  out.set_name(name);
  *out.mutable_identity() = ProtoIdentity();
  *out.mutable_geometry() = ProtoGeometry();
  return out;
}

}  // namespace oasiskv::testing
