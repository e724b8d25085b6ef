// Marks what the shared library exports; everything else is hidden.
#pragma once

#define OASISKV_EXPORT __attribute__((visibility("default")))
