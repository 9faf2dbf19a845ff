#include "runtime/compare/hash_comparison.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace terrace {
namespace {

// A model of an embedding, two blocks and a head, in two micro-batches.
HashedModel small_model() {
  HashedModel model;
  model.micro_batches = 2;
  model.compute_type = "bf16";
  model.gradient_type = "fp32";
  model.units = {"the embedding", "block 0", "block 1", "the head"};
  model.group_elements = {4096, 4096, 4096, 4096};
  model.group_units = {0, 1, 2, 3};
  return model;
}

HashKey value(HashedOp op, std::int32_t unit, std::int32_t micro_batch, bool is_output,
              const std::string& name) {
  HashKey key;
  key.op = op;
  key.unit = unit;
  key.group = unit;
  key.micro_batch = micro_batch;
  key.is_output = is_output;
  key.value = name;
  if (op == HashedOp::kUpdate) key.chunk = 0;
  return key;
}

HashTable forward_table() {
  HashTable table;
  table.model = small_model();
  for (std::int32_t m = 0; m < 2; ++m) {
    table.keys.push_back(value(HashedOp::kInput, -1, m, true, "tokens"));
  }
  for (std::int32_t m = 0; m < 2; ++m) {
    for (std::int32_t unit = 0; unit < 3; ++unit) {
      const char* read = unit == 0 ? "tokens" : "hidden states";
      table.keys.push_back(value(HashedOp::kForward, unit, m, false, "parameters"));
      table.keys.push_back(value(HashedOp::kForward, unit, m, false, read));
      table.keys.push_back(value(HashedOp::kForward, unit, m, true, "hidden states"));
    }
  }
  return table;
}

// A run of the steps [first, last], all of whose hashes are the same.
RecordedRun run_of(const HashTable& table, std::int64_t first, std::int64_t last) {
  RecordedRun run;
  RecordedHashes& hashes = run.hashes[0];
  hashes.tables = {table};
  for (std::int64_t step = first; step <= last; ++step) {
    hashes.rows[step] = {0, std::vector<std::uint64_t>(table.keys.size(), 5)};
  }
  return run;
}

void change(RecordedRun& run, std::int64_t step, const HashKey& key, std::uint64_t hash = 6) {
  RecordedHashes& hashes = run.hashes.at(0);
  const auto& keys = hashes.tables.front().keys;
  const auto found = std::ranges::find(keys, key);
  ASSERT_NE(found, keys.end());
  hashes.rows.at(step).hashes.at(static_cast<std::size_t>(found - keys.begin())) = hash;
}

TEST(CompareHashes, EqualRunsAreEqual) {
  const RecordedRun run = run_of(forward_table(), 1, 3);
  const HashComparison found = compare_hashes(run, run);
  EXPECT_EQ(found.obstacle, "");
  EXPECT_FALSE(found.step.has_value());
  EXPECT_EQ(found.steps, 3);
  EXPECT_EQ(found.values, 60);
}

TEST(CompareHashes, NamesTheInputAndThenTheOpThatReadsIt) {
  const RecordedRun a = run_of(forward_table(), 1, 3);
  RecordedRun b = a;
  change(b, 2, value(HashedOp::kForward, 1, 1, true, "hidden states"));
  change(b, 2, value(HashedOp::kForward, 1, 1, false, "hidden states"));
  change(b, 2, value(HashedOp::kForward, 0, 1, true, "hidden states"));
  change(b, 2, value(HashedOp::kForward, 0, 1, false, "tokens"));
  HashKey input = value(HashedOp::kInput, -1, 1, true, "tokens");
  change(b, 2, input);
  change(b, 3, value(HashedOp::kInput, -1, 0, true, "tokens"));
  const HashComparison found = compare_hashes(a, b);
  ASSERT_EQ(found.step, 2);
  ASSERT_EQ(found.ops.size(), 3U);
  EXPECT_EQ(describe_op(found.ops[0].op, found.model), "input of micro-batch 1");
  EXPECT_EQ(found.ops[0].cause, OpDifference::Cause::kInput);
  EXPECT_EQ(describe_op(found.ops[1].op, found.model), "forward of the embedding, micro-batch 1");
  EXPECT_EQ(found.ops[1].cause, OpDifference::Cause::kFollows);
  EXPECT_EQ(describe_op(found.ops[2].op, found.model), "forward of block 0, micro-batch 1");
}

TEST(CompareHashes, AnOpWithEqualReadsComputesSomethingElse) {
  const RecordedRun a = run_of(forward_table(), 1, 2);
  RecordedRun b = a;
  change(b, 2, value(HashedOp::kForward, 1, 0, true, "hidden states"));
  const HashComparison found = compare_hashes(a, b);
  ASSERT_EQ(found.ops.size(), 1U);
  EXPECT_EQ(found.ops[0].cause, OpDifference::Cause::kComputes);
  EXPECT_EQ(found.ops[0].equal_reads.size(), 2U);
}

TEST(CompareHashes, BytesThatNobodyHasWrittenOtherwiseWereMoved) {
  const RecordedRun a = run_of(forward_table(), 1, 2);
  RecordedRun b = a;
  change(b, 2, value(HashedOp::kForward, 1, 0, false, "parameters"));
  change(b, 2, value(HashedOp::kForward, 1, 0, true, "hidden states"));
  EXPECT_EQ(compare_hashes(a, b).ops.front().cause, OpDifference::Cause::kMoved);
}

TEST(CompareHashes, OtherParametersInTheFirstStepAreAnotherStart) {
  const RecordedRun a = run_of(forward_table(), 1, 4);
  RecordedRun b = a;
  for (const std::int64_t step : {1, 4}) {
    change(b, step, value(HashedOp::kForward, 0, 0, false, "parameters"));
  }
  EXPECT_EQ(compare_hashes(a, b).ops.front().cause, OpDifference::Cause::kStart);
  b.hashes[0].rows.erase(1);
  EXPECT_EQ(compare_hashes(a, b).ops.front().cause, OpDifference::Cause::kMoved);
  b.hashes[0].rows.erase(3);
  EXPECT_EQ(compare_hashes(a, b).ops.front().cause, OpDifference::Cause::kStart)
      << "step 3 is not compared";
}

TEST(CompareHashes, SkipsValuesThatWereNotRecorded) {
  const RecordedRun a = run_of(forward_table(), 1, 2);
  RecordedRun b = a;
  change(b, 2, value(HashedOp::kForward, 1, 0, true, "hidden states"), kNoHash);
  const HashComparison found = compare_hashes(a, b);
  EXPECT_FALSE(found.step.has_value());
  EXPECT_EQ(found.values, 39);
}

TEST(CompareHashes, ComparesTheValuesThatBothRunsHave) {
  const RecordedRun a = run_of(forward_table(), 1, 2);
  HashTable more = forward_table();
  more.keys.insert(more.keys.begin(), value(HashedOp::kRecompute, 1, 0, true, "saved q"));
  RecordedRun b = run_of(more, 1, 2);
  change(b, 1, value(HashedOp::kRecompute, 1, 0, true, "saved q"));
  const HashComparison found = compare_hashes(a, b);
  EXPECT_FALSE(found.step.has_value());
  EXPECT_EQ(found.only_one, 1);
}

TEST(CompareHashes, SaysWhyRunsCannotBeCompared) {
  const RecordedRun a = run_of(forward_table(), 1, 2);
  const auto obstacle = [&](auto set) {
    HashTable other = forward_table();
    set(other.model);
    return compare_hashes(a, run_of(other, 1, 2)).obstacle;
  };
  EXPECT_EQ(obstacle([](HashedModel& m) { m.data_ranks = 2; }),
            "other numbers of data-parallel ranks: 1 and 2");
  EXPECT_EQ(obstacle([](HashedModel& m) { m.tensor_ranks = 2; }),
            "other numbers of tensor-parallel ranks: 1 and 2");
  EXPECT_EQ(obstacle([](HashedModel& m) { m.compute_type = "fp32"; }),
            "other compute types: bf16 and fp32");
  EXPECT_EQ(obstacle([](HashedModel& m) { m.micro_batches = 3; }),
            "other numbers of micro-batches: 2 and 3");
  EXPECT_EQ(obstacle([](HashedModel& m) { m.tokens_bytes = 3; }), "micro-batches of another size");
  EXPECT_EQ(obstacle([](HashedModel& m) { m.units.pop_back(); }), "models of other sizes");
  EXPECT_EQ(compare_hashes(a, run_of(forward_table(), 3, 4)).obstacle,
            "they have recorded hashes of no step that both have");
}

// A later micro-batch of a unit only goes on with the sum that differs.
TEST(CompareHashes, ASumThatGoesOnFollows) {
  HashTable table;
  table.model = small_model();
  for (std::int32_t m = 0; m < 2; ++m) {
    table.keys.push_back(value(HashedOp::kBackward, 1, m, false, "hidden states"));
    table.keys.push_back(value(HashedOp::kBackward, 1, m, true, "gradient sum"));
  }
  const RecordedRun a = run_of(table, 1, 1);
  RecordedRun b = a;
  change(b, 1, value(HashedOp::kBackward, 1, 0, true, "gradient sum"));
  change(b, 1, value(HashedOp::kBackward, 1, 1, true, "gradient sum"));
  const HashComparison found = compare_hashes(a, b);
  ASSERT_EQ(found.ops.size(), 2U);
  EXPECT_EQ(found.ops[0].cause, OpDifference::Cause::kComputes);
  EXPECT_EQ(found.ops[1].cause, OpDifference::Cause::kFollows);
}

// Units ascend in the forward and descend in the backward, whatever the order in the table is.
TEST(CompareHashes, TheOrderIsThatOfTheComputation) {
  HashTable table;
  table.model = small_model();
  table.keys = {value(HashedOp::kUpdate, 0, -1, true, "parameters"),
                value(HashedOp::kNormPartials, 0, -1, true, "sums of squares"),
                value(HashedOp::kBackward, 0, -1, true, "gradient sum"),
                value(HashedOp::kBackward, 1, 0, true, "gradient of hidden states"),
                value(HashedOp::kRecompute, 1, 0, true, "saved q"),
                value(HashedOp::kBackward, 3, 0, true, "gradient of hidden states"),
                value(HashedOp::kForward, 2, 0, true, "hidden states"),
                value(HashedOp::kForward, 0, 0, true, "hidden states")};
  const RecordedRun a = run_of(table, 1, 1);
  RecordedRun b = a;
  for (std::uint64_t& hash : b.hashes[0].rows.at(1).hashes) hash = 6;
  const HashComparison found = compare_hashes(a, b);
  ASSERT_EQ(found.ops.size(), table.keys.size());
  for (std::size_t op = 0; op < found.ops.size(); ++op) {
    EXPECT_EQ(found.ops[op].op, table.keys[table.keys.size() - 1 - op]) << op;
  }
}

}  // namespace
}  // namespace terrace
