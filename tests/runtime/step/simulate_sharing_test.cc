// How ops that run at the same time share the drive, the cores and the memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "runtime/step/simulate.h"
#include "tests/runtime/step/simulate_fixture.h"

namespace terrace {
namespace {

TEST(Simulate, ReadsAndWritesShareTheDisk) {
  MachineProfile profile = unit_profile();
  const Program program = two_ops(Lane::kRead, 4, Lane::kWrite, 4, false);
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1).makespan_s, 4);
  profile.drive.disk_bytes_per_s = 1;
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1).makespan_s, 8);
  // Both run at half speed for 4 s. Then the write runs alone with the 4 bytes that are left.
  const Program uneven = two_ops(Lane::kRead, 2, Lane::kWrite, 6, false);
  std::vector<SimulatedOp> timeline;
  EXPECT_DOUBLE_EQ(simulate(uneven, profile, 1, &timeline).makespan_s, 8);
  ASSERT_EQ(timeline.size(), 2U);
  EXPECT_EQ(timeline[0].op, 0);
  EXPECT_DOUBLE_EQ(timeline[0].end_s, 4);
}

// The rate of reads and writes together says nothing about the rate of reads alone.
TEST(Simulate, TheMixedRateIsThatOfReadsAmongWrites) {
  MachineProfile profile = unit_profile();
  profile.drive.read_bytes_per_s = 6;
  profile.drive.write_bytes_per_s = 3;
  profile.drive.disk_bytes_per_s = 2;
  HandMadeProgram made;
  made.op(Lane::kRead, 12, {}, {made.own_buffer()});
  EXPECT_DOUBLE_EQ(simulate(made.finish(), profile, 1).makespan_s, 2);
  // Each direction runs at a quarter of its speed.
  const Program both = two_ops(Lane::kRead, 12, Lane::kWrite, 6, false);
  EXPECT_DOUBLE_EQ(simulate(both, profile, 1).makespan_s, 8);
}

// Four threads that want one core each, and one that wants half a core, share four cores.
TEST(Simulate, AThreadThatWantsLittleOfACoreHasItFirst) {
  MachineProfile profile = unit_profile();
  profile.cores = 4;
  profile.drive.read_cores = 0.5;
  const Program program = two_ops(Lane::kCompute, 7, Lane::kRead, 20, false);
  std::vector<SimulatedOp> timeline;
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1, &timeline).makespan_s, 20);
  EXPECT_EQ(timeline.front().op, 0);
  EXPECT_DOUBLE_EQ(timeline.front().end_s, 8) << "at 3.5 of 4 cores";
}

// The cores are shared in the same way. For each half core that the reading thread gets, compute
// goes without a whole one.
TEST(Simulate, ComputeWaitsForItsThreadsThatGiveWayToTransfers) {
  MachineProfile profile = unit_profile();
  profile.cores = 4;
  profile.drive.read_cores = 0.5;
  profile.transfer_displacement = 2;
  const auto end_of_compute = [&](double read) {
    const Program program = two_ops(Lane::kCompute, 6, Lane::kRead, read, false);
    std::vector<SimulatedOp> timeline;
    simulate(program, profile, 1, &timeline);
    const auto compute = std::ranges::find(timeline, 0, &SimulatedOp::op);
    return compute->end_s;
  };
  EXPECT_DOUBLE_EQ(end_of_compute(20), 8) << "at 3 of 4 cores";
  EXPECT_DOUBLE_EQ(end_of_compute(4), 4 + 3) << "at 3 of 4 cores while there are reads";
  profile.cores = 5;
  EXPECT_DOUBLE_EQ(end_of_compute(20), 6) << "no thread gives way";
  profile.cores = 4;
  profile.compute_cores = 0;  // an accelerator
  EXPECT_DOUBLE_EQ(end_of_compute(20), 6);
}

