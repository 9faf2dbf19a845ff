#include "runtime/step/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "runtime/step/draft.h"
#include "tests/runtime/step/hand_made_program.h"
#include "tests/runtime/step/step_fixture.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Program offloaded_program() {
  const StepModel model = small_step_model(2, false);
  const StepPolicy policy =
      uniform_policy(model, {Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kHost, true});
  return compile_step(model, policy, {});
}

template <typename Enum>
std::set<std::string_view> names_up_to(Enum last) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(last); ++i) names.insert(name_of(static_cast<Enum>(i)));
  return names;
}

TEST(Program, NamesAreDistinct) {
  EXPECT_EQ(names_up_to(Lane::kCode).size(), kLaneCount);
  EXPECT_EQ(names_up_to(OpKind::kUpdate).size(), static_cast<std::size_t>(OpKind::kUpdate) + 1);
  EXPECT_EQ(names_up_to(Message::kUpdated).size(), static_cast<std::size_t>(Message::kUpdated) + 1);
  EXPECT_EQ(names_up_to(Part::kDrain).size(), kPartCount);
  EXPECT_EQ(name_of(Lane::kRead), "read");
  EXPECT_EQ(name_of(OpKind::kRoundGradient), "round_gradient");
  EXPECT_EQ(name_of(OpKind::kUpdate), "update");
}

TEST(Program, OnlyReadsAndWritesOverlapInTheirLane) {
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const auto lane = static_cast<Lane>(l);
    EXPECT_EQ(completes_in_order(lane), lane != Lane::kRead && lane != Lane::kWrite);
  }
}

TEST(Program, DeferredOpsAreOfBodyAndDrain) {
  Op op;
  EXPECT_TRUE(op.parts.contains(Part::kPrologue));
  EXPECT_TRUE(op.parts.contains(Part::kBody));
  EXPECT_FALSE(op.parts.contains(Part::kDrain));
  op.parts = kOfStepBefore;
  EXPECT_FALSE(op.parts.contains(Part::kPrologue));
  EXPECT_TRUE(op.parts.contains(Part::kBody));
  EXPECT_TRUE(op.parts.contains(Part::kDrain));
  op = Op{.parts = kOfBothSteps};
  for (const Part part : {Part::kPrologue, Part::kBody, Part::kDrain}) {
    EXPECT_TRUE(op.parts.contains(part));
  }
}

TEST(Program, AnOpFindsItsAccesses) {
  Op op;
  op.reads = {{Role::kHidden, 4, 0, 8}, {Role::kGradient, 7, 0, 8}};
  op.writes = {{Role::kGradient, 7, 0, 8}, {Role::kWorkspace, 9, 0, 8}};
  ASSERT_NE(op.find(Role::kHidden), nullptr);
  EXPECT_EQ(op.find(Role::kHidden)->buffer, 4);
  EXPECT_EQ(op.find(Role::kGradient), op.reads.data() + 1);
  EXPECT_EQ(op.find(Role::kWorkspace)->buffer, 9);
  EXPECT_EQ(op.find(Role::kTokens), nullptr);
  EXPECT_TRUE(op.reads_role(Role::kGradient));
  EXPECT_FALSE(op.reads_role(Role::kWorkspace));
}

TEST(Program, BytesOfALane) {
  HandMadeProgram made;
  made.op(Lane::kUpload, 100, {}, {made.own_buffer()});
  made.op(Lane::kUpload, 20, {}, {made.own_buffer()});
  made.op(Lane::kRead, 3, {}, {made.own_buffer()});
  Program program = made.finish();
  program.ops[1].account = Account::kParameters;
  EXPECT_EQ(lane_bytes(program, Lane::kUpload), 120);
  EXPECT_EQ(lane_bytes(program, Lane::kUpload, Account::kParameters), 20);
  EXPECT_EQ(lane_bytes(program, Lane::kRead), 3);
  EXPECT_EQ(lane_bytes(program, Lane::kWrite), 0);
}

TEST(Program, TextNamesBuffersOpsLanesAndEdges) {
  const std::string text = to_text(offloaded_program());
  for (const char* part :
       {"buffer param[0].0", "nvme", "parameters", "rope table", "step scalars", "norm partials",
        "read      read param[1].0 -> staging of param[1] at", "-> param[1] at", "upload    upload",
        "compute   forward 1 mb 0", "compute   recompute 2 mb 0", "compute   backward 3 mb 0",
        "compute   backward 2 mb 0", "compute   backward 0  after",
        "update    update 1 chunk 0 (of the step before)", "update    norm_finish",
        "write     write", "  after "}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

// "after 3', 1": op 3 of the iteration before, op 1 of this one.
TEST(Program, TextMarksEdgesToTheIterationBefore) {
  HandMadeProgram made;
  const BufferId a = made.own_buffer();
  made.op(Lane::kCompute, 1, {}, {a});
  made.op(Lane::kUpdate, 1, {a}, {made.own_buffer()});
  const std::string text = to_text(made.finish());
  EXPECT_THAT(text, HasSubstr("    0 compute   forward  after 1'\n"));
  EXPECT_THAT(text, HasSubstr("    1 update    update"));
  EXPECT_THAT(text, HasSubstr("  after 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("0'")));
}

TEST(Program, BuffersAreFoundByTheirKeys) {
  const Program program = offloaded_program();
  const auto name_by = [&](const BufferKey& key) {
    const BufferId buffer = find_buffer(program, key);
    return buffer == kNoBuffer ? std::string() : program.buffers.at(buffer).name;
  };
  EXPECT_EQ(name_by({BufferKind::kTokens}), "tokens");
  EXPECT_EQ(name_by({BufferKind::kLossesOnHost}), "losses on host");
  EXPECT_EQ(name_by({BufferKind::kParameters, 2, 0}), "param[2].0");  // on NVMe: by chunk
  EXPECT_EQ(name_by({BufferKind::kParameters, 2}), "");
  EXPECT_EQ(name_by({BufferKind::kGradients, 2}), "grad[2]");  // in memory: whole
  EXPECT_EQ(name_by({BufferKind::kReceivedHidden, -1, 0}), "");
}

Draft draft_with(const Buffer& one, const Buffer& other) {
  Draft draft;
  for (Buffer buffer : {one, other}) {
    buffer.size_bytes = 1;
    draft.add_buffer(std::move(buffer));
  }
  return draft;
}

TEST(Program, PersistentBuffersHaveKeysAndNoKeyIsTwoBuffers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // other tests' threads may run
  const Buffer home{.key = {BufferKind::kState, 1}, .life = Life::kPersistent};
  const Buffer chunk{.key = {BufferKind::kState, 1, 0}, .life = Life::kPersistent};
  const Buffer carried{.key = {BufferKind::kState, 1}, .life = Life::kCarried};
  check_keys(draft_with(home, chunk));
  check_keys(draft_with({}, {}));
  EXPECT_DEATH(check_keys(draft_with(home, home)), "broken invariant");
  EXPECT_DEATH(check_keys(draft_with(home, carried)), "broken invariant");
  EXPECT_DEATH(check_keys(draft_with({}, {.life = Life::kPersistent})), "broken invariant");
}

TEST(Program, EqualMeansEveryField) {
  const Program program = offloaded_program();
  EXPECT_EQ(program, offloaded_program());
  Program other = program;
  other.ops.back().cost.bytes += 1;
  EXPECT_NE(program, other);
  other = program;
  other.buffers.front().offset += 1;
  EXPECT_NE(program, other);
  other = program;
  other.ops.back().parts = kOfBothSteps;
  EXPECT_NE(program, other);
}

}  // namespace
}  // namespace terrace
