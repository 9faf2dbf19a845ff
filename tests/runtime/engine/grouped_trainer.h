#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/half.h"
#include "tests/runtime/engine/toy_trainer.h"

// A trainer whose units no decoder has, with plain loops in fp32:
//   unit 0   h0 = A x; an embedding, whose backward is one task for all micro-batches, or a block
//   unit 1   h1 = h0 + D u, with t = relu(B h0) and u = C t. B, C and D are groups of their own. C
//   is
//            used by the middle part of each pass alone, D by the last part of a forward and the
//            first of a backward. D is bf16 and has the second update rule
//   unit 2   h2 = h1 + relu(E h1)
//   unit 3   h3 = h2 + F h1: reads the outputs of two units
//   unit 4   a head: (w + the first row of A) . h3 should be y. It uses the parameters of unit 0
namespace terrace {

// The groups, by number.
enum GroupNumber : std::int32_t { kA, kB, kC, kD, kE, kF, kW, kGroups };

using ToyMatrix = std::array<float, static_cast<std::size_t>(kToyRows) * kToyWidth>;
inline constexpr std::size_t kToyMatrixBytes = sizeof(ToyMatrix);

inline std::int64_t grouped_elements(std::int32_t group) {
  return group == kW ? kToyWidth : std::int64_t{kToyWidth} * kToyWidth;
}

inline UnitModel unit_with_three_groups() {
  UnitModel unit;
  unit.saved_bytes = 2 * kToyMatrixBytes;  // t and u
  unit.between = {{"t", kToyMatrixBytes},
                  {"u", kToyMatrixBytes},
                  {"du", kToyMatrixBytes},
                  {"dt", kToyMatrixBytes}};
  const UnitAccess t{Role::kBetween, 0}, u{Role::kBetween, 1}, du{Role::kBetween, 2},
      dt{Role::kBetween, 3};
  const UnitStep first{.groups = {0}, .reads = {{Role::kHidden}}, .writes = {{Role::kSaved}, t}};
  const UnitStep second{
      .begins_part = true, .groups = {1}, .reads = {t}, .writes = {{Role::kSaved}, u}};
  const UnitStep third{.begins_part = true,
                       .groups = {2},
                       .reads = {u, {Role::kHidden}},
                       .writes = {{Role::kHiddenOut}}};
  unit.forward = {first, second, third};
  unit.recompute = {first, second};
  unit.backward = {{.groups = {2},
                    .reads = {{Role::kHiddenGradient}, {Role::kSaved}},
                    .writes = {{Role::kGradient, 2}, du}},
                   {.begins_part = true,
                    .groups = {1},
                    .reads = {du, {Role::kSaved}},
                    .writes = {{Role::kGradient, 1}, dt}},
                   {.begins_part = true,
                    .groups = {0},
                    .reads = {dt, {Role::kHidden}, {Role::kHiddenGradient}},
                    .writes = {{Role::kGradient, 0}, {Role::kHiddenGradientOut}}}};
  return unit;
}

inline ComputeModel grouped_model(std::int32_t ranks = 1,
                                  UnitKind first_kind = UnitKind::kEmbedding) {
  ComputeModel model;
  model.compute_type = DType::kF32;
  model.tokens_bytes = sizeof(ToyInput);
  model.hidden_bytes = kToyMatrixBytes;
  const auto group = [&](std::int32_t number) {
    const std::int64_t elements = grouped_elements(number);
    return ParameterGroup{.padded_elements = padded_elements(elements, ranks),
                          .decayed_elements = elements};
  };
  UnitModel first;
  first.forward = {{.reads = {{Role::kTokens}}, .writes = {{Role::kHiddenOut}}}};
  first.kind = first_kind;
  if (first_kind == UnitKind::kBlock) {
    first.backward = {
        {.reads = {{Role::kTokens}, {Role::kHiddenGradient}}, .writes = {{Role::kGradient}}}};
  }
  model.add(first, group(kA));
  UnitModel mixed = unit_with_three_groups();
  mixed.groups = {kC, kD};
  model.add(mixed, group(kB));
  for (const std::int32_t number : {kC, kD}) {
    model.groups.push_back(group(number));
    model.groups.back().unit = 1;
  }
  model.groups[kD].type = DType::kBF16;
  model.groups[kD].rule = 1;
  UnitModel block;
  block.forward = {{.reads = {{Role::kHidden}}, .writes = {{Role::kHiddenOut}}}};
  block.backward = {{.reads = {{Role::kHidden}, {Role::kHiddenGradient}},
                     .writes = {{Role::kHiddenGradientOut}, {Role::kGradient}}}};
  model.add(block, group(kE));
  UnitModel joining;
  joining.inputs = {1, 2};
  joining.forward = {
      {.reads = {{Role::kHidden, 0}, {Role::kHidden, 1}}, .writes = {{Role::kHiddenOut}}}};
  joining.backward = {
      {.reads = {{Role::kHidden, 0}, {Role::kHiddenGradient}},
       .writes = {
           {Role::kHiddenGradientOut, 0}, {Role::kHiddenGradientOut, 1}, {Role::kGradient}}}};
  model.add(joining, group(kF));
  UnitModel head;
  head.kind = UnitKind::kHead;
  head.groups = {kA};
  head.forward = {
      {.groups = {0, 1}, .reads = {{Role::kHidden}, {Role::kTokens}}, .writes = {{Role::kLosses}}}};
  head.backward = head.forward;
  head.backward.front().writes = {
      {Role::kLosses}, {Role::kHiddenGradientOut}, {Role::kGradient, 0}, {Role::kGradient, 1}};
  model.add(head, group(kW));
  return model;
}

// The second rule is SGD with momentum, where there is one with slots, and its state is bf16.
inline void add_second_rule(TierRuntimeOptions& options) {
  const UpdateRule* const rule = find_update_rule("sgd");
  options.optimizer.further_rules = {{rule, standard_options(*rule), SlotForm::kBf16}};
}

class GroupedTrainer final : public StepCompute {
 public:
  explicit GroupedTrainer(const ComputeModel& model) : model_(model) {}

