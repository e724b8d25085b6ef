// The state table: as the README shows it, and as the core behaves. Every row is one case.
#include "server/sequence/state_table.h"

#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/unit/server/core_fixture.h"

namespace oasiskv::server {
namespace {

std::string CellText(const StateRule& rule) {
  return std::string(rule.error == ErrorCode::kUnspecified ? StateName(rule.to)
                                                           : ErrorCodeName(rule.error));
}

// The README's table has one line per operation: | extend | open | WRONG_STATE | ... |
TEST(StateTable, TheReadmeShowsTheSameTable) {
  std::ifstream file(OASISKV_SOURCE_DIR "/server/sequence/README.md");
  ASSERT_TRUE(file.good());
  std::map<std::string, std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] != '|') continue;
    std::vector<std::string> cells;
    for (absl::string_view cell : absl::StrSplit(line, '|')) {
      cells.emplace_back(absl::StripAsciiWhitespace(cell));
    }
    if (cells.size() >= 6) rows[cells[1]].assign(cells.begin() + 2, cells.begin() + 6);
  }
  ASSERT_EQ(rows["operation"],
            (std::vector<std::string>{"in open", "in sealed", "in released", "in aborted"}));
  for (const StateRule& rule : StateTable()) {
    const std::vector<std::string>& row = rows[std::string(OpName(rule.op))];
    ASSERT_EQ(row.size(), 4u) << OpName(rule.op);
    EXPECT_EQ(row[static_cast<size_t>(rule.from) - 1], CellText(rule))
        << StateName(rule.from) << " x " << OpName(rule.op);
  }
}

class StateTableCase : public CoreFixture, public ::testing::WithParamInterface<StateRule> {
 protected:
  void SetUp() override {
    CoreOptions o = SmallOptions();
    o.unattended_ttl = std::chrono::seconds(1);
    Start(o);
  }
  // Brings sequence "s" of 2 blocks into `state`; a reader keeps a released one listed.
  void Enter(SequenceState state) {
    opened_ = MustOpen("s", 2);
    ASSERT_TRUE(CommitAll(opened_, 2).ok());
    reader_ = MustAttach("s");
    if (state == SequenceState::kOpen) return;
    if (state == SequenceState::kAborted) {
      ASSERT_TRUE(core_->Abort({"s"}, Me()).ok());
      return;
    }
    ASSERT_TRUE(Seal(opened_, 2).ok());
    if (state == SequenceState::kReleased) {
      ASSERT_TRUE(ReleaseSequence("s").ok());
    }
  }
  absl::Status Perform(SequenceOp op) {
    AttachSpec attach = ReadSpec("s");
    switch (op) {
      case SequenceOp::kExtend:
        return Extend(opened_.grant, 1).status();
      case SequenceOp::kCommit:
        return CommitAll(opened_, 2);
      case SequenceOp::kSeal:  // another one than the sequence had: that would be a repeat
        return core_->Seal(Key(opened_.grant), 17, {}, "");
      case SequenceOp::kWriterLost:
        return Release(opened_.grant);
      case SequenceOp::kAttachSealed:
        attach.require_sealed = true;
        return core_->Attach(attach).status();
      case SequenceOp::kAttach:
        return core_->Attach(attach).status();
      case SequenceOp::kRelease:
        return ReleaseSequence("s");
      case SequenceOp::kAbort:
        return core_->Abort({"s"}, Me()).status();
      case SequenceOp::kUnattended:
        // Only a sealed one can be without a grant. The others' grants outlive this.
        if (StateNow() == SequenceState::kSealed && !Release(reader_.grant).ok()) break;
        Serve(std::chrono::seconds(2));
        return absl::OkStatus();
    }
    return absl::InternalError("no such operation");
  }
  SequenceState StateNow() {
    const std::vector<SequenceInfo> all = core_->Sequences(SequenceId(), 10, "");
    return all.empty() ? SequenceState::kAborted : all[0].state;
  }

  OpenResult opened_;
  AttachResult reader_;
};

TEST_P(StateTableCase, TheCoreDoesWhatTheTableSays) {
  const StateRule& rule = GetParam();
  ASSERT_NO_FATAL_FAILURE(Enter(rule.from));
  ASSERT_EQ(StateName(StateNow()), StateName(rule.from));
  EXPECT_CODE(rule.error, Perform(rule.op));
  if (rule.from == SequenceState::kSealed && rule.op == SequenceOp::kUnattended) {
    // Released, and gone at once, since nobody has a grant of it.
    EXPECT_EQ(core_->Counters().sequences_unattended, 1u);
    EXPECT_TRUE(core_->Sequences(SequenceId(), 10, "").empty());
    return;
  }
  EXPECT_EQ(core_->Counters().sequences_unattended, 0u);
  EXPECT_EQ(StateName(StateNow()), StateName(rule.to));
  // An aborted sequence has no reader left, every other one has.
  EXPECT_EQ(Read(reader_.grant, {0, 0, 16}).ok(), rule.to != SequenceState::kAborted);
}

INSTANTIATE_TEST_SUITE_P(EveryRow, StateTableCase,
                         ::testing::ValuesIn(StateTable().begin(), StateTable().end()),
                         [](const ::testing::TestParamInfo<StateRule>& param) {
                           std::string name = absl::StrCat(StateName(param.param.from), "_",
                                                           OpName(param.param.op));
                           for (char& c : name) {
                             if (c == ' ') c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace oasiskv::server
