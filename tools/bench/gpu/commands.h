// What oasis-gpu-bench can measure. A command has its own flags and prints its own table.
#pragma once

namespace oasiskv::bench {

// The program's exit status.
int ScoreCommand();
int GatherCommand();
int SelectCommand();

}  // namespace oasiskv::bench
