// Return on error, so that the code of the success path is not interrupted.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define OASISKV_RETURN_IF_ERROR(expr)                                                      \
  do {                                                                                     \
    if (absl::Status oasiskv_status = (expr); !oasiskv_status.ok()) return oasiskv_status; \
  } while (false)

#define OASISKV_MACRO_CONCAT_INNER(a, b) a##b
#define OASISKV_MACRO_CONCAT(a, b) OASISKV_MACRO_CONCAT_INNER(a, b)

// OASISKV_ASSIGN_OR_RETURN(auto x, FallibleX());
#define OASISKV_ASSIGN_OR_RETURN(lhs, expr) \
  OASISKV_ASSIGN_OR_RETURN_IMPL(OASISKV_MACRO_CONCAT(oasiskv_result_, __LINE__), lhs, expr)
// `result` and `lhs` are declarations here, which take no parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define OASISKV_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                  \
  if (!result.ok()) return std::move(result).status();   \
  lhs = *std::move(result)
// NOLINTEND(bugprone-macro-parentheses)
