// Shared by every function of the C ABI: errors, struct sizes, fork, exceptions.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
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

// Guard for a `body` that needs `argument`, whose name in the header is `name`.
template <typename T, typename Body>
int With(absl::string_view name, const T* argument, Body&& body) noexcept {
  return Guard([&]() -> absl::Status { return argument ? body() : NullArgument(name); });
}

// Hands what was made to the caller, in a new handle.
template <typename Made, typename Handle>
absl::Status Give(absl::StatusOr<Made> made, Handle** out) {
  if (!made.ok()) return made.status();
  *out = new Handle{*std::move(made)};
  return absl::OkStatus();
}

// Frees a handle, but not in a forked child, where its threads do not exist.
template <typename Handle>
void Free(Handle* handle) noexcept {
  if (handle == nullptr || InForkedChild()) return;
  delete handle;
}

inline absl::Status CheckSize(size_t struct_size, absl::string_view name) {
  if (struct_size >= sizeof(size_t)) return absl::OkStatus();
  return MakeError(ErrorCode::kInvalidArgument,
                   std::string(name) + ".struct_size is not set; initialise it with OASISKV_INIT");
}

// Reads the caller's structure, whose struct_size may be of another version: missing fields are 0.
template <typename T>
absl::Status ReadStruct(const T* from, absl::string_view name, T& to) {
  if (from == nullptr) return NullArgument(name);
  OASISKV_RETURN_IF_ERROR(CheckSize(from->struct_size, name));
  to = T{};
  std::memcpy(&to, from, std::min(from->struct_size, sizeof(T)));
  return absl::OkStatus();
}

template <typename T>
absl::Status WriteStruct(const T& from, absl::string_view name, T* to) {
  if (to == nullptr) return NullArgument(name);
  const size_t size = to->struct_size;
  OASISKV_RETURN_IF_ERROR(CheckSize(size, name));
  std::memcpy(to, &from, std::min(size, sizeof(T)));
  to->struct_size = size;
  return absl::OkStatus();
}

}  // namespace oasiskv::c_api
