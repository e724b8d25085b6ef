#include "common/version.h"

namespace oasiskv {

const char* Version() { return OASISKV_VERSION; }

}  // namespace oasiskv
