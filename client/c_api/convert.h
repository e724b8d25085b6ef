// Conversions between the C ABI's structures and the C++ ones.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/c_api/guard.h"
#include "common/status_macros.h"
#include "oasiskv/geometry.h"
#include "oasiskv/selection.h"
#include "oasiskv/working_set.h"

namespace oasiskv::c_api {

absl::StatusOr<Geometry> ToGeometry(const oasiskv_geometry* geometry);
absl::StatusOr<Identity> ToIdentity(const oasiskv_identity* identity);

absl::StatusOr<WorkingSetOptions> ToWorkingSetOptions(const oasiskv_working_set_options* options);
oasiskv_working_set_stats FromStats(const WorkingSetStats& stats);

inline std::string OrEmpty(const char* text) { return text == nullptr ? std::string() : text; }

inline std::chrono::nanoseconds Milliseconds(uint64_t ms) {
  constexpr uint64_t kMost = uint64_t{365} * 24 * 3600 * 1000;  // nanoseconds do not overflow
  return std::chrono::milliseconds(std::min(ms, kMost));
}

// 0 (a field that was not set) gives the default, a negative number 0.
inline double ToBoundWeight(double weight) {
  if (weight == 0) return kDefaultBoundWeight;
  return weight < 0 ? 0.0 : weight;
}

// A number as an enum: INVALID_ARGUMENT naming the field when it is more than `last`.
template <typename E>
absl::StatusOr<E> ToEnum(uint32_t value, E last, absl::string_view field) {
  if (value > static_cast<uint32_t>(last)) {
    return MakeError(ErrorCode::kInvalidArgument, std::string(field) + " is " +
                                                      std::to_string(value) + "; the most is " +
                                                      std::to_string(static_cast<uint32_t>(last)));
  }
  return static_cast<E>(value);
}

// Reads the caller's spec of a producer or reader into `in`, and what both have into `out`.
template <typename In, typename Out>
absl::Status ReadSpec(const In* spec, In& in, Out& out) {
  OASISKV_RETURN_IF_ERROR(ReadStruct(spec, "spec", in));
  if (in.name == nullptr) return NullArgument("spec.name");
  out.name = in.name;
  OASISKV_ASSIGN_OR_RETURN(out.identity, ToIdentity(in.identity));
  OASISKV_ASSIGN_OR_RETURN(out.geometry, ToGeometry(in.geometry));
  out.lease = Milliseconds(in.lease_ms);
  return absl::OkStatus();
}

}  // namespace oasiskv::c_api
