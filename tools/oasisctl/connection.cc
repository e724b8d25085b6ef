#include "tools/oasisctl/connection.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/status_macros.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "oasiskv/error.h"
#include "oasiskv/v1/admin.grpc.pb.h"
#include "oasiskv/v1/kv_memory.grpc.pb.h"

namespace oasiskv::oasisctl {
namespace {

constexpr char kDefaultAddress[] = "127.0.0.1:7400";
constexpr uint16_t kDefaultPort = 7400;

}  // namespace

std::vector<FlagSpec> CommonFlags() {
  return {{"address", "HOST:PORT",
           absl::StrCat("The daemon's control address. Default: $OASISKV_ADDRESS, or ",
                        kDefaultAddress, " without it.")},
          {"timeout", "TIME", "How long to wait for an answer. Default: 5s."},
          {"json", "", "Print JSON; sizes are in bytes, times in milliseconds."}};
}

struct Connection::Impl {
  std::string address;
  Duration timeout{0};
  std::unique_ptr<v1::Admin::Stub> admin;
  std::unique_ptr<v1::KvMemory::Stub> kv_memory;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;

  // Runs call(context) with the deadline and turns its answer into ours.
  template <typename Call>
  absl::Status Run(Call call) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    return ToStatus(call(context), context);
  }

  absl::Status ToStatus(const grpc::Status& status, const grpc::ClientContext& context) const {
    if (status.ok()) return absl::OkStatus();
    const auto& trailers = context.GetServerTrailingMetadata();
    if (const auto it = trailers.find("oasiskv-error-code"); it != trailers.end()) {
      int code = 0;
      if (absl::SimpleAtoi(absl::string_view(it->second.data(), it->second.size()), &code)) {
        // The daemon's MakeError has put the code's name before the message already.
        const std::string name = absl::StrCat(ErrorCodeName(static_cast<ErrorCode>(code)), ": ");
        std::string message = status.error_message();
        if (message.rfind(name, 0) == 0) message = message.substr(name.size());
        return MakeError(static_cast<ErrorCode>(code), message);
      }
    }
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
        status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return MakeError(ErrorCode::kPeerLost,
                       absl::StrCat("no daemon answers at ", address, " (", status.error_message(),
                                    "); is oasiskvd running there? Set another with --address"));
    }
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
};

absl::StatusOr<Connection> Connection::Make(const Arguments& arguments) {
  const char* from_environment = std::getenv("OASISKV_ADDRESS");
  const std::string text =
      arguments.Get("address", from_environment == nullptr ? kDefaultAddress : from_environment);
  OASISKV_ASSIGN_OR_RETURN(const Address address, ParseAddress(text, kDefaultPort));
  auto impl = std::make_unique<Impl>();
  OASISKV_ASSIGN_OR_RETURN(impl->timeout, arguments.Time("timeout", std::chrono::seconds(5)));
  impl->address = address.ToString();
  const auto channel = grpc::CreateChannel(GrpcTarget(address), grpc::InsecureChannelCredentials());
  impl->admin = v1::Admin::NewStub(channel);
  impl->kv_memory = v1::KvMemory::NewStub(channel);
  impl->health = grpc::health::v1::Health::NewStub(channel);
  return Connection(std::move(impl));
}

Connection::Connection(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Connection::Connection(Connection&&) noexcept = default;
Connection::~Connection() = default;

const std::string& Connection::address() const { return impl_->address; }

absl::Status Connection::GetCapacity(v1::GetCapacityResponse& response) {
  return impl_->Run([&](grpc::ClientContext& context) {
    return impl_->admin->GetCapacity(&context, {}, &response);
  });
}

absl::Status Connection::ListSequences(const v1::ListSequencesRequest& request,
                                       v1::ListSequencesResponse& response) {
  return impl_->Run([&](grpc::ClientContext& context) {
    return impl_->admin->ListSequences(&context, request, &response);
  });
}

absl::Status Connection::ListGrants(const v1::ListGrantsRequest& request,
                                    v1::ListGrantsResponse& response) {
  return impl_->Run([&](grpc::ClientContext& context) {
    return impl_->admin->ListGrants(&context, request, &response);
  });
}

absl::Status Connection::Describe(v1::DescribeResponse& response) {
  return impl_->Run([&](grpc::ClientContext& context) {
    return impl_->kv_memory->Describe(&context, {}, &response);
  });
}

absl::StatusOr<std::string> Connection::Health() {
  grpc::health::v1::HealthCheckResponse response;
  OASISKV_RETURN_IF_ERROR(impl_->Run(
      [&](grpc::ClientContext& context) { return impl_->health->Check(&context, {}, &response); }));
  return grpc::health::v1::HealthCheckResponse::ServingStatus_Name(response.status());
}

absl::Status Connection::WatchCapacity(
    Duration interval, const std::function<bool(const v1::GetCapacityResponse&)>& got) {
  // A watch never ends by itself, so only its first answer has a deadline.
  v1::GetCapacityResponse response;
  OASISKV_RETURN_IF_ERROR(GetCapacity(response));
  grpc::ClientContext context;
  v1::WatchCapacityRequest request;
  request.set_interval_ms(static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(interval).count()));
  const auto reader = impl_->admin->WatchCapacity(&context, request);
  while (reader->Read(&response)) {
    if (!got(response)) {
      context.TryCancel();
      reader->Finish();
      return absl::OkStatus();
    }
  }
  return impl_->ToStatus(reader->Finish(), context);
}

int Report(const absl::Status& status) {
  std::fprintf(stderr, "oasisctl: %s\n", std::string(status.message()).c_str());
  return ErrorCodeOf(status) == ErrorCode::kPeerLost ? kExitUnreachable : kExitRefused;
}

int Usage(const absl::Status& status) {
  Report(status);
  return kExitUsage;
}

}  // namespace oasiskv::oasisctl