  void run(const KernelContext& /*context*/, const ComputeTask& task,
           const UnitMemory& memory) override {
    const bool is_backward = task.pass == UnitPass::kBackward;
    const Memory m{memory, model_};
    if (task.micro_batch < 0) return joined_backward(m, task.hidden_gradients);
    switch (task.unit) {
      case 0:
        return is_backward ? first_backward(m) : m.put_rows(m.hidden_out(), m.product(0, m.x()));
      case 1:
        return is_backward ? mixed_backward(m, task.step) : mixed_forward(m, task.step);
      case 2:
        return is_backward ? block_backward(m) : block_forward(m);
      case 3:
        return is_backward ? joining_backward(m) : joining_forward(m);
      default:
        head(m, is_backward);
    }
  }

 private:
  // A task's memory, read and written as numbers.
  struct Memory {
    const UnitMemory& memory;
    const ComputeModel& model;

    static ToyMatrix rows(const std::byte* bytes) {
      ToyMatrix matrix;
      std::memcpy(matrix.data(), bytes, sizeof(matrix));
      return matrix;
    }
    static void put_rows(std::byte* bytes, const ToyMatrix& matrix) {
      std::memcpy(bytes, matrix.data(), sizeof(matrix));
    }
    const ToyInput& input() const {
      return *reinterpret_cast<const ToyInput*>(memory.of(Role::kTokens));
    }
    ToyMatrix x() const { return rows(memory.of(Role::kTokens)); }
    ToyMatrix hidden(std::size_t number = 0) const { return rows(memory.inputs[number].hidden); }
    std::byte* hidden_out() const { return memory.of(Role::kHiddenOut); }
    ToyMatrix hidden_gradient() const { return rows(memory.of(Role::kHiddenGradient)); }
    std::byte* saved(std::size_t which) const {
      return memory.of(Role::kSaved) + which * kToyMatrixBytes;
    }
    // Returns a parameter of a group that the unit uses. D is the third group of its unit.
    float parameter(std::size_t index, int at) const {
      const std::byte* const bytes = memory.groups[index].parameters;
      if (index == 2) return to_float(reinterpret_cast<const Bf16*>(bytes)[at]);
      return reinterpret_cast<const float*>(bytes)[at];
    }
    // Returns W r for each row r, or the product with the transposed matrix.
    ToyMatrix product(std::size_t index, const ToyMatrix& r, bool transposed = false) const {
      ToyMatrix result{};
      for (int row = 0; row < kToyRows; ++row) {
        for (int o = 0; o < kToyWidth; ++o) {
          float sum = 0;
          for (int i = 0; i < kToyWidth; ++i) {
            const int at = transposed ? i * kToyWidth + o : o * kToyWidth + i;
            sum += parameter(index, at) * r.at(static_cast<std::size_t>(row * kToyWidth + i));
          }
          result.at(static_cast<std::size_t>(row * kToyWidth + o)) = sum;
        }
      }
      return result;
    }
    // Stores a whole gradient, or adds it to what is there. `value` is asked for each element.
    template <typename Value>
    void put_gradient(std::size_t index, std::int64_t elements, Value value) const {
      const GroupMemory& group = memory.groups[index];
      auto* const gradient = reinterpret_cast<float*>(group.gradient);
      if (gradient == nullptr) return;  // the group is frozen
      const bool adds = group.gradient_mode == GradientMode::kAccumulate;
      for (std::int64_t at = 0; at < elements; ++at) {
        gradient[at] = adds ? gradient[at] + value(at) : value(at);
      }
    }
    void put_outer(std::size_t index, std::int32_t group, const ToyMatrix& dy,
                   const ToyMatrix& r) const {
      put_gradient(index, model.groups[static_cast<std::size_t>(group)].padded_elements,
                   [&](std::int64_t at) {
                     float sum = 0;
                     if (at >= grouped_elements(group)) return sum;
                     const auto o = static_cast<std::size_t>(at / kToyWidth);
                     const auto i = static_cast<std::size_t>(at % kToyWidth);
                     for (std::size_t row = 0; row < kToyRows; ++row) {
                       sum += dy[row * kToyWidth + o] * r[row * kToyWidth + i];
                     }
                     return sum;
                   });
    }
    void put_input_gradient(std::size_t number, const ToyMatrix& value) const {
      const InputMemory& input = memory.inputs[number];
      if (input.gradient_mode == GradientMode::kAssign) return put_rows(input.gradient, value);
      put_rows(input.gradient, sum(rows(input.gradient), value));
    }
    static ToyMatrix sum(ToyMatrix a, const ToyMatrix& b) {
      for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
      return a;
    }
    static ToyMatrix relu(ToyMatrix a) {
      for (float& value : a) value = std::max(value, 0.0F);
      return a;
    }
    // Returns the gradient of relu's input, where its output is `t`.
    static ToyMatrix through_relu(ToyMatrix gradient, const ToyMatrix& t) {
      for (std::size_t i = 0; i < t.size(); ++i) gradient[i] = t[i] > 0 ? gradient[i] : 0;
      return gradient;
    }
  };