TEST(Simulate, ComputeKeepsHalfOfWhatItsThreadsHave) {
  MachineProfile profile = unit_profile();
  profile.cores = 4;
  profile.drive.read_cores = 0.5;
  profile.transfer_displacement = 100;
  const Program program = two_ops(Lane::kCompute, 7, Lane::kRead, 20, false);
  std::vector<SimulatedOp> timeline;
  simulate(program, profile, 1, &timeline);
  EXPECT_DOUBLE_EQ(std::ranges::find(timeline, 0, &SimulatedOp::op)->end_s, 16)
      << "at half of 3.5 of 4 cores";
}

// Nobody gets the share of the cores that compute loses while it waits for its own threads.
TEST(Simulate, TransfersAreAsFastHoweverComputeWaits) {
  MachineProfile profile = unit_profile();
  profile.cores = profile.compute_cores = 2;
  profile.drive.read_cores = 0.75;
  const Program program = two_ops(Lane::kCompute, 40, Lane::kRead, 8, false);
  for (const double displacement : {1.0, 1.5}) {
    profile.transfer_displacement = displacement;
    std::vector<SimulatedOp> timeline;
    simulate(program, profile, 1, &timeline);
    const auto read = std::ranges::find(timeline, 1, &SimulatedOp::op);
    EXPECT_DOUBLE_EQ(read->end_s, 9) << "two thirds of a core, of three quarters";
  }
}

// Eight reads run beside one write, and each direction gets half of the disk.
TEST(Simulate, DirectionsTakeTurnsHoweverManyRequestsAreInFlight) {
  MachineProfile profile = unit_profile();
  profile.io_depth = 8;
  profile.drive.disk_bytes_per_s = 1;
  HandMadeProgram made;
  made.op(Lane::kWrite, 8, {}, {made.own_buffer()});
  for (int i = 0; i < 8; ++i) made.op(Lane::kRead, 1, {}, {made.own_buffer()});
  std::vector<SimulatedOp> timeline;
  simulate(made.finish(), profile, 1, &timeline);
  ASSERT_EQ(timeline.size(), 9U);
  for (const SimulatedOp& one : timeline) EXPECT_DOUBLE_EQ(one.end_s, 16) << one.op;
}

TEST(Simulate, ReadsInFlightHaveTheCoresOfOneBeforeCompute) {
  MachineProfile profile = unit_profile();
  profile.io_depth = 2;
  profile.cores = profile.compute_cores = 2;
  profile.drive.read_cores = 0.75;
  HandMadeProgram made;
  made.op(Lane::kCompute, 40, {}, {made.own_buffer()});
  for (int i = 0; i < 2; ++i) made.op(Lane::kRead, 4, {}, {made.own_buffer()});
  std::vector<SimulatedOp> timeline;
  simulate(made.finish(), profile, 1, &timeline);
  ASSERT_EQ(timeline.size(), 3U);
  EXPECT_DOUBLE_EQ(timeline[0].end_s, 9) << "as TransfersAreAsFastHoweverComputeWaits";
  EXPECT_DOUBLE_EQ(timeline[1].end_s, 9);
}

TEST(Simulate, ReadsInFlightWantTheCoresOfOne) {
  MachineProfile profile = unit_profile();
  profile.io_depth = 8;
  profile.cores = 4;
  profile.compute_cores = 3;
  profile.drive.read_cores = 0.5;
  profile.transfer_displacement = 2;
  HandMadeProgram made;
  const OpId compute = made.op(Lane::kCompute, 3, {}, {made.own_buffer()});
  for (int i = 0; i < 8; ++i) made.op(Lane::kRead, 1, {}, {made.own_buffer()});
  std::vector<SimulatedOp> timeline;
  EXPECT_DOUBLE_EQ(simulate(made.finish(), profile, 1, &timeline).makespan_s, 8);
  EXPECT_DOUBLE_EQ(std::ranges::find(timeline, compute, &SimulatedOp::op)->end_s, 3);
}

TEST(Simulate, OnlyComputeWaitsForItsThreads) {
  MachineProfile profile = unit_profile();
  profile.cores = 4;
  profile.drive.read_cores = 0.5;
  const Program update = two_ops(Lane::kUpdate, 7, Lane::kRead, 20, false);
  std::vector<SimulatedOp> without;
  simulate(update, profile, 1, &without);
  profile.transfer_displacement = 2;
  std::vector<SimulatedOp> with;
  simulate(update, profile, 1, &with);
  EXPECT_EQ(with, without);
}

