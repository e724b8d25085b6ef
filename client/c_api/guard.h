// Shared by every function of the C ABI: errors, struct sizes, fork, exceptions.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "oasiskv/error.h"
#include "oasiskv/oasiskv.h"

namespace oasiskv::c_api {

// Stores the message for oasiskv_last_error of this thread and returns the code (OASISKV_OK for an
// OK status).
int Finish(const absl::Status& status);

// Called when the first handle is made: from then on every call fails in a forked child.
void NoteFirstHandle();
bool InForkedChild();

inline absl::Status NullArgument(absl::string_view what) {
  return MakeError(ErrorCode::kInvalidArgument, std::string(what) + " is NULL");
}

// Runs `body` (returning absl::Status) and returns a code, also for an exception.
template <typename Body>
int Guard(Body&& body) noexcept {
  try {
    if (InForkedChild()) {
      return Finish(MakeError(
          ErrorCode::kWrongState,
          "oasiskv was used in this process before fork(), so it does not work in the child; fork "
          "before the first connect, or use spawn"));
    }
    return Finish(body());
  } catch (const std::exception& e) {
    return Finish(MakeError(ErrorCode::kInternal, e.what()));
  } catch (...) {
    return Finish(MakeError(ErrorCode::kInternal, "unknown exception"));
  }
}

// Frees a handle, but not in a forked child, where its threads do not exist.
template <typename Handle>
void Free(Handle* handle) noexcept {
  if (handle == nullptr || InForkedChild()) return;
  delete handle;
}

// Reads the caller's structure, whose struct_size may be of another version: missing fields are 0.
template <typename T>
absl::Status ReadStruct(const T* from, absl::string_view name, T& to) {
  if (from == nullptr) return NullArgument(name);
  if (from->struct_size < sizeof(size_t)) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        std::string(name) + ".struct_size is not set; initialise it with OASISKV_INIT");
  }
  to = T{};
  std::memcpy(&to, from, std::min(from->struct_size, sizeof(T)));
  return absl::OkStatus();
}

template <typename T>
absl::Status WriteStruct(const T& from, absl::string_view name, T* to) {
  if (to == nullptr) return NullArgument(name);
  const size_t size = to->struct_size;
  if (size < sizeof(size_t)) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        std::string(name) + ".struct_size is not set; initialise it with OASISKV_INIT");
  }
  std::memcpy(to, &from, std::min(size, sizeof(T)));
  to->struct_size = size;
  return absl::OkStatus();
}

}  // namespace oasiskv::c_api
