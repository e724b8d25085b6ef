// oasisctl: asks a daemon about its state. README.md has the commands and exit codes.
#include <string>
#include <vector>

#include "tools/oasisctl/commands.h"

int main(int argc, char** argv) {
  using namespace oasiskv::oasisctl;  // NOLINT: main() alone
  const Command root = {
      .name = "oasisctl",
      .help =
          "Shows the memory, sequences, grants and health of a running oasiskvd, and checks "
          "whether this machine can run one.",
      .children = {CapacityCommand(), SequencesCommand(), GrantsCommand(), HealthCommand(),
                   DoctorCommand()}};
  return RunCommand(root, std::vector<std::string>(argv + 1, argv + argc));
}