// Returns an update with the read before it and the write after it.
Program update_with_transfers(Account account) {
  HandMadeProgram made;
  const BufferId buffer = made.own_buffer();
  made.op(Lane::kRead, 12, {}, {buffer});
  made.op(Lane::kUpdate, 6, {buffer}, {buffer});
  made.op(Lane::kWrite, 12, {buffer}, {});
  Program program = made.finish();
  for (Op& op : program.ops) {
    if (op.lane != Lane::kUpdate) op.kind = op.lane == Lane::kRead ? OpKind::kRead : OpKind::kWrite;
    op.account = account;
  }
  return program;
}

TEST(Simulate, UpdatesTakeTheChecksumsOfTheirStateAndOfWhatTheyWrite) {
  MachineProfile profile = unit_profile();
  const auto seconds = [&](Account account) {
    return simulate(update_with_transfers(account), profile, 1).makespan_s;
  };
  EXPECT_DOUBLE_EQ(seconds(Account::kOptimizerState), 12 + 6 + 12);
  profile.unchecked_drive = {.read_bytes_per_s = 4, .write_bytes_per_s = 3, .disk_bytes_per_s = 5};
  EXPECT_DOUBLE_EQ(seconds(Account::kOptimizerState), 3 + 6 + 4);
  EXPECT_DOUBLE_EQ(seconds(Account::kParameters), 12 + 6 + 4);
  EXPECT_DOUBLE_EQ(seconds(Account::kGradients), 12 + 6 + 12);
  profile.checksum_s_per_byte = 0.25;
  EXPECT_DOUBLE_EQ(seconds(Account::kOptimizerState), 3 + 12 + 4);
  EXPECT_DOUBLE_EQ(seconds(Account::kParameters), 12 + 9 + 4);
  EXPECT_DOUBLE_EQ(seconds(Account::kGradients), 12 + 6 + 12);
}

// A drive that is too slow for both transfers serves each with half its rate, though one keeps a
// core busier.
TEST(Simulate, TheDriveServesTransfersAlikeWhoeverTakesTheirChecksums) {
  MachineProfile profile = unit_profile();
  profile.drive.read_cores = 0.5;
  profile.drive.write_cores = 0.25;
  profile.drive.disk_bytes_per_s = 1;
  profile.unchecked_drive = profile.drive;
  profile.unchecked_drive->read_cores = profile.unchecked_drive->write_cores = 0.01;
  HandMadeProgram made;
  made.op(Lane::kUpdate, 0, {}, {made.own_buffer()});
  made.op(Lane::kRead, 3, {}, {made.own_buffer()});
  const OpId write = made.op(Lane::kWrite, 3, {}, {made.own_buffer()});
  Program program = made.finish();
  program.ops[write].account = Account::kOptimizerState;
  std::vector<SimulatedOp> timeline;
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1, &timeline).makespan_s, 6);
  for (const SimulatedOp& op : timeline) {
    EXPECT_DOUBLE_EQ(op.end_s, op.op == 0 ? 0 : 6);
  }
}

// An update takes the time for its own chunk's bytes, also if the time of the update itself was
// measured.
TEST(Simulate, AnUpdateTakesTheChecksumsOfItsChunk) {
  MachineProfile profile = unit_profile();
  profile.unchecked_drive = profile.drive;
  profile.checksum_s_per_byte = 0.5;
  HandMadeProgram made;
  const BufferId small = made.own_buffer();
  const BufferId large = made.own_buffer();
  made.op(Lane::kRead, 2, {}, {small});
  made.op(Lane::kRead, 4, {}, {large});
  made.op(Lane::kUpdate, 10, {small}, {small});
  made.op(Lane::kUpdate, 10, {large}, {large});
  Program program = made.finish();
  for (const OpId first : {0, 1}) {
    program.ops[first].kind = OpKind::kRead;
    program.ops[first].account = Account::kOptimizerState;
    for (const OpId op : {first, first + 2}) {
      program.ops[op].unit = 3;
      program.ops[op].chunk = first;
    }
  }
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1).makespan_s, 2 + (10 + 1) + (10 + 2));
  profile.seconds_per_work[class_of(program, program.ops[2])] = 0.1;
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1).makespan_s, 2 + 4 + (1 + 2));
}

