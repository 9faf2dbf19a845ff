#include "tests/golden/golden_run.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>

#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/checkpoint/weight_state.h"
#include "runtime/train/tuning.h"
#include "tests/golden/golden_sampler.h"
#include "tests/runtime/engine/ranks_fixture.h"

namespace terrace {
namespace {

// A flat sequence for every unit, in the whole model's layout.
using FlatUnits = std::map<std::int64_t, std::vector<float>>;

ModelRuntimeOptions options_of(const GoldenCase& golden, const ModelConfig& config,
                               const GoldenMesh& mesh) {
  ModelRuntimeOptions options;
  options.model = config;
  options.batch = {golden.sequences, golden.positions};
  options.compute_type = DType::kF32;
  options.placement.micro_batches =
      static_cast<std::int32_t>(golden.micro_batches) / mesh.shape.data;
  options.optimizer.numbers =
      RuleOptions{{static_cast<float>(golden.beta1), static_cast<float>(golden.beta2),
                   static_cast<float>(golden.epsilon)},
                  static_cast<float>(golden.weight_decay)};
  options.optimizer.max_grad_norm = golden.max_grad_norm;
  options.chunk_elements = 2 * kBlockElements;
  options.evaluates = false;
  options.zero_stage = mesh.zero_stage;
  return options;
}

// Returns options with which the first moment is the gradient, and clipping does not scale it.
ModelRuntimeOptions gradient_options(ModelRuntimeOptions options) {
  options.optimizer.numbers.values.at(0) = 0;
  options.optimizer.max_grad_norm = 0;
  return options;
}

// Returns the micro-batches of a data-parallel rank: for each one its tokens and then its targets.
std::vector<std::int32_t> batch_of(const GoldenCase& golden, std::int64_t step,
                                   const ModelRuntimeOptions& own) {
  const auto index = static_cast<std::size_t>(step - 1);
  const std::int64_t rows = golden.rows();
  std::vector<std::int32_t> batch;
  for (std::int32_t m = 0; m < own.placement.micro_batches; ++m) {
    const std::int64_t begin = (own.ranks.position.data * own.placement.micro_batches + m) * rows;
    for (const auto* ids : {&golden.tokens[index], &golden.targets[index]}) {
      batch.insert(batch.end(), ids->begin() + begin, ids->begin() + begin + rows);
    }
  }
  return batch;
}

// An engine and its rank.
struct RankedEngine {
  ModelRuntime& engine;
  const TierPlan& plan;
  const ModelRuntimeOptions& own;
  Communicator& world;
};

StepResult train_step(RankedEngine ranked, const GoldenCase& golden, std::int64_t step) {
  const std::vector<std::int32_t> batch = batch_of(golden, step, ranked.own);
  const std::vector<std::int32_t>& targets = golden.targets[static_cast<std::size_t>(step - 1)];
  const auto counted = std::count_if(targets.begin(), targets.end(),
                                     [](std::int32_t target) { return target >= 0; });
  ranked.engine.begin_step({step, batch, counted, golden.learning_rate});
  return ranked.engine.finish_step().result;
}

// Returns all of a field on the first rank. The other ranks help and get nothing.
FlatUnits read_field(RankedEngine ranked, StateField field) {
  ranked.engine.drain();
  RankedState state(ranked.engine.state(), ranked.plan.model, &ranked.world);
  FlatUnits units;
  if (ranked.world.rank() != 0) {
    state.serve_reads();
    return units;
  }
  for (const UnitLayout& unit : parameter_layout(ranked.own.model)) {
    std::vector<float>& values = units[unit.index];
    values.resize(static_cast<std::size_t>(unit.elements));
    state.read(field, static_cast<std::int32_t>(unit.index), 0, values);
  }
  state.end_reads();
  return units;
}

// Returns the tensors that an export writes, with its names and in its shapes.
NamedTensors exported(const ModelConfig& config, const FlatUnits& units) {
  const TemporaryDirectory directory;
  const auto fetch = [&](const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
                         std::span<float> out) {
    const std::vector<float>& values = units.at(unit.index);
    std::copy_n(values.begin() + tensor.offset + begin, out.size(), out.begin());
  };
  const bool is_adapted = config.adapter.is_there();
  if (is_adapted) {
    write_adapter_directory({.directory = directory.path("model"), .base_model = "base"}, config,
                            parameter_layout(config), fetch);
  } else {
    write_hf_directory({.directory = directory.path("model"), .types = {.usual = DType::kF32}},
                       config, parameter_layout(config), fetch);
  }
  const SafetensorsFile file(directory.path("model/") +
                             (is_adapted ? kAdapterWeights : "model.safetensors"));
  NamedTensors tensors;
  for (const SafetensorsTensor& tensor : file.header().tensors) {
    tensors[tensor.name] = read_f32(file, tensor.name);
  }
  return tensors;
}

// Calls `body` on one thread per rank, with the rank's engine filled with the case's state.
void on_ranks(const ModelRuntimeOptions& options, const GoldenMesh& mesh, const StateSource& state,
              const std::function<void(RankedEngine)>& body) {
  auto worlds = make_thread_communicators(mesh.shape.ranks(), "world");
  std::vector<std::jthread> threads;
  for (const auto& world : worlds) {
    threads.emplace_back([&] {
      as_rank(*world, options, mesh.shape, [&](const ModelRuntimeOptions& own) {
        const TierPlan plan = plan_model(own);
        SilentLog log;
        ModelRuntime engine(own, plan, log);
        engine.fill_state(state);
        body({engine, plan, own, *world});
      });
    });
  }
}

}  // namespace

GoldenRun run_golden(const GoldenCase& golden, const GoldenMesh& mesh) {
  ModelConfig config = load_model_config(golden.directory);
  std::unique_ptr<AdapterDirectory> adapter;
  if (!golden.adapter.empty()) {
    adapter = std::make_unique<AdapterDirectory>(golden.adapter);
    config = adapter->adapted(config);
  }
  SilentLog log;
  const HfDirectory weights(golden.directory, config, parameter_layout(config), log);
  const WeightState base(weights);
  const StartState state(base, adapter.get(), 0);
  const ModelRuntimeOptions options = options_of(golden, config, mesh);
  GoldenRun run;
  FlatUnits gradients;
  on_ranks(gradient_options(options), mesh, state, [&](RankedEngine ranked) {
    train_step(ranked, golden, 1);
    FlatUnits units = read_field(ranked, StateField::kSlot0);
    if (ranked.world.rank() == 0) gradients = std::move(units);
  });
  FlatUnits masters;
  on_ranks(options, mesh, state, [&](RankedEngine ranked) {
    GoldenRun steps;
    for (std::int64_t step = 1; step <= golden.steps(); ++step) {
      const StepResult result = train_step(ranked, golden, step);
      steps.losses.push_back(result.loss);
      steps.gradient_norms.push_back(result.gradient_norm);
      if (result.router) steps.balance_losses.push_back(result.router->balance_loss);
    }
    FlatUnits units = read_field(ranked, StateField::kMaster);
    if (ranked.world.rank() != 0) return;
    run = std::move(steps);
    masters = std::move(units);
  });
  run.gradients = exported(config, gradients);
  run.after = exported(config, masters);
  return run;
}

std::vector<float> golden_run_logits(const GoldenCase& golden) {
  GoldenSampler sampler(golden.directory, golden.positions);
  std::vector<float> logits;
  for (std::int64_t sequence = 0; sequence < golden.sequences; ++sequence) {
    const auto* const begin = golden.tokens.front().data() + sequence * golden.positions;
    for (std::int64_t length = 1; length <= golden.positions; ++length) {
      const auto row = sampler.logits_after({begin, static_cast<std::size_t>(length)});
      logits.insert(logits.end(), row.begin(), row.end());
    }
  }
  return logits;
}

std::vector<std::int32_t> continue_prompt(const GoldenCase& golden, bool keeps_keys) {
  std::vector<std::int32_t> ids = golden.prompt;
  const auto longest = static_cast<std::int64_t>(ids.size() + golden.continuation.size());
  std::optional<GoldenSampler> sampler;
  for (std::size_t i = 0; i < golden.continuation.size(); ++i) {
    if (!keeps_keys || !sampler) {
      sampler.emplace(golden.directory, longest, GoldenSampler::Rope::kOfEachText);
    }
    const auto logits = sampler->logits_after(ids);
    const auto likeliest = std::max_element(logits.begin(), logits.end());
    ids.push_back(static_cast<std::int32_t>(likeliest - logits.begin()));
  }
  return {ids.begin() + static_cast<std::ptrdiff_t>(golden.prompt.size()), ids.end()};
}

}  // namespace terrace
