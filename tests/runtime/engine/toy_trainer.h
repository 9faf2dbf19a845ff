#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <vector>

#include "runtime/engine/tier_runtime.h"

// A trainer of its own, for tests of models that are trained from outside: a chain of small units
// with plain loops as their compute, in fp32. Unit 0 makes hidden states of the input, h = W x. The
// units between have h' = h + relu(W h). The last one compares w h with its target, which gives its
// loss. The last unit is a head, or a block whose backward is a task of its own.
namespace terrace {

inline constexpr int kToyWidth = 72;  // a matrix is no multiple of 4096 elements
inline constexpr int kToyRows = 3;    // of a micro-batch

struct ToyShape {
  int blocks = 3;  // between the first unit and the last
  bool has_head = true;
  std::int32_t ranks = 1;  // data-parallel
  int frozen_unit = -1;    // which unit does not train; not the last
};

// A micro-batch.
struct ToyInput {
  float x[kToyRows][kToyWidth];
  float y[kToyRows];
};

inline ComputeModel toy_model(const ToyShape& shape) {
  const auto group = [&](std::int64_t elements) {
    return ParameterGroup{.padded_elements = padded_elements(elements, shape.ranks),
                          .decayed_elements = elements};
  };
  const auto unit = [&](std::int64_t elements) {
    UnitModel described;
    described.forward_flops = 2.0 * static_cast<double>(elements) * kToyRows;
    described.backward_flops = 2 * described.forward_flops;
    return described;
  };
  ComputeModel model;
  model.compute_type = DType::kF32;
  model.tokens_bytes = sizeof(ToyInput);
  model.hidden_bytes = sizeof(ToyInput::x);
  UnitModel first = unit(kToyWidth * kToyWidth);
  first.forward = {{.reads = {{Role::kTokens}}, .writes = {{Role::kHiddenOut}}}};
  first.backward = {
      {.reads = {{Role::kTokens}, {Role::kHiddenGradient}}, .writes = {{Role::kGradient}}}};
  model.add(first, group(kToyWidth * kToyWidth));
  for (int b = 0; b < shape.blocks; ++b) {
    UnitModel block = unit(kToyWidth * kToyWidth);
    block.saved_bytes = sizeof(ToyInput::x);
    block.forward = {{.reads = {{Role::kHidden}}, .writes = {{Role::kHiddenOut}, {Role::kSaved}}}};
    block.recompute = {{.reads = {{Role::kHidden}}, .writes = {{Role::kSaved}}}};
    block.backward = {{.reads = {{Role::kHidden}, {Role::kSaved}, {Role::kHiddenGradient}},
                       .writes = {{Role::kHiddenGradientOut}, {Role::kGradient}}}};
    model.add(block, group(kToyWidth * kToyWidth));
  }
  if (shape.frozen_unit >= 0) {
    const auto number = static_cast<std::size_t>(shape.frozen_unit);
    ParameterGroup& frozen = model.groups.at(number);
    frozen.frozen_elements = frozen.padded_elements;
    frozen.decayed_elements = 0;
    model.units.at(number).backward.front().writes.pop_back();
  }
  UnitModel last = unit(kToyWidth);
  last.forward = {{.reads = {{Role::kHidden}, {Role::kTokens}}, .writes = {{Role::kLosses}}}};
  last.backward = {{.reads = {{Role::kHidden}, {Role::kTokens}},
                    .writes = {{Role::kHiddenGradientOut}, {Role::kGradient}}}};
  if (shape.has_head) {
    last.kind = UnitKind::kHead;
    last.backward.front().writes.push_back({Role::kLosses});
  }
  model.add(last, group(kToyWidth));
  return model;
}

class ToyTrainer final : public StepCompute {
 public:
  explicit ToyTrainer(const ComputeModel& model) : model_(model) {}

  // Called before every task; may throw.
  std::function<void(const ComputeTask&)> before = [](const ComputeTask&) {};

  void run(const KernelContext& /*context*/, const ComputeTask& task,
           const UnitMemory& memory) override {
    before(task);
    Buffers b(memory);
    b.elements = model_.groups[task.unit].padded_elements;
    const auto unit = static_cast<std::size_t>(task.unit);
    if (task.unit == 0) {
      return task.pass == UnitPass::kForward ? multiply(b, b.input->x[0], b.hidden_out)
                                             : add_outer(b, b.input->x[0], b.hidden_gradient);
    }
    if (unit + 1 < model_.units.size()) {
      return task.pass == UnitPass::kBackward ? block_backward(b) : block_forward(b);
    }
    loss(b, task.pass);
  }

 private:
  struct Buffers {
    explicit Buffers(const UnitMemory& memory)
        : input(reinterpret_cast<const ToyInput*>(memory.of(Role::kTokens))),
          weight(floats(memory, Role::kParameters)),
          hidden(floats(memory, Role::kHidden)),
          hidden_out(floats(memory, Role::kHiddenOut)),
          saved(floats(memory, Role::kSaved)),
          hidden_gradient(floats(memory, Role::kHiddenGradient)),
          hidden_gradient_out(floats(memory, Role::kHiddenGradientOut)),
          gradient(floats(memory, Role::kGradient)),
          loss(reinterpret_cast<double*>(memory.of(Role::kLosses))),
          adds(memory.gradient_mode == GradientMode::kAccumulate),
          scale(memory.gradient_scale) {}
    static float* floats(const UnitMemory& memory, Role role) {
      return reinterpret_cast<float*>(memory.of(role));
    }

