#include "common/fabric/ucx/lanes.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace oasiskv::fabric::ucx {
namespace {

// The number in brackets behind `name`, taken off `text` with both: "put[3]: ..." is 3.
std::optional<int> TakeIndex(absl::string_view& text, absl::string_view name) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, name) || !absl::ConsumePrefix(&rest, "[")) return std::nullopt;
  const size_t end = rest.find(']');
  int index = 0;
  if (end == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(0, end), &index)) {
    return std::nullopt;
  }
  rest.remove_prefix(end + 1);
  if (!absl::ConsumePrefix(&rest, ":")) return std::nullopt;
  text = rest;
  return index;
}

// "2:rc_verbs/rxe0:1.0 md[1] -> md[1]/ib/sysdev[255] rma_bw#0 am am_bw#0"
Lane ParseLane(int index, absl::string_view text) {
  Lane lane;
  lane.index = index;
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  lane.only_connections = true;
  if (words.empty() || words[0] == "cm") return lane;
  absl::string_view name = words[0];
  const size_t slash = name.find('/');
  const size_t colon = name.find(':');
  if (slash == absl::string_view::npos) return lane;
  const size_t first = colon != absl::string_view::npos && colon < slash ? colon + 1 : 0;
  lane.transport = std::string(name.substr(first, slash - first));
  name.remove_prefix(slash + 1);
  lane.device = std::string(name.substr(0, name.rfind('.')));  // behind it: the path's number
  for (const absl::string_view word : words) {
    if (absl::StartsWith(word, "rma_bw#") || absl::StartsWith(word, "rma#")) {
      lane.remote_memory = true;
    }
    if (word == "am" || absl::StartsWith(word, "am_bw#")) lane.active_messages = true;
  }
  lane.only_connections = !lane.remote_memory && !lane.active_messages;
  return lane;
}

bool ChecksKeys(const Lane& lane) {
  return absl::StartsWith(lane.transport, "rc_") || absl::StartsWith(lane.transport, "dc_");
}

}  // namespace

Lanes ParseLanes(absl::string_view text) {
  Lanes out;
  std::vector<int> put, get;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripLeadingAsciiWhitespace(absl::StripPrefix(line, "#"));
    if (const auto lane = TakeIndex(line, "lane")) {
      out.lanes.push_back(ParseLane(*lane, line));
    } else if (const auto put_lane = TakeIndex(line, "put")) {
      put.push_back(*put_lane);
    } else if (const auto get_lane = TakeIndex(line, "get")) {
      get.push_back(*get_lane);
    }
  }
  const auto names = [](const std::vector<int>& list, int index) {
    return std::find(list.begin(), list.end(), index) != list.end();
  };
  bool any = false, all = true, others = false;
  for (Lane& lane : out.lanes) {
    if (names(put, lane.index) || names(get, lane.index)) {
      lane.remote_memory = true;
      lane.only_connections = false;
    }
    if (lane.remote_memory) {
      any = true;
      all = all && ChecksKeys(lane);
    } else if (!lane.only_connections && !ChecksKeys(lane)) {
      others = true;
    }
  }
  // UCX 1.13 to 1.18 list the lanes of get and put by themselves, and list none when they are
  // emulated. Later ones do not, so that nothing but RC and DC may carry data there.
  out.one_sided =
      any && all && (put.empty() && get.empty() ? !others : !put.empty() && !get.empty());
  return out;
}

const Lane* Lanes::Data() const {
  const Lane* best = nullptr;
  for (const Lane& lane : lanes) {
    if (lane.only_connections) continue;
    const bool wanted = one_sided ? lane.remote_memory : lane.active_messages;
    if (best == nullptr || (wanted && !(one_sided ? best->remote_memory : best->active_messages))) {
      best = &lane;
    }
  }
  return best;
}

std::string Lanes::Transport() const {
  const Lane* lane = Data();
  return lane == nullptr ? "unknown" : lane->transport;
}

std::string Lanes::TransportAndDevice() const {
  const Lane* lane = Data();
  return lane == nullptr ? "unknown" : absl::StrCat(lane->transport, "/", lane->device);
}

}  // namespace oasiskv::fabric::ucx
