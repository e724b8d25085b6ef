#include "client/c_api/guard.h"

#include <pthread.h>

#include <atomic>
#include <mutex>

#include "common/crc32c.h"
#include "common/log.h"
#include "common/version.h"

namespace oasiskv::c_api {
namespace {

thread_local std::string last_error;
std::atomic<bool> forked_child{false};

}  // namespace

int Finish(const absl::Status& status) {
  if (status.ok()) return OASISKV_OK;
  last_error = std::string(status.message());
  const auto code = static_cast<int>(ErrorCodeOf(status));
  return code == OASISKV_OK ? OASISKV_INTERNAL : code;
}

void NoteFirstHandle() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forked_child.store(true); }); });
}

bool InForkedChild() { return forked_child.load(std::memory_order_relaxed); }

}  // namespace oasiskv::c_api

using oasiskv::ErrorCode;

const char* oasiskv_last_error(void) { return oasiskv::c_api::last_error.c_str(); }

const char* oasiskv_code_name(int code) {
  if (code == OASISKV_OK) return "OK";
  // The names are literals, so that data() ends with a 0.
  return oasiskv::ErrorCodeName(static_cast<ErrorCode>(code)).data();
}

const char* oasiskv_version(void) { return oasiskv::Version(); }

int oasiskv_set_log_level(int level) {
  return oasiskv::c_api::Guard([&]() -> absl::Status {
    if (level < 0 || level > 4) {
      return oasiskv::MakeError(ErrorCode::kInvalidArgument,
                                "log level must be between 0 (debug) and 4 (off)");
    }
    oasiskv::SetLogLevel(static_cast<oasiskv::LogLevel>(level));
    return absl::OkStatus();
  });
}

uint32_t oasiskv_crc32c(const void* data, size_t size, uint32_t seed) {
  if (data == nullptr) return seed;
  return oasiskv::Crc32c({static_cast<const std::byte*>(data), size}, seed);
}
