#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <random>
#include <vector>

#include "base/bytes.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/model/adapter_targets.h"
#include "runtime/model/model_shape.h"
#include "tests/runtime/model/small_models.h"
#include "tests/runtime/temporary_directory.h"

// Small models that are really trained, for tests that compare runs bit for bit.
namespace terrace {

// The results that a test compares. Curves are equal if their bits are.
struct Curve {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<double> loss_scales = {};
  std::vector<bool> skipped = {};          // steps whose gradients overflowed
  std::vector<RouterFigures> router = {};  // of a model with experts
  friend bool operator==(const Curve&, const Curve&) = default;
};

struct Traffic {
  std::array<double, kLaneCount> bytes{};
  double of(Lane lane) const { return bytes.at(static_cast<std::size_t>(lane)); }
};

struct TrainedRun {
  Curve curve;
  Traffic traffic;  // of all steps
  Ledger ledger;
  double evaluation = 0;  // after the last step
  int threads = 0;
  std::vector<StorePath> paths;
};

inline ModelConfig tiny_model(std::string_view family, bool tied, bool odd) {
  SmallModel sizes;
  sizes.layers = 6;
  sizes.heads = odd ? 3 : 4;
  sizes.head_width = odd ? 10 : 16;
  sizes.width = odd ? 30 : 64;
  sizes.key_value_heads = odd ? 1 : 2;
  sizes.intermediate = odd ? 71 : 176;
  if (family == "gpt2") sizes.intermediate = 4 * sizes.width;
  sizes.vocabulary = odd ? 131 : 256;
  sizes.tied = tied;
  return small_model(family, sizes);
}

inline ModelRuntimeOptions tiny_options(const ModelConfig& model, DType type) {
  ModelRuntimeOptions options;
  options.model = model;
  options.batch = {2, 24};
  options.compute_type = type;
  options.placement.micro_batches = 4;
  options.placement.unified = true;
  options.placement.recompute = false;
  options.placement.order = MicroBatchOrder::kMicroBatchMajor;
  options.optimizer.numbers.weight_decay = 0.1F;
  options.optimizer.max_grad_norm = 1.6;
  options.chunk_elements = 2 * kBlockElements;
  options.threads = 2;
  return options;
}

// Cuts the sequences of a micro-batch into documents of 1 to 9 rows. The first rows of each
// document are not trained on, like the rows of a prompt. The last row is not either, as its target
// belongs to the next document.
inline void add_documents(const BatchShape& batch, std::mt19937& random,
                          std::span<std::int32_t> targets, std::vector<std::int32_t>& tokens) {
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> first_keys;
  for (std::int64_t row = 0; row < batch.rows();) {
    const std::int64_t place = row % batch.positions;
    const auto length = std::min<std::int64_t>(1 + random() % 9, batch.positions - place);
    for (std::int64_t i = 0; i < length; ++i) {
      positions.push_back(static_cast<std::int32_t>(i));
      first_keys.push_back(static_cast<std::int32_t>(place));
      if (i < length / 3 || i + 1 == length) targets[row + i] = -1;
    }
    row += length;
  }
  tokens.insert(tokens.end(), positions.begin(), positions.end());
  tokens.insert(tokens.end(), first_keys.begin(), first_keys.end());
}

// Numbers the samples of micro-batch `m` of a step, which has `micro_batches` on all ranks.
inline void add_samples(const BatchShape& batch, std::int64_t step, std::int64_t micro_batches,
                        std::int64_t m, std::vector<std::int32_t>& tokens) {
  const std::int64_t first = ((step - 1) * micro_batches + m) * batch.sequences;
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    tokens.push_back(static_cast<std::int32_t>(first + row / batch.positions));
  }
}

// Returns text-like data from a seed: a learnable pattern with noise. Each rank in turn gets the
// next micro-batches of one run.
inline std::vector<std::int32_t> batch_of_rank(const ModelRuntimeOptions& options,
                                               std::int64_t step, std::int32_t rank) {
  const std::int64_t rows = options.batch.rows();
  const std::int32_t micro_batches = options.placement.micro_batches;
  std::vector<std::int32_t> tokens;
  for (std::int32_t m = 0; m < micro_batches; ++m) {
    std::mt19937 random(static_cast<unsigned>(step * 1000 + rank * micro_batches + m));
    std::vector<std::int32_t> text;
    for (std::int64_t i = 0; i <= rows; ++i) {
      const auto noise = static_cast<std::int64_t>(random() % 5 == 0 ? random() % 100 : 0);
      text.push_back(static_cast<std::int32_t>((i * 7 + noise) % options.model.vocabulary));
    }
    tokens.insert(tokens.end(), text.begin(), text.end() - 1);
    tokens.insert(tokens.end(), text.begin() + 1, text.end());
    if (options.batch.has_documents) {
      std::vector<std::int32_t> targets(tokens.end() - rows, tokens.end());
      std::vector<std::int32_t> lists;
      add_documents(options.batch, random, targets, lists);
      std::ranges::copy(targets, tokens.end() - rows);
      tokens.insert(tokens.end(), lists.begin(), lists.end());
    }
    if (options.batch.has_samples) {
      add_samples(options.batch, step, options.ranks.shape.data * micro_batches,
                  rank * micro_batches + m, tokens);
    }
  }
  return tokens;
}

