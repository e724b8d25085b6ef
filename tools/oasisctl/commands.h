// The commands of oasisctl.
#pragma once

#include "tools/oasisctl/command.h"

namespace oasiskv::oasisctl {

Command CapacityCommand();
Command SequencesCommand();
Command GrantsCommand();
Command HealthCommand();
Command DoctorCommand();

}  // namespace oasiskv::oasisctl
