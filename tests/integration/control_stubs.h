// Raw gRPC stubs of one daemon, for tests that speak to it without the client library.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "oasiskv/error.h"
#include "oasiskv/v1/admin.grpc.pb.h"
#include "oasiskv/v1/kv_memory.grpc.pb.h"

namespace oasiskv::testing {

// How a call ended. The code is the number of the trailing metadata; kUnspecified when there was
// none.
struct Outcome {
  bool ok() const { return status.ok(); }
  grpc::Status status;
  ErrorCode code = ErrorCode::kUnspecified;
};
std::ostream& operator<<(std::ostream& os, const Outcome& outcome);

Outcome ToOutcome(const grpc::Status& status, const grpc::ClientContext& context);

// Thread contract: safe for concurrent use.
struct ControlStubs {
  explicit ControlStubs(const std::string& control_address);

  // Call(*stubs.kv, &v1::KvMemory::Stub::Open, request, &response)
  template <typename Stub, typename Request, typename Response>
  static Outcome Call(Stub& stub,
                      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                      const Request& request, Response* response,
                      std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    const grpc::Status status = (stub.*method)(&context, request, response);
    return ToOutcome(status, context);
  }

  Outcome Open(const v1::OpenRequest& request, v1::OpenResponse* response) {
    return Call(*kv, &v1::KvMemory::Stub::Open, request, response);
  }
  Outcome Extend(const v1::Grant& writer, uint32_t blocks, v1::ExtendResponse* response);
  // Writes zeros over ucx into all of blocks [0, blocks), of ProtoGeometry.
  absl::Status Fill(const v1::Grant& writer, uint32_t blocks);
  // Commits layers x blocks from 0.
  Outcome Commit(const v1::Grant& writer, uint32_t layers, uint32_t blocks);
  Outcome Seal(const v1::Grant& writer, uint64_t tokens);
  Outcome Attach(const v1::AttachRequest& request, v1::AttachResponse* response) {
    return Call(*kv, &v1::KvMemory::Stub::Attach, request, response);
  }
  Outcome Renew(const v1::Grant& grant, v1::RenewResponse* response);
  Outcome Release(const v1::Grant& grant);
  Outcome ReleaseSequence(const std::string& name);
  Outcome Abort(const std::string& name);
  Outcome Describe(v1::DescribeResponse* response) {
    return Call(*kv, &v1::KvMemory::Stub::Describe, v1::DescribeRequest(), response);
  }
  Outcome Drain(bool enable);
  v1::GetCapacityResponse Capacity();
  // The status of grpc.health.v1 ("" for the daemon as a whole), UNKNOWN when the call fails.
  grpc::health::v1::HealthCheckResponse::ServingStatus Health(const std::string& service = "");
  // Opens, fills, commits and seals `blocks` full blocks of ProtoGeometry.
  Outcome MakeSealed(const std::string& name, uint32_t blocks);

  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::KvMemory::Stub> kv;
  std::unique_ptr<v1::Admin::Stub> admin;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;
};

// 2 layers, 2 heads: a frame of 20 KiB.
v1::Geometry ProtoGeometry();
v1::Identity ProtoIdentity();  // TestIdentity
v1::OpenRequest OpenOf(const std::string& name, uint32_t blocks);
v1::AttachRequest AttachOf(const std::string& name);

}  // namespace oasiskv::testing
