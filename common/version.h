// The project's version, "MAJOR.MINOR.PATCH" as CMakeLists.txt has it.
#pragma once

namespace oasiskv {

const char* Version();

}  // namespace oasiskv