  static void first_backward(const Memory& m) { m.put_outer(0, kA, m.hidden_gradient(), m.x()); }

  // Adds up the micro-batches in their order, and then adds the sum to the gradient.
  static void joined_backward(const Memory& m, std::span<std::byte* const> hidden_gradients) {
    const auto elements = static_cast<std::size_t>(m.model.groups[kA].padded_elements);
    std::vector<float> sum(elements);
    for (std::size_t b = 0; b < hidden_gradients.size(); ++b) {
      std::vector<float> one(elements);
      std::array<GroupMemory, 1> group = {{{.gradient = reinterpret_cast<std::byte*>(one.data())}}};
      UnitMemory memory;
      memory.groups = group;
      const Memory of_one{memory, m.model};
      const std::byte* const tokens = m.memory.of(Role::kTokens) + b * sizeof(ToyInput);
      of_one.put_outer(0, kA, Memory::rows(hidden_gradients[b]), Memory::rows(tokens));
      for (std::size_t i = 0; i < elements; ++i) sum[i] += one[i];
    }
    m.put_gradient(0, m.model.groups[kA].padded_elements,
                   [&](std::int64_t at) { return sum[static_cast<std::size_t>(at)]; });
  }

  // Steps 0 and 1 are also the recomputation.
  static void mixed_forward(const Memory& m, std::int32_t step) {
    if (step == 0) {
      const ToyMatrix t = Memory::relu(m.product(0, m.hidden()));
      Memory::put_rows(m.saved(0), t);
      return Memory::put_rows(m.memory.between[0], t);
    }
    if (step == 1) {
      const ToyMatrix u = m.product(1, Memory::rows(m.memory.between[0]));
      Memory::put_rows(m.saved(1), u);
      return Memory::put_rows(m.memory.between[1], u);
    }
    const ToyMatrix out = m.product(2, Memory::rows(m.memory.between[1]));
    Memory::put_rows(m.hidden_out(), Memory::sum(m.hidden(), out));
  }
  static void mixed_backward(const Memory& m, std::int32_t step) {
    if (step == 0) {
      m.put_outer(2, kD, m.hidden_gradient(), Memory::rows(m.saved(1)));
      return Memory::put_rows(m.memory.between[2], m.product(2, m.hidden_gradient(), true));
    }
    if (step == 1) {
      const ToyMatrix du = Memory::rows(m.memory.between[2]);
      const ToyMatrix t = Memory::rows(m.saved(0));
      m.put_outer(1, kC, du, t);
      return Memory::put_rows(m.memory.between[3], Memory::through_relu(m.product(1, du, true), t));
    }
    const ToyMatrix dt = Memory::rows(m.memory.between[3]);
    m.put_outer(0, kB, dt, m.hidden());
    m.put_input_gradient(0, Memory::sum(m.hidden_gradient(), m.product(0, dt, true)));
  }

