#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/runtime/engine/resumed_ranks.h"

// Sequences that hold several documents, each of which is computed as if it were alone.
namespace terrace {
namespace {

constexpr std::int64_t kPositions = 24;

struct Document {
  std::vector<std::int32_t> tokens;   // inputs, and one more token
  std::vector<std::int32_t> targets;  // of the inputs; negative: is not counted

  std::int64_t rows() const { return std::ssize(targets); }
};

Document make_document(std::int64_t rows, std::int64_t vocabulary, unsigned seed) {
  std::mt19937 random(seed);
  Document document;
  for (std::int64_t i = 0; i <= rows; ++i) {
    document.tokens.push_back(static_cast<std::int32_t>(random() % vocabulary));
  }
  document.targets.assign(document.tokens.begin() + 1, document.tokens.end());
  for (std::int64_t i = 0; i < rows / 3; ++i) document.targets[i] = -1;
  return document;
}

// The lists of one sequence.
struct Sequence {
  std::vector<std::int32_t> tokens, targets, positions, first_keys;

  void add(const Document& document) {
    const auto start = static_cast<std::int32_t>(tokens.size());
    tokens.insert(tokens.end(), document.tokens.begin(), document.tokens.end() - 1);
    targets.insert(targets.end(), document.targets.begin(), document.targets.end());
    for (std::int32_t i = 0; i < document.rows(); ++i) {
      positions.push_back(i);
      first_keys.push_back(start);
    }
  }
  void pad() {
    const std::int64_t rows = kPositions - std::ssize(tokens);
    if (rows > 0)
      add({std::vector<std::int32_t>(rows + 1, 0), std::vector<std::int32_t>(rows, -1)});
  }
};

// Returns a micro-batch of these sequences.
std::vector<std::int32_t> batch_of(const std::vector<Sequence>& sequences, bool has_documents) {
  std::vector<std::int32_t> batch;
  const auto append = [&](std::vector<std::int32_t> Sequence::* list) {
    for (const Sequence& one : sequences) {
      batch.insert(batch.end(), (one.*list).begin(), (one.*list).end());
    }
  };
  append(&Sequence::tokens);
  append(&Sequence::targets);
  if (!has_documents) return batch;
  append(&Sequence::positions);
  append(&Sequence::first_keys);
  return batch;
}

struct StepValues {
  double loss = 0;
  double norm = 0;
  double evaluated = 0;
  friend bool operator==(const StepValues&, const StepValues&) = default;
};

// Takes one step of a model that starts from a seed.
StepValues values_of(const ModelRuntimeOptions& options, const std::vector<std::int32_t>& batch) {
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(RandomState(1234));
  StepValues values;
  values.evaluated = engine.evaluate(batch);
  engine.begin_step({1, batch, counted_targets(options, batch), 1e-3});
  const StepOutcome outcome = engine.finish_step();
  values.loss = outcome.result.loss;
  values.norm = outcome.result.gradient_norm;
  engine.drain();
  return values;
}

ModelRuntimeOptions options_for(std::string_view family, DType type = DType::kF32) {
  SmallModel sizes;
  sizes.layers = 3;
  sizes.window = 4;
  if (family == "gpt2") sizes.intermediate = 4 * sizes.width;
  sizes.tied = family != "llama";
  ModelRuntimeOptions options = tiny_options(small_model(family, sizes), type);
  options.batch = {2, kPositions};
  options.placement.micro_batches = 1;
  return options;
}

std::vector<Document> documents_for(const ModelRuntimeOptions& options) {
  std::vector<Document> documents;
  for (const std::int64_t rows : {9, 7, 5, 11, 12}) {
    documents.push_back(
        make_document(rows, options.model.vocabulary, static_cast<unsigned>(documents.size())));
  }
  return documents;
}

// Packs three documents and padding into the first sequence, two and padding into the second.
std::vector<Sequence> pack(const std::vector<Document>& documents) {
  std::vector<Sequence> sequences(2);
  for (std::size_t i = 0; i < documents.size(); ++i) sequences[i < 3 ? 0 : 1].add(documents[i]);
  for (Sequence& one : sequences) one.pad();
  return sequences;
}

class PackedDocuments : public testing::TestWithParam<const char*> {};

TEST_P(PackedDocuments, HaveTheLossAndNormOfThemAlone) {
  ModelRuntimeOptions options = options_for(GetParam());
  const std::vector<Document> documents = documents_for(options);
  const std::vector<Sequence> packed = pack(documents);
  const StepValues crossing = values_of(options, batch_of(packed, false));
  options.batch.has_documents = true;
  const StepValues together = values_of(options, batch_of(packed, true));

  ModelRuntimeOptions alone = options;
  alone.batch = {1, kPositions};
  alone.placement.micro_batches = static_cast<std::int32_t>(documents.size());
  std::vector<std::int32_t> batches;
  for (const Document& document : documents) {
    Sequence one;
    one.add(document);
    one.pad();
    const std::vector<std::int32_t> batch = batch_of({one}, false);
    batches.insert(batches.end(), batch.begin(), batch.end());
  }
  const StepValues expected = values_of(alone, batches);
  // The products are the same, in fp32, and are added in another order.
  EXPECT_NEAR(together.loss / expected.loss, 1, 1e-6);
  EXPECT_NEAR(together.norm / expected.norm, 1, 1e-5);
  EXPECT_NEAR(together.evaluated / expected.evaluated, 1, 1e-6);
  // Documents that see each other have another loss. This shows that the comparison above would
  // notice.
  EXPECT_GT(std::abs(crossing.loss / expected.loss - 1), 1e-4);
  EXPECT_GT(std::abs(crossing.norm / expected.norm - 1), 1e-3);
}

TEST_P(PackedDocuments, WhatIsNotTrainedOnChangesNoBit) {
  ModelRuntimeOptions options = options_for(GetParam());
  options.batch.has_documents = true;
  std::vector<Document> documents = documents_for(options);
  std::ranges::fill(documents[1].targets, -1);
  const StepValues first = values_of(options, batch_of(pack(documents), true));
  Document other = make_document(documents[1].rows(), options.model.vocabulary, 99);
  ASSERT_NE(other.tokens, documents[1].tokens);
  documents[1].tokens = other.tokens;
  EXPECT_EQ(values_of(options, batch_of(pack(documents), true)), first);
  documents[0].tokens[1] ^= 1;
  EXPECT_NE(values_of(options, batch_of(pack(documents), true)), first);
}

// gemma3_text has windows in most layers.
INSTANTIATE_TEST_SUITE_P(Families, PackedDocuments, testing::Values("llama", "gemma3_text", "gpt2"),
                         [](const auto& family) { return std::string(family.param); });

// --- switches and ranks -------------------------------------------------------------------------

ModelRuntimeOptions training_options(std::string_view family, DType type) {
  ModelRuntimeOptions options = tiny_options(tiny_model(family, family != "llama", false), type);
  options.batch.has_documents = true;
  options.placement.micro_batches = 2;
  options.chunk_elements = 8 * kBlockElements;
  return options;
}

class DocumentsOfRanks : public testing::TestWithParam<const char*> {};

TEST_P(DocumentsOfRanks, SwitchesAndStagesChangeNoBit) {
  const ModelRuntimeOptions options = training_options(GetParam(), DType::kBF16);
  const TrainedRun plain = train_tiny(options, kSteps);
  ModelRuntimeOptions crossing = options;
  crossing.batch.has_documents = false;
  EXPECT_NE(train_tiny(crossing, kSteps).curve, plain.curve);
  ModelRuntimeOptions layers = options;
  layers.placement.order = MicroBatchOrder::kLayerMajor;
  ModelRuntimeOptions again = options;
  again.placement.recompute = true;
  ModelRuntimeOptions away = options;
  all_on(away, false, Tier::kHost);
  for (const ModelRuntimeOptions& changed : {layers, again, away}) {
    const TrainedRun run = train_tiny(changed, kSteps);
    EXPECT_EQ(run.curve, plain.curve);
    EXPECT_EQ(run.evaluation, plain.evaluation);
  }
  for (const std::int32_t stages : {2, 4}) {
    const RankedRun run = train_ranks(options, MeshShape{.pipeline = stages}, 0);
    EXPECT_EQ(run.curves[0], plain.curve);
  }
}

TEST_P(DocumentsOfRanks, DataParallelRanksTrainAsOne) {
  const ModelRuntimeOptions options = training_options(GetParam(), DType::kF32);
  const RankedRun two = train_ranks(options, 2, 3);
  EXPECT_EQ(two.curves[0], train_ranks(options, 2, 0).curves[0]);
  ModelRuntimeOptions alone = options;
  alone.placement.micro_batches = 4;
  const TrainedRun one = train_tiny(alone, kSteps);
  // The bounds of whole sequences in ranks_test.cc.
  const Distance apart = distance(two.curves[0], one.curve);
  EXPECT_LT(apart.loss, 1e-5);
  EXPECT_LT(apart.norm, 1e-4);
}

// docs/numerics.md explains the bounds.
TEST_P(DocumentsOfRanks, TensorParallelRanksTrainAsOne) {
  ModelRuntimeOptions options = training_options(GetParam(), DType::kF32);
  const TrainedRun one = train_tiny(options, kSteps);
  for (const bool shares_rows : {false, true}) {
    options.sequence_parallel = shares_rows;
    const RankedRun two = train_ranks(options, MeshShape{.tensor = 2}, 0);
    const Distance apart = distance(two.curves[0], one.curve);
    EXPECT_LT(apart.loss, 1e-5) << shares_rows;
    EXPECT_LT(apart.norm, 1e-3) << shares_rows;
    EXPECT_NEAR(two.curves[0].losses[0] / one.curve.losses[0], 1, 1e-7) << shares_rows;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DocumentsOfRanks, testing::Values("llama", "gemma2", "gpt2"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace terrace