inline std::vector<std::int32_t> batch_of_step(const ModelRuntimeOptions& options,
                                               std::int64_t step) {
  return batch_of_rank(options, step, options.ranks.position.data);
}

// Returns a step's batch as an evaluation has it: its list of samples holds -1, so that nothing is
// dropped.
inline std::vector<std::int32_t> evaluation_batch(const ModelRuntimeOptions& options,
                                                  std::int64_t step) {
  std::vector<std::int32_t> tokens = batch_of_step(options, step);
  const std::int64_t place = options.batch.place_of(RowNumbers::kSamples);
  if (place < 0) return tokens;
  const std::int64_t rows = options.batch.rows();
  for (std::int32_t m = 0; m < options.placement.micro_batches; ++m) {
    const std::int64_t first = (m * options.batch.lists() + place) * rows;
    std::fill_n(tokens.begin() + first, rows, -1);
  }
  return tokens;
}

// Gives all layers of the model an adapter with dropout.
inline void add_dropping_adapter(ModelRuntimeOptions& options) {
  AdapterOptions adapter;
  adapter.rank = 5;
  adapter.alpha = 12;
  adapter.dropout = 0.4;
  options.model = with_adapter(options.model, adapter, {});
  options.batch.has_samples = true;
  options.dropout_seed = 5;
}

// Counts the targets of a rank's batch that are trained on.
inline std::int64_t counted_targets(const ModelRuntimeOptions& options,
                                    std::span<const std::int32_t> tokens) {
  const auto rows = static_cast<std::size_t>(options.batch.rows());
  const std::size_t lists = static_cast<std::size_t>(options.batch.lists()) * rows;
  std::int64_t counted = 0;
  for (std::size_t begin = 0; begin < tokens.size(); begin += lists) {
    counted += std::ranges::count_if(tokens.subspan(begin + rows, rows),
                                     [](std::int32_t target) { return target >= 0; });
  }
  return counted;
}

// Counts the targets in the batches of all ranks that are trained on.
inline std::int64_t target_tokens_of_step(const ModelRuntimeOptions& options, std::int64_t step) {
  std::int64_t counted = 0;
  for (std::int32_t rank = 0; rank < options.ranks.shape.data; ++rank) {
    counted += counted_targets(options, batch_of_rank(options, step, rank));
  }
  return counted;
}

// Trains the steps from `first` to `last`. The next step begins before the last one is finished.
inline void train_steps(ModelRuntime& engine, const ModelRuntimeOptions& options,
                        std::int64_t first, std::int64_t last, TrainedRun& run) {
  const auto begin = [&](std::int64_t step) {
    const std::vector<std::int32_t> tokens = batch_of_step(options, step);
    engine.begin_step({step, tokens, target_tokens_of_step(options, step),
                       2e-3 / std::sqrt(static_cast<double>(step))});
  };
  const auto add = [&run](const RunReport& report) {
    for (std::size_t l = 0; l < kLaneCount; ++l) run.traffic.bytes[l] += report.moved.lanes[l];
  };
  begin(first);
  for (std::int64_t step = first; step <= last; ++step) {
    if (step < last) begin(step + 1);
    const StepOutcome outcome = engine.finish_step();
    run.curve.losses.push_back(outcome.result.loss);
    run.curve.norms.push_back(outcome.result.gradient_norm);
    run.curve.loss_scales.push_back(outcome.result.loss_scale);
    run.curve.skipped.push_back(outcome.result.was_skipped);
    if (outcome.result.router) run.curve.router.push_back(*outcome.result.router);
    add(*outcome.report);
  }
  if (const RunReport* report = engine.drain()) add(*report);
}

// Trains `steps` steps, and then calls `look` with the engine if it is given.
inline TrainedRun train_tiny(const ModelRuntimeOptions& options, std::int64_t steps,
                             const std::function<void(ModelRuntime&)>& look = {}) {
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(RandomState(1234));
  TrainedRun run;
  run.ledger = plan.ledger;
  run.threads = engine.compute_threads();
  run.paths = engine.store_paths();
  train_steps(engine, options, 1, steps, run);
  run.evaluation = engine.evaluate(evaluation_batch(options, 1));
  if (look) look(engine);
  return run;
}

}  // namespace terrace