  static void block_forward(const Memory& m) {
    Memory::put_rows(m.hidden_out(),
                     Memory::sum(m.hidden(), Memory::relu(m.product(0, m.hidden()))));
  }
  static void block_backward(const Memory& m) {
    const ToyMatrix inner =
        Memory::through_relu(m.hidden_gradient(), Memory::relu(m.product(0, m.hidden())));
    m.put_outer(0, kE, inner, m.hidden());
    m.put_input_gradient(0, Memory::sum(m.hidden_gradient(), m.product(0, inner, true)));
  }

  static void joining_forward(const Memory& m) {
    Memory::put_rows(m.hidden_out(), Memory::sum(m.hidden(1), m.product(0, m.hidden(0))));
  }
  static void joining_backward(const Memory& m) {
    m.put_outer(0, kF, m.hidden_gradient(), m.hidden(0));
    m.put_input_gradient(0, m.product(0, m.hidden_gradient(), true));
    m.put_input_gradient(1, m.hidden_gradient());
  }

  static void head(const Memory& m, bool is_backward) {
    const ToyMatrix h = m.hidden();
    const auto weight = [&](int i) { return m.parameter(0, i) + m.parameter(1, i); };
    std::array<float, kToyRows> error{};
    double loss = 0;
    for (std::size_t row = 0; row < kToyRows; ++row) {
      for (int i = 0; i < kToyWidth; ++i) {
        error[row] += weight(i) * h[row * kToyWidth + static_cast<std::size_t>(i)];
      }
      error[row] -= m.input().y[row];
      loss += 0.5 * static_cast<double>(error[row]) * static_cast<double>(error[row]);
      error[row] *= m.memory.gradient_scale;
    }
    *reinterpret_cast<double*>(m.memory.of(Role::kLosses)) = loss;
    if (!is_backward) return;
    ToyMatrix dh{};
    for (std::size_t at = 0; at < dh.size(); ++at) {
      dh[at] = error[at / kToyWidth] * weight(static_cast<int>(at % kToyWidth));
    }
    const auto of_weight = [&](std::int64_t at) {
      float sum = 0;
      for (std::size_t row = 0; at < kToyWidth && row < kToyRows; ++row) {
        sum += error[row] * h[row * kToyWidth + static_cast<std::size_t>(at)];
      }
      return sum;
    };
    m.put_gradient(0, m.model.groups[kW].padded_elements, of_weight);
    m.put_gradient(1, m.model.groups[kA].padded_elements, of_weight);
    m.put_input_gradient(0, dh);
  }

  const ComputeModel& model_;
};

// Returns an initial parameter. The optimizer's state begins with zeros.
inline float grouped_parameter(std::int32_t group, std::int64_t element) {
  if (element >= grouped_elements(group)) return 0;
  const auto mixed = static_cast<std::uint32_t>((group + 3) * 7919 + element) * 2654435761U;
  const float value = (static_cast<float>(mixed >> 8) * 0x1p-24F - 0.5F) * 0.2F;
  return group == kD ? to_float(to_bf16_ties_away(value)) : value;
}

}  // namespace terrace
