#include "runtime/step/hazards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>

#include "runtime/step/verify.h"
#include "tests/runtime/step/hand_made_program.h"

namespace terrace {

std::ostream& operator<<(std::ostream& out, const Dependency& edge) {
  return out << edge.op << (edge.distance == 1 ? "'" : "");
}

namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr std::size_t kSize = HandMadeProgram::kSize;

Dependency here(OpId op) { return {op, 0}; }
Dependency before(OpId op) { return {op, 1}; }

TEST(Hazards, AReadWaitsForItsWriter) {
  HandMadeProgram made;
  const BufferId a = made.own_buffer();
  made.op(Lane::kUpload, 1, {}, {a});
  made.op(Lane::kCompute, 1, {a}, {});
  const Program program = made.finish();
  EXPECT_THAT(program.ops[1].after, UnorderedElementsAre(here(0)));
  // The next iteration's upload waits until this one's data has been read.
  EXPECT_THAT(program.ops[0].after, UnorderedElementsAre(before(1)));
  EXPECT_THAT(verify(program), IsEmpty());
}

TEST(Hazards, AWriteWaitsForAllReadersSinceTheLastWrite) {
  HandMadeProgram made;
  const BufferId a = made.own_buffer(Life::kPersistent);
  made.op(Lane::kCompute, 1, {a}, {});
  made.op(Lane::kDownload, 1, {a}, {});
  made.op(Lane::kUpdate, 1, {}, {a});
  const Program program = made.finish();
  EXPECT_THAT(program.ops[2].after, UnorderedElementsAre(here(0), here(1)));
  EXPECT_THAT(program.ops[0].after, UnorderedElementsAre(before(2)));
  EXPECT_THAT(program.ops[1].after, UnorderedElementsAre(before(2)));
}

TEST(Hazards, AWriteWaitsForTheWriterOfTheSamePlace) {
  HandMadeProgram made;
  made.op(Lane::kUpload, 1, {}, {made.buffer(0, kSize)});
  made.op(Lane::kCompute, 1, {}, {made.buffer(0, kSize)});
  const Program program = made.finish();
  EXPECT_THAT(program.ops[1].after, UnorderedElementsAre(here(0)));
  EXPECT_THAT(program.ops[0].after, UnorderedElementsAre(before(1)));
}

// Two buffers share half a place. A third one beside them has nothing to do with either.
TEST(Hazards, PlacesThatOverlapInPartCount) {
  HandMadeProgram made;
  const BufferId low = made.buffer(0, 2 * kSize);
  const BufferId high = made.buffer(kSize, 2 * kSize);
  const BufferId beside = made.buffer(3 * kSize, kSize);
  made.op(Lane::kUpload, 1, {}, {low});
  made.op(Lane::kCompute, 1, {low}, {});
  made.op(Lane::kDownload, 1, {}, {high});
  made.op(Lane::kUpdate, 1, {}, {beside});
  const Program program = made.finish();
  EXPECT_THAT(program.ops[2].after, UnorderedElementsAre(here(0), here(1)));
  EXPECT_THAT(program.ops[3].after, IsEmpty());
}

TEST(Hazards, TiersAreNotTheSamePlace) {
  HandMadeProgram made;
  made.op(Lane::kUpload, 1, {}, {made.buffer(0, kSize, Life::kTransient, Tier::kDevice)});
  made.op(Lane::kCompute, 1, {}, {made.buffer(0, kSize)});
  const Program program = made.finish();
  EXPECT_THAT(program.ops[0].after, IsEmpty());
  EXPECT_THAT(program.ops[1].after, IsEmpty());
}

// An extent's offset is its number, and any part of it counts as all of it.
TEST(Hazards, ExtentsAreOrderedByTheirNumber) {
  HandMadeProgram made;
  const BufferId zero = made.buffer(0, kSize, Life::kPersistent, Tier::kNvme);
  const BufferId one = made.buffer(1, kSize, Life::kPersistent, Tier::kNvme);
  made.op(Lane::kWrite, 1, {}, {zero});
  made.op(Lane::kWrite, 1, {}, {one});
  made.op(Lane::kRead, 1, {one}, {made.own_buffer()});
  const Program program = made.finish();
  EXPECT_THAT(program.ops[2].after, UnorderedElementsAre(here(1), before(2)));
  EXPECT_THAT(program.ops[0].after, UnorderedElementsAre(before(0)));
}

TEST(Hazards, AnInOrderLaneNeedsNoEdgeToItself) {
  HandMadeProgram made;
  const BufferId a = made.own_buffer();
  made.op(Lane::kCompute, 1, {}, {a});
  made.op(Lane::kCompute, 1, {a}, {a});
  const Program program = made.finish();
  EXPECT_THAT(program.ops[0].after, IsEmpty());
  EXPECT_THAT(program.ops[1].after, IsEmpty());
}

// Several reads are in flight at once, so the order of their lane says nothing about when they end.
TEST(Hazards, ReadsAndWritesNeedEdgesToTheirOwnLane) {
  HandMadeProgram made;
  const BufferId a = made.own_buffer();
  made.op(Lane::kRead, 1, {}, {a});
  made.op(Lane::kRead, 1, {}, {a});
  const Program program = made.finish();
  EXPECT_THAT(program.ops[1].after, UnorderedElementsAre(here(0)));
  EXPECT_THAT(program.ops[0].after, UnorderedElementsAre(before(1)));
}

TEST(Hazards, OfAnInOrderLaneOnlyTheLatestIsWaitedFor) {
  HandMadeProgram made;
  const BufferId a = made.own_buffer(Life::kPersistent);
  const BufferId b = made.own_buffer(Life::kPersistent);
  made.op(Lane::kCompute, 1, {a}, {});
  made.op(Lane::kCompute, 1, {b}, {});
  made.op(Lane::kUpdate, 1, {}, {a, b});
  const Program program = made.finish();
  EXPECT_THAT(program.ops[2].after, UnorderedElementsAre(here(1)));
  HandMadeProgram loose;
  const BufferId c = loose.own_buffer(Life::kPersistent);
  const BufferId d = loose.own_buffer(Life::kPersistent);
  loose.op(Lane::kWrite, 1, {c}, {});
  loose.op(Lane::kWrite, 1, {d}, {});
  loose.op(Lane::kUpdate, 1, {}, {c, d});
  EXPECT_THAT(loose.finish().ops[2].after, UnorderedElementsAre(here(0), here(1)));
}

TEST(Hazards, AnEdgeOfThisIterationStandsForThatOfTheOneBefore) {
  HandMadeProgram made;
  const BufferId a = made.own_buffer(Life::kPersistent);
  made.op(Lane::kUpdate, 1, {a}, {});
  made.op(Lane::kCompute, 1, {a}, {a});
  made.op(Lane::kUpdate, 1, {a}, {});
  const Program program = made.finish();
  EXPECT_THAT(program.ops[0].after, UnorderedElementsAre(before(1)));
  EXPECT_THAT(program.ops[1].after, UnorderedElementsAre(here(0)));
  EXPECT_THAT(program.ops[2].after, UnorderedElementsAre(here(1)));
}

TEST(Hazards, RangesOfABufferAreOrderedOneByOne) {
  HandMadeProgram made;
  const BufferId a = made.buffer(0, 2 * kSize);
  made.op(Lane::kUpload, 1, {}, {a});
  made.op(Lane::kDownload, 1, {}, {a});
  made.op(Lane::kCompute, 1, {a}, {});
  Program program = made.finish();
  program.ops[0].writes[0] = {Role::kTarget, a, 0, kSize};
  program.ops[1].writes[0] = {Role::kTarget, a, kSize, kSize};
  add_edges(program);
  EXPECT_THAT(program.ops[0].after, UnorderedElementsAre(before(2)));
  EXPECT_THAT(program.ops[1].after, UnorderedElementsAre(before(2)));
  EXPECT_THAT(program.ops[2].after, UnorderedElementsAre(here(0), here(1)));
}

TEST(Hazards, AddingEdgesTwiceChangesNothing) {
  HandMadeProgram made;
  const BufferId a = made.own_buffer();
  made.op(Lane::kUpload, 1, {}, {a});
  made.op(Lane::kCompute, 1, {a}, {});
  Program program = made.finish();
  const Program once = program;
  add_edges(program);
  EXPECT_EQ(program, once);
}

}  // namespace
}  // namespace terrace
