// Uses the installed C++ interface: value types, and a Client that cannot reach its daemon.
#include <chrono>
#include <iostream>

#include "oasiskv/client.h"
#include "oasiskv/error.h"
#include "oasiskv/geometry.h"
#include "oasiskv/sequence_source.h"
#include "oasiskv/working_set.h"

namespace {

int Fail(const std::string& what) {
  std::cerr << "consumer_cpp: " << what << "\n";
  return 1;
}

}  // namespace

int main() {
  oasiskv::Geometry geometry;
  geometry.layers = 36;
  geometry.kv_heads = 8;
  geometry.head_dim = 128;
  geometry.element_type = oasiskv::ElementType::kBFloat16;
  geometry.total_kv_heads = 8;
  if (absl::Status status = geometry.Validate(); !status.ok()) {
    return Fail(std::string(status.message()));
  }
  if (geometry.entry_bytes() != 8192) return Fail("an entry of 16 tokens is not 8 KiB");

  oasiskv::Geometry other = geometry;
  other.block_tokens = 32;
  if (oasiskv::ErrorCodeOf(geometry.CheckSame(other)) != oasiskv::ErrorCode::kGeometryMismatch) {
    return Fail("two geometries that differ compare as equal");
  }

  oasiskv::ClientOptions options;
  options.address = "127.0.0.1:1";  // nothing serves there
  options.rpc_timeout = std::chrono::milliseconds(500);
  auto client = oasiskv::Client::Connect(options);
  if (client.ok()) return Fail("connected to a port that nobody serves");
  if (oasiskv::ErrorCodeOf(client.status()) != oasiskv::ErrorCode::kPeerLost) {
    return Fail("unexpected error: " + std::string(client.status().message()));
  }
  std::cout << "consumer_cpp: ok\n";
  return 0;
}
