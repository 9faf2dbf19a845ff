#include "runtime/engine/update_checksums.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "offload/nvme_store.h"
#include "runtime/step/op_demand.h"
#include "tests/offload/store_fixture.h"
#include "tests/runtime/engine/engine_fixture.h"

// Tests of the checksums that an update takes, and of the errors that it finds. The tests of the
// engine on NVMe and the simulation show that training has the same bits with these checksums, and
// that it finds the bytes that drives spoil.
namespace terrace {
namespace {

// A program whose state is on NVMe, its arena, and its extents in memory.
class UpdateChecksumsTest : public ::testing::Test {
 protected:
  void prepare(SlotForm moments, bool parameters_on_nvme, std::int32_t blocks_per_chunk = 2) {
    ModelRuntimeOptions options = tiny_options(tiny_model("gpt2", true, false), DType::kBF16);
    options.optimizer.slot_form = moments;
    options.chunk_elements = blocks_per_chunk * kBlockElements;
    options.placement.homes[StateClass::kOptimizer] = Tier::kNvme;
    if (parameters_on_nvme) options.placement.homes[StateClass::kParameters] = Tier::kNvme;
    options.placement.has_nvme = true;
    plan_ = plan_model(options);
    host_ = std::make_unique<AlignedMemory>(program().use_of(Tier::kHost).packed_bytes, 4096);
    host_->fill(1);
    memory_ = {};
    memory_.host = host_->span();
    store_ = make_memory_store();
    for (const std::size_t size : extent_sizes(program())) {
      memory_.extents.push_back(store_->create_extent(size));
    }
    store_->prepare();
    checksums_ = std::make_unique<UpdateChecksums>(program(), memory_, plan_.model, store_.get());
  }

  const Program& program() const { return plan_.training.program; }

  // Counts the transfers of one kind of bytes on a lane: first those whose checksums an update
  // takes, then all of them.
  std::pair<int, int> taken_of_all(Lane lane, Account account) const {
    std::pair<int, int> counts;
    for (const Op& op : program().ops) {
      if (op.lane != lane || op.account != account) continue;
      ++counts.second;
      if (checksums_->takes(op)) ++counts.first;
    }
    return counts;
  }
  void expect_all(Lane lane, Account account) const {
    const auto [taken, all] = taken_of_all(lane, account);
    EXPECT_EQ(taken, all);
    EXPECT_LT(0, all);
  }
  void expect_none(Lane lane, Account account) const {
    EXPECT_EQ(taken_of_all(lane, account).first, 0);
  }

  // Expects transfers to keep a core busy in the simulation if the store takes their checksums, and
  // no core otherwise.
  void expect_simulated_alike() const {
    MachineProfile profile;
    profile.unchecked_drive = profile.drive;
    profile.unchecked_drive->read_cores = profile.unchecked_drive->write_cores = 0;
    profile.drive.read_cores = profile.drive.write_cores = 1;
    const std::vector<OpDemand> demands = demands_of(program(), profile);
    for (std::size_t i = 0; i < demands.size(); ++i) {
      const Op& op = program().ops[i];
      if (op.lane != Lane::kRead && op.lane != Lane::kWrite) continue;
      EXPECT_EQ(checksums_->takes(op), demands[i].share[OpDemand::kCores] == 0)
          << describe(program(), op);
    }
  }