    const ToyInput* input;
    const float* weight;
    const float* hidden;
    float* hidden_out;
    float* saved;
    const float* hidden_gradient;
    float* hidden_gradient_out;
    float* gradient;
    double* loss;
    bool adds;
    float scale;
    std::int64_t elements = 0;  // of the gradient
  };

  // Returns the product of row r and row o of the weight.
  static float product(const Buffers& b, const float* rows, int r, int o) {
    float sum = 0;
    for (int i = 0; i < kToyWidth; ++i) {
      sum += b.weight[o * kToyWidth + i] * rows[r * kToyWidth + i];
    }
    return sum;
  }
  static void multiply(const Buffers& b, const float* rows, float* out) {
    for (int r = 0; r < kToyRows; ++r) {
      for (int o = 0; o < kToyWidth; ++o) out[r * kToyWidth + o] = product(b, rows, r, o);
    }
  }
  // Stores or adds the gradient of element `at`, which is complete before it is added.
  static void put(const Buffers& b, std::int64_t at, float value) {
    b.gradient[at] = b.adds ? b.gradient[at] + value : value;
  }
  static void pad(const Buffers& b, std::int64_t from) {
    for (std::int64_t at = from; at < b.elements; ++at) put(b, at, 0);
  }
  static void add_outer(const Buffers& b, const float* rows, const float* gradients) {
    for (int o = 0; o < kToyWidth; ++o) {
      for (int i = 0; i < kToyWidth; ++i) {
        float sum = 0;
        for (int r = 0; r < kToyRows; ++r) {
          sum += gradients[r * kToyWidth + o] * rows[r * kToyWidth + i];
        }
        put(b, o * kToyWidth + i, sum);
      }
    }
    pad(b, kToyWidth * kToyWidth);
  }

  static void block_forward(const Buffers& b) {
    multiply(b, b.hidden, b.saved);
    if (b.hidden_out == nullptr) return;  // a recomputation
    for (int i = 0; i < kToyRows * kToyWidth; ++i) {
      b.hidden_out[i] = b.hidden[i] + std::max(b.saved[i], 0.0F);
    }
  }
  static void block_backward(const Buffers& b) {
    std::vector<float> inner(b.hidden_gradient, b.hidden_gradient + kToyRows * kToyWidth);
    for (std::size_t i = 0; i < inner.size(); ++i) {
      if (b.saved[i] <= 0) inner[i] = 0;
    }
    for (int r = 0; r < kToyRows; ++r) {
      for (int i = 0; i < kToyWidth; ++i) {
        float sum = b.hidden_gradient[r * kToyWidth + i];
        for (int o = 0; o < kToyWidth; ++o) {
          sum += b.weight[o * kToyWidth + i] * inner[static_cast<std::size_t>(r * kToyWidth + o)];
        }
        b.hidden_gradient_out[r * kToyWidth + i] = sum;
      }
    }
    if (b.gradient != nullptr) add_outer(b, b.hidden, inner.data());
  }

  static void loss(const Buffers& b, UnitPass pass) {
    double sum = 0;
    float error[kToyRows];
    for (int r = 0; r < kToyRows; ++r) {
      error[r] = product(b, b.hidden, r, 0) - b.input->y[r];
      sum += 0.5 * static_cast<double>(error[r]) * static_cast<double>(error[r]);
      error[r] *= b.scale;
    }
    if (b.loss != nullptr) *b.loss = sum;
    if (pass == UnitPass::kForward) return;
    for (int i = 0; i < kToyWidth; ++i) {
      float of_weight = 0;
      for (int r = 0; r < kToyRows; ++r) {
        b.hidden_gradient_out[r * kToyWidth + i] = error[r] * b.weight[i];
        of_weight += error[r] * b.hidden[r * kToyWidth + i];
      }
      put(b, i, of_weight);
    }
    pad(b, kToyWidth);
  }

  const ComputeModel& model_;
};

// Returns an initial parameter. The optimizer's state begins with zeros.
inline float toy_parameter(const ComputeModel& model, std::int32_t unit, std::int64_t element) {
  const bool is_last = unit + 1 == static_cast<std::int32_t>(model.units.size());
  if (element >= (is_last ? kToyWidth : kToyWidth * kToyWidth)) return 0;
  const auto mixed = static_cast<std::uint32_t>((unit + 1) * 7919 + element) * 2654435761U;
  return (static_cast<float>(mixed >> 8) * 0x1p-24F - 0.5F) * 0.2F;
}

inline void fill_toy(TierRuntime& runtime, const ComputeModel& model) {
  runtime.fill_state(
      [&](StateField field, std::int32_t unit, std::int64_t begin, std::span<float> out) {
        for (std::size_t i = 0; i < out.size(); ++i) {
          out[i] = field == StateField::kMaster
                       ? toy_parameter(model, unit, begin + static_cast<std::int64_t>(i))
                       : 0.0F;
        }
      });
}

// Returns the micro-batches of one rank.
inline std::vector<ToyInput> toy_inputs(std::int64_t step, std::int32_t micro_batches,
                                        int rank = 0) {
  std::vector<ToyInput> inputs(static_cast<std::size_t>(micro_batches));
  auto random = static_cast<std::uint32_t>(step * 1009 + rank * 31 + 1);
  const auto next = [&] {
    random = random * 1664525U + 1013904223U;
    return static_cast<float>(random >> 8) * 0x1p-24F - 0.5F;
  };
  for (ToyInput& input : inputs) {
    for (auto& row : input.x) std::ranges::generate(row, next);
    for (int r = 0; r < kToyRows; ++r) input.y[r] = input.x[r][0] - input.x[r][1] + next() * 0.1F;
  }
  return inputs;
}

}  // namespace terrace
