// How the pool's memory is paged.
#pragma once

namespace oasiskv::server {

// kOff: pages of the normal size. kPrefer: huge pages, and normal ones (recorded, with a warning)
// where there are too few. kRequire: huge pages or no start.
enum class HugePages { kOff, kPrefer, kRequire };

}  // namespace oasiskv::server
