// Between the C ABI's structures and the C++ ones.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/c_api/guard.h"
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
  constexpr uint64_t kMost =
      uint64_t{365} * 24 * 3600 * 1000;  // keeps the product far from an overflow
  return std::chrono::milliseconds(std::min(ms, kMost));
}

// Of 0 (a field that was not set) the default, of a negative number 0.
inline double ToBoundWeight(double weight) {
  if (weight == 0) return kDefaultBoundWeight;
  return weight < 0 ? 0.0 : weight;
}

// An enum that arrives as a number: INVALID_ARGUMENT naming the field unless it is at most `last`.
template <typename E>
absl::StatusOr<E> ToEnum(uint32_t value, E last, absl::string_view field) {
  if (value > static_cast<uint32_t>(last)) {
    return MakeError(ErrorCode::kInvalidArgument, std::string(field) + " is " +
                                                      std::to_string(value) + "; the most is " +
                                                      std::to_string(static_cast<uint32_t>(last)));
  }
  return static_cast<E>(value);
}

}  // namespace oasiskv::c_api