TEST(Simulate, MeasuredClassesTakeThePlaceOfRates) {
  MachineProfile profile = unit_profile();
  HandMadeProgram made;
  made.op(Lane::kUpdate, 6, {}, {made.own_buffer()});
  const Program program = made.finish();
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1).makespan_s, 6);
  profile.seconds_per_work[class_of(program, program.ops[0])] = 0.5;
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1).makespan_s, 3);
}

TEST(Simulate, ReadsInFlightShareTheirRate) {
  MachineProfile profile = unit_profile();
  const Program program = two_ops(Lane::kRead, 1, Lane::kRead, 3, false);
  std::vector<SimulatedOp> one_by_one;
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1, &one_by_one).makespan_s, 4);
  EXPECT_DOUBLE_EQ(one_by_one[0].end_s, 1);
  EXPECT_DOUBLE_EQ(one_by_one[1].start_s, 1);
  profile.io_depth = 2;
  std::vector<SimulatedOp> together;
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1, &together).makespan_s, 4);
  EXPECT_DOUBLE_EQ(together[0].end_s, 2);
  EXPECT_DOUBLE_EQ(together[1].start_s, 0);
}

TEST(Simulate, ComputeAndUpdatesShareTheCores) {
  MachineProfile profile = unit_profile();
  const Program program = two_ops(Lane::kCompute, 4, Lane::kUpdate, 4, false);
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1).makespan_s, 4);
  profile.cores = 4;
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1).makespan_s, 8);
  profile.compute_cores = 0;  // an accelerator
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1).makespan_s, 4);
}

// One thread of an update and two threads of compute share two cores: each gets two thirds of one.
// For each of the update's, compute goes without two.
TEST(Simulate, ComputeWaitsForItsThreadsThatGiveWayToUpdates) {
  MachineProfile profile = unit_profile();
  profile.cores = profile.compute_cores = 2;
  profile.update_cores = 1;
  const Program program = two_ops(Lane::kCompute, 9, Lane::kUpdate, 4, false);
  const auto end_of_compute = [&](double displacement) {
    profile.update_displacement = displacement;
    std::vector<SimulatedOp> timeline;
    simulate(program, profile, 1, &timeline);
    EXPECT_DOUBLE_EQ(std::ranges::find(timeline, 1, &SimulatedOp::op)->end_s, 6);
    return std::ranges::find(timeline, 0, &SimulatedOp::op)->end_s;
  };
  EXPECT_DOUBLE_EQ(end_of_compute(1), 9 + 2);
  EXPECT_DOUBLE_EQ(end_of_compute(1.75), 9 + 3.5);
  profile.cores = 3;
  profile.update_displacement = 2;
  EXPECT_DOUBLE_EQ(simulate(program, profile, 1).makespan_s, 9) << "there are enough";
}

// Memory suffices for half of the rate that upload and update ask for. The compute goes on
// undisturbed.
TEST(Simulate, OnlyTheUsersOfAScarceResourceAreSlowed) {
  MachineProfile profile = unit_profile();
  profile.memory_bytes_per_s = 1;
  HandMadeProgram made;
  made.op(Lane::kCompute, 3, {}, {made.own_buffer()});
  made.op(Lane::kUpload, 2, {}, {made.own_buffer()});
  made.op(Lane::kUpdate, 2, {}, {made.own_buffer()});
  std::vector<SimulatedOp> timeline;
  EXPECT_DOUBLE_EQ(simulate(made.finish(), profile, 1, &timeline).makespan_s, 4);
  EXPECT_EQ(timeline.front().op, 0);
  EXPECT_DOUBLE_EQ(timeline.front().end_s, 3);
}

}  // namespace
}  // namespace terrace
