// The programs of the bench: operations under one help, each with flags of its own.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "oasiskv/error.h"

namespace oasiskv::bench {

struct Operation {
  const char* name;
  // One line of --help.
  const char* what;
  // A call, without the program's name.
  const char* example;
  // Source files, from tools/bench on, that define its flags.
  std::vector<absl::string_view> flag_files;
  // Null: the program `elsewhere` has it.
  absl::Status (*run)() = nullptr;
  // A program beside this one.
  const char* elsewhere = nullptr;
};

// main() of a program: PROGRAM OPERATION [--flags], with --help (-h) for the program and for each
// operation. Any failure gives exit status 1, a wrong call 2.
int RunProgram(int argc, char** argv, absl::string_view program, absl::string_view what,
               std::span<const Operation> operations);

// A wrong call: INVALID_ARGUMENT.
inline absl::Status Refuse(absl::string_view what) {
  return MakeError(ErrorCode::kInvalidArgument, what);
}

// The whole numbers above 0 of a list flag.
template <typename T>
absl::StatusOr<std::vector<T>> Numbers(const std::vector<std::string>& texts,
                                       absl::string_view flag) {
  std::vector<T> numbers;
  for (const std::string& text : texts) {
    if (!absl::SimpleAtoi(text, &numbers.emplace_back()) || numbers.back() == 0) {
      return Refuse(absl::StrCat("--", flag, ": '", text,
                                 "' is not a whole number above 0; commas stand between several"));
    }
  }
  return numbers;
}

}  // namespace oasiskv::bench
