#include "tests/sim/sim_shape.h"

#include <cmath>
#include <string>

#include "base/hash.h"
#include "kernels/cpu/cpu_kernels.h"
#include "tests/runtime/engine/engine_fixture.h"

namespace terrace {
namespace {

std::string config_json(bool llama, bool tied) {
  if (!llama) {
    return R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 16,
               "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 64})";
  }
  const std::string tie = tied ? "true" : "false";
  return R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16,
             "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
             "num_key_value_heads": 1, "vocab_size": 64, "max_position_embeddings": 16,
             "tie_word_embeddings": )" +
         tie + "}";
}

ModelRuntimeOptions options_of(int number) {
  const bool llama = number % 2 == 1;
  const bool bf16 = number == 2 || number == 3 || number == 4 || number >= 6;
  ModelRuntimeOptions options;
  options.model = parse_model_config(config_json(llama, number == 1), "simulated model");
  if (number == 6) options.model.trainable = {"h.1.*", "wpe.weight"};
  if (number == 7) options.model.trainable = {"*.1.mlp.*", "*.2.self_attn.*", "*norm*"};
  options.batch = {1, 8};
  options.compute_type = bf16 ? DType::kBF16 : DType::kF32;
  options.placement.micro_batches = number == 0 ? 1 : 2;
  options.optimizer.numbers.weight_decay = 0.1F;
  if (number >= 4 && number != 7) options.optimizer.max_grad_norm = 0;
  options.chunk_elements = 2 * kBlockElements;
  options.threads = 1;
  options.evaluates = false;
  return options;
}

StepModel model_of(const ModelRuntimeOptions& options, const UnitCompute& compute) {
  StepModel model(compute.model(options.placement.micro_batches, options.threads));
  model.chunk_elements = options.chunk_elements;
  return model;
}

}  // namespace

SimShape::SimShape(int number)
    : options_(options_of(number)),
      layout_(parameter_layout(options_.model)),
      compute_(options_.model, layout_, {options_.compute_type, options_.batch, {}}, cpu_kernels()),
      model_(model_of(options_, compute_)),
      workers_(1),
      tokens_(1) {
  const TierPlan plan = plan_model(options_);
  SilentLog log;
  ModelRuntime engine(options_, plan, log);
  engine.fill_state(RandomState(kSeed));
  expected_.push_back({{}, hash_of_state(engine.state(), layout_)});
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    tokens_.push_back(batch_of_step(options_, step));
    const RunInput input = input_of(step);
    engine.begin_step({step, tokens_.back(), input.target_tokens, input.scalars.learning_rate});
    const StepResult result = engine.finish_step().result;
    engine.drain();
    expected_.push_back({result, hash_of_state(engine.state(), layout_)});
  }
}

RunInput SimShape::input_of(std::int64_t step) const {
  RunInput input;
  input.step = step;
  input.target_tokens = options_.batch.rows() * options_.placement.micro_batches;
  const auto number = static_cast<double>(step);
  input.scalars.learning_rate = static_cast<float>(2e-3 / std::sqrt(number));
  input.update_number = step;
  input.learning_rate = input.scalars.learning_rate;
  return input;
}

std::uint64_t hash_of_state(TrainingState& state, const std::vector<UnitLayout>& layout) {
  StreamingHash hash;
  std::vector<float> values;
  for (const UnitLayout& unit : layout) {
    values.resize(static_cast<std::size_t>(unit.elements));
    for (const StateField field : kStateFields) {
      state.read(field, static_cast<std::int32_t>(unit.index), 0, values);
      hash.add(std::as_bytes(std::span(values)));
    }
  }
  return hash.value();
}

}  // namespace terrace
