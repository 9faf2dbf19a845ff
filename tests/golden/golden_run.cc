#include "tests/golden/golden_run.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include "runtime/checkpoint/hf_export.h"
#include "runtime/train/sampler.h"
#include "tests/runtime/ranks_fixture.h"

namespace terrace {
namespace {

// A parameter of every unit, as a flat sequence in the whole model's layout.
using FlatUnits = std::map<std::int64_t, std::vector<float>>;

EngineOptions options_of(const GoldenCase& golden, const ModelConfig& config,
                         const GoldenMesh& mesh) {
  EngineOptions options;
  options.model = config;
  options.batch = {golden.sequences, golden.positions};
  options.compute_type = DType::kF32;
  options.placement.micro_batches =
      static_cast<std::int32_t>(golden.micro_batches) / mesh.shape.data;
  options.optimizer.adamw = {.beta1 = static_cast<float>(golden.beta1),
                             .beta2 = static_cast<float>(golden.beta2),
                             .epsilon = static_cast<float>(golden.epsilon),
                             .weight_decay = static_cast<float>(golden.weight_decay)};
  options.optimizer.max_grad_norm = golden.max_grad_norm;
  options.chunk_elements = 2 * kBlockElements;
  options.evaluates = false;
  options.zero_stage = mesh.zero_stage;
  return options;
}

// The first moment is the gradient then, and clipping does not scale it.
EngineOptions gradient_options(EngineOptions options) {
  options.optimizer.adamw.beta1 = 0;
  options.optimizer.max_grad_norm = 0;
  return options;
}

// The micro-batches of a data-parallel rank, each its tokens and then its targets.
std::vector<std::int32_t> batch_of(const GoldenCase& golden, std::int64_t step,
                                   const EngineOptions& own) {
  const auto index = static_cast<std::size_t>(step - 1);
  const std::int64_t rows = golden.rows();
  std::vector<std::int32_t> batch;
  for (std::int32_t m = 0; m < own.placement.micro_batches; ++m) {
    const std::int64_t begin =
        (own.ranks.position.data * own.placement.micro_batches + m) * rows;
    for (const auto* ids : {&golden.tokens[index], &golden.targets[index]}) {
      batch.insert(batch.end(), ids->begin() + begin, ids->begin() + begin + rows);
    }
  }
  return batch;
}

StepResult train_step(Engine& engine, const GoldenCase& golden, const EngineOptions& own,
                      std::int64_t step) {
  const std::vector<std::int32_t> batch = batch_of(golden, step, own);
  const std::vector<std::int32_t>& targets = golden.targets[static_cast<std::size_t>(step - 1)];
  const auto counted = std::count_if(targets.begin(), targets.end(),
                                     [](std::int32_t target) { return target >= 0; });
  engine.begin_step({step, batch, counted, golden.learning_rate});
  return engine.finish_step().result;
}

// On the first rank: all of a field. The others help, and have nothing.
FlatUnits read_field(Engine& engine, const EnginePlan& plan, StateField field,
                     Communicator& world) {
  engine.drain();
  RankedState state(engine.state(), plan.model, &world);
  FlatUnits units;
  if (world.rank() != 0) {
    state.serve_reads();
    return units;
  }
  for (const UnitLayout& unit : parameter_layout(plan.model.config)) {
    std::vector<float>& values = units[unit.index];
    values.resize(static_cast<std::size_t>(unit.elements));
    state.read(field, static_cast<std::int32_t>(unit.index), 0, values);
  }
  state.end_reads();
  return units;
}

// What an export writes, by its own names and in its shapes.
NamedTensors exported(const ModelConfig& config, const FlatUnits& units) {
  const TemporaryDirectory directory;
  write_hf_directory({.directory = directory.path("model"), .types = {.usual = DType::kF32}},
                     config, parameter_layout(config),
                     [&](const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
                         std::span<float> out) {
                       const std::vector<float>& values = units.at(unit.index);
                       std::copy_n(values.begin() + tensor.offset + begin, out.size(), out.begin());
                     });
  const SafetensorsFile file(directory.path("model/model.safetensors"));
  NamedTensors tensors;
  for (const SafetensorsTensor& tensor : file.header().tensors) {
    tensors[tensor.name] = read_f32(file, tensor.name);
  }
  return tensors;
}

}  // namespace
}  // namespace terrace
