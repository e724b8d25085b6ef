#include "common/fabric/ucx/remote_memory.h"

#include <ucp/api/ucp.h>

#include "common/fabric/ucx/worker.h"

namespace oasiskv::fabric::ucx {
namespace {

void Finish(Operation* operation, ucs_status_t status) {
  operation->OnDone(status == UCS_OK ? absl::string_view() : ucs_status_string(status));
  delete operation;
}

void OnDone(void* request, ucs_status_t status, void* operation) {
  ucp_request_free(request);
  Finish(static_cast<Operation*>(operation), status);
}

ucp_request_param_t Parameters(Operation* operation, ucp_mem* registered) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &OnDone;
  param.user_data = operation;
  if (registered != nullptr) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = registered;
  }
  return param;
}

void Started(ucs_status_ptr_t request, std::unique_ptr<Operation> operation) {
  Operation* const raw = operation.release();  // OnDone has it now
  if (!UCS_PTR_IS_PTR(request)) Finish(raw, UCS_PTR_STATUS(request));
}

}  // namespace

absl::StatusOr<RemoteKey> RemoteKey::Unpack(ucp_ep* endpoint, std::span<const std::byte> packed) {
  ucp_rkey_h key = nullptr;
  const ucs_status_t status = ucp_ep_rkey_unpack(endpoint, packed.data(), &key);
  if (status != UCS_OK) return UcxError("UCX does not take the daemon's key", status);
  return RemoteKey(key);
}

RemoteKey::~RemoteKey() {
  if (key_ != nullptr) ucp_rkey_destroy(key_);
}

void Get(ucp_ep* endpoint, std::span<std::byte> local, ucp_mem* registered, RemotePlace from,
         std::unique_ptr<Operation> operation) {
  const ucp_request_param_t param = Parameters(operation.get(), registered);
  Started(ucp_get_nbx(endpoint, local.data(), local.size(), from.address, from.key->get(), &param),
          std::move(operation));
}

void Put(ucp_ep* endpoint, std::span<const std::byte> local, ucp_mem* registered, RemotePlace into,
         std::unique_ptr<Operation> operation) {
  const ucp_request_param_t param = Parameters(operation.get(), registered);
  Started(ucp_put_nbx(endpoint, local.data(), local.size(), into.address, into.key->get(), &param),
          std::move(operation));
}

void Flush(ucp_ep* endpoint, std::unique_ptr<Operation> operation) {
  const ucp_request_param_t param = Parameters(operation.get(), nullptr);
  Started(ucp_ep_flush_nbx(endpoint, &param), std::move(operation));
}

}  // namespace oasiskv::fabric::ucx
