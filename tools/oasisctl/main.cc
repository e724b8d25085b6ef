// oasisctl: asks a daemon about itself. README.md has the commands and exit codes.
#include <string>
#include <vector>

#include "tools/oasisctl/commands.h"

int main(int argc, char** argv) {
  using namespace oasiskv::oasisctl;
  Command root;
  root.name = "oasisctl";
  root.help =
      "Asks a running oasiskvd about its memory, sequences, grants and health, and the machine "
      "about what a daemon needs.";
  root.children = {CapacityCommand(), SequencesCommand(), GrantsCommand(), HealthCommand(),
                   DoctorCommand()};
  return RunCommand(root, std::vector<std::string>(argv + 1, argv + argc));
}
