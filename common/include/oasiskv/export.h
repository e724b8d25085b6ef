// Marks what the shared library exports; everything else is hidden.
#pragma once

#define OASISKV_EXPORT __attribute__((visibility("default")))
// A class nested in an exported one is exported with it; this hides an Impl again.
#define OASISKV_HIDDEN __attribute__((visibility("hidden")))