  TierPlan plan_;
  std::unique_ptr<AlignedMemory> host_;
  ExecutorMemory memory_;
  std::unique_ptr<BlockStore> store_;
  std::unique_ptr<UpdateChecksums> checksums_;
};

TEST_F(UpdateChecksumsTest, AreThoseOfStateAndOfWrittenParameters) {
  prepare(SlotForm::kFp32, true);
  expect_all(Lane::kRead, Account::kOptimizerState);
  expect_all(Lane::kWrite, Account::kOptimizerState);
  expect_all(Lane::kWrite, Account::kParameters);
  expect_none(Lane::kRead, Account::kParameters);  // forward and backward want them too
  expect_simulated_alike();
}

TEST_F(UpdateChecksumsTest, ParametersInMemoryHaveNone) {
  prepare(SlotForm::kFp32, false);
  expect_all(Lane::kRead, Account::kOptimizerState);
  expect_simulated_alike();
  for (const Op& op : program().ops) {
    if (op.kind != OpKind::kUpdate) continue;
    ASSERT_NE(checksums_->parts_of(op), nullptr);
    EXPECT_EQ(checksums_->parts_of(op)->size(), 3U);  // moments and remainders
  }
}

// The exponents of 8-bit moments are fewer bytes than one checksum covers.
TEST_F(UpdateChecksumsTest, StateWhosePartsShareAChecksumIsTheStores) {
  prepare(SlotForm::kInt8, true);
  expect_none(Lane::kRead, Account::kOptimizerState);
  expect_none(Lane::kWrite, Account::kOptimizerState);
  expect_all(Lane::kWrite, Account::kParameters);
}

// A block has 8 KiB of bf16 moments. In a chunk of an odd number of blocks, the end of the first
// moment and the begin of the second one share a checksum.
TEST_F(UpdateChecksumsTest, SoIsThatOfOddChunksWithBf16Moments) {
  prepare(SlotForm::kBf16, false);
  int odd = 0;
  for (const Op& op : program().ops) {
    if (op.account != Account::kOptimizerState || op.unit < 0) continue;
    const bool is_even = plan_.model.home_part(StateClass::kOptimizer, op.unit, op.chunk).count %
                             (2 * kBlockElements) ==
                         0;
    EXPECT_EQ(checksums_->takes(op), is_even) << describe(program(), op);
    odd += is_even ? 0 : 1;
  }
  EXPECT_LT(0, odd);
  EXPECT_LT(odd, taken_of_all(Lane::kRead, Account::kOptimizerState).second);
}

TEST_F(UpdateChecksumsTest, EveryByteOfAStateIsCompared) {
  prepare(SlotForm::kFp32, false);
  for (const Op& op : program().ops) {
    if (op.kind != OpKind::kUpdate || op.unit > 1) continue;
    const UpdateChecksums::Parts& parts = *checksums_->parts_of(op);
    const std::int64_t elements =
        plan_.model.home_part(StateClass::kOptimizer, op.unit, op.chunk).count;
    checksums_->take(parts, 0, elements);
    EXPECT_NO_THROW(checksums_->compare(parts, 0, elements));
    const std::span<std::byte> state = bytes_of(program(), memory_, *op.find(Role::kState));
    for (std::size_t at = 0; at < state.size(); at += 4093) {
      state[at] ^= std::byte{1};
      EXPECT_THROW(checksums_->compare(parts, 0, elements), CorruptData) << at;
      state[at] ^= std::byte{1};
    }
    state.back() ^= std::byte{128};
    EXPECT_THROW(checksums_->compare(parts, 0, elements), CorruptData);
    state.back() ^= std::byte{128};
  }
}

TEST_F(UpdateChecksumsTest, BlocksAreIndependent) {
  constexpr std::int64_t kBlock = UpdateChecksums::kBlock;
  prepare(SlotForm::kFp32, true, 40);
  for (const Op& op : program().ops) {
    const std::int64_t elements =
        op.kind == OpKind::kUpdate
            ? plan_.model.home_part(StateClass::kOptimizer, op.unit, op.chunk).count
            : 0;
    if (elements <= kBlock) continue;
    const UpdateChecksums::Parts& parts = *checksums_->parts_of(op);
    checksums_->take(parts, 0, kBlock);
    EXPECT_NO_THROW(checksums_->compare(parts, 0, kBlock));
    EXPECT_THROW(checksums_->compare(parts, kBlock, elements), CorruptData);
    checksums_->take(parts, kBlock, elements);
    EXPECT_NO_THROW(checksums_->compare(parts, 0, elements));
    return;
  }
  FAIL() << "no chunk is so large";
}

}  // namespace
}  // namespace terrace
