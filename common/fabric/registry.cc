#include "common/fabric/registry.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace oasiskv::fabric {
namespace {

std::vector<const Fabric*>& Table() {
  static auto* const table =
      new std::vector<const Fabric*>{&ShmFabric(), &VerbsFabric(), &UcxFabric()};
  return *table;
}

}  // namespace

std::span<const Fabric* const> Fabrics() { return Table(); }

const Fabric* FindFabric(absl::string_view name) {
  for (const Fabric* fabric : Fabrics()) {
    if (fabric->name == name) return fabric;
  }
  return nullptr;
}

std::string FabricNames() {
  std::vector<std::string> names;
  for (const Fabric* fabric : Fabrics()) names.emplace_back(fabric->name);
  const std::string last = names.back();
  names.pop_back();
  return absl::StrCat(absl::StrJoin(names, ", "), " and ", last);
}

void AddFabric(const Fabric* fabric) { Table().push_back(fabric); }

}  // namespace oasiskv::fabric
