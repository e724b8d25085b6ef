// The listing commands: all pages of one of the daemon's lists, as a table or as JSON.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "tools/oasisctl/connection.h"
#include "tools/oasisctl/format.h"

namespace oasiskv::oasisctl {

using Json = nlohmann::ordered_json;

// Asks for page after page with `list` and gives each to add(response, json array, table). Prints
// the JSON with --json, else the table and the number of `things`. Returns the exit code.
template <typename Request, typename Response, typename Add>
int PrintListing(const Arguments& arguments,
                 absl::Status (Connection::*list)(const Request&, Response&), Request request,
                 const char* things, Table table, Add add) {
  auto connection = Connection::Make(arguments);
  if (!connection.ok()) return Usage(connection.status());
  Json all = Json::array();
  do {
    Response response;
    const absl::Status status = ((*connection).*list)(request, response);
    if (!status.ok()) return Report(status);
    add(response, all, table);
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  if (arguments.Has("json")) {
    std::printf("%s\n", all.dump(2).c_str());
  } else {
    std::printf("%s%zu %s\n", table.ToString().c_str(), all.size(), things);
  }
  return kExitOk;
}

}  // namespace oasiskv::oasisctl
