#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "tests/capi/trained_session.h"

// Units whose gradients follow from parameter, step and micro-batch.
namespace terrace::test {

inline constexpr std::int64_t kUnitElements[] = {5000, 4096, 1, 70000};
inline constexpr std::int32_t kUnits = 4;
inline constexpr std::int32_t kFrozen = 1;
inline constexpr std::int32_t kMicroBatches = 2;
inline constexpr std::int32_t kUnitSteps = 3;

struct UnitTask {
  std::int32_t unit;
  std::int32_t pass;
  std::int32_t micro_batch;
};

inline std::vector<UnitTask> usual_order() {
  std::vector<UnitTask> tasks;
  for (std::int32_t m = 0; m < kMicroBatches; ++m) {
    for (std::int32_t u = 0; u < kUnits; ++u) tasks.push_back({u, TERRACE_PASS_FORWARD, m});
    for (std::int32_t u = kUnits; u-- > 0;) tasks.push_back({u, TERRACE_PASS_BACKWARD, m});
  }
  return tasks;
}

// Returns an order that goes unit by unit through all micro-batches.
inline std::vector<UnitTask> layer_order() {
  std::vector<UnitTask> tasks;
  for (std::int32_t u = 0; u < kUnits; ++u) {
    for (std::int32_t m = 0; m < kMicroBatches; ++m) tasks.push_back({u, TERRACE_PASS_FORWARD, m});
  }
  for (std::int32_t u = kUnits; u-- > 0;) {
    for (std::int32_t m = 0; m < kMicroBatches; ++m) tasks.push_back({u, TERRACE_PASS_BACKWARD, m});
  }
  return tasks;
}

// Returns an order in which the frozen unit comes last, behind the last gradient of each
// micro-batch.
inline std::vector<UnitTask> frozen_last_order() {
  std::vector<UnitTask> tasks;
  for (std::int32_t m = 0; m < kMicroBatches; ++m) {
    for (std::int32_t u = 0; u < kUnits; ++u) tasks.push_back({u, TERRACE_PASS_FORWARD, m});
    for (std::int32_t u = kUnits; u-- > 0;) {
      if (u != kFrozen) tasks.push_back({u, TERRACE_PASS_BACKWARD, m});
    }
    tasks.push_back({kFrozen, TERRACE_PASS_BACKWARD, m});
  }
  return tasks;
}

inline float first_parameter(std::int32_t unit, std::int64_t i) {
  return drawn(static_cast<std::uint64_t>(unit), 77, static_cast<std::uint64_t>(i));
}

// Returns the gradient that a micro-batch adds, given the parameter that a step computes with.
inline float toy_gradient(float parameter, const UnitTask& task, std::int32_t step,
                          std::int64_t i) {
  const auto key = static_cast<std::uint64_t>(10 * step + task.micro_batch);
  return 0.5F * parameter +
         drawn(static_cast<std::uint64_t>(task.unit) + 50, key, static_cast<std::uint64_t>(i));
}

struct UnitChoice {
  std::int32_t dtype = TERRACE_DTYPE_FP32;
  std::int32_t tier = TERRACE_TIER_HOST;
  std::string nvme = {};
  std::vector<UnitTask> order = {};  // none: nothing is recorded
  std::uint32_t flags = 0;
  double max_grad_norm = 50;
};

using UnitState = std::map<std::string, std::vector<float>>;  // of each unit and field

inline terrace_units_options units_options(const UnitChoice& choice,
                                           const terrace_nvme_directory& directory) {
  terrace_units_options options = {};
  options.struct_size = sizeof options;
  options.threads = 2;
  options.nvme = &directory;
  options.nvme_count = choice.nvme.empty() ? 0 : 1;
  options.parameter_tier = options.gradient_tier = choice.tier;
  options.optimizer_tier = options.saved_tier = choice.tier;
  options.compute_dtype = choice.dtype;
  options.micro_batches = kMicroBatches;
  options.rule = "adamw";
  options.weight_decay = 0.1;
  options.max_grad_norm = choice.max_grad_norm;
  options.flags = choice.flags;
  return options;
}

class UnitTraining {
 public:
  explicit UnitTraining(const UnitChoice& choice) : dtype_(choice.dtype) {
    const terrace_nvme_directory directory = {choice.nvme.c_str(), 0};
    const terrace_units_options options = units_options(choice, directory);
    EXPECT_DONE(terrace_units_create(&options, &units_));
    for (std::int32_t u = 0; u < kUnits; ++u) {
      const std::string name = "layer" + std::to_string(u);
      terrace_unit_options unit = {};
      unit.struct_size = sizeof unit;
      unit.flags = u == kFrozen ? TERRACE_UNIT_FROZEN : 0;
      unit.name = name.c_str();
      unit.element_count = kUnitElements[u];
      unit.decayed_elements = u == 3 ? 1000 : 0;
      unit.saved_bytes = u == 2 ? 0 : 64;
      std::int32_t number = -1;
      EXPECT_DONE(terrace_unit_add(units_, &unit, &number));
      EXPECT_EQ(number, u);
    }
    for (const UnitTask& task : choice.order) {
      EXPECT_DONE(terrace_units_record(units_, task.unit, task.pass, task.micro_batch));
    }
    order_ = choice.order.empty() ? usual_order() : choice.order;
    EXPECT_DONE(terrace_units_prepare(units_));
  }
  ~UnitTraining() { EXPECT_DONE(terrace_units_destroy(units_)); }
  UnitTraining(const UnitTraining&) = delete;
  UnitTraining& operator=(const UnitTraining&) = delete;

  terrace_units* get() const { return units_; }
  const std::vector<UnitTask>& order() const { return order_; }

  void begin() {
    const auto source = [](void*, const terrace_state_range* range) {
      const bool is_master = std::strcmp(range->field, "master") == 0;
      for (std::int64_t i = 0; i < range->element_count; ++i) {
        range->out[i] = is_master ? first_parameter(range->unit, range->first_element + i) : 0;
      }
      return 0;
    };
    EXPECT_DONE(terrace_units_fill(units_, 0, source, nullptr));
  }

  void go_on_from(std::int64_t steps, UnitState& state) {
    const auto source = [](void* user, const terrace_state_range* range) {
      const auto& kept = *static_cast<const UnitState*>(user);
      const auto& values = kept.at(std::to_string(range->unit) + range->field);
      std::copy_n(values.begin() + range->first_element, range->element_count, range->out);
      return 0;
    };
    EXPECT_DONE(terrace_units_fill(units_, steps, source, &state));
  }

  terrace_step_result step(std::int32_t number) {
    EXPECT_DONE(terrace_units_step_begin(units_, 0.01));
    for (const UnitTask& task : order_) compute(task, number);
    terrace_step_result result = {};
    result.struct_size = sizeof result;
    EXPECT_DONE(terrace_units_step_end(units_, &result));
    return result;
  }

  // `look` is called before the unit is released.
  void compute(
      const UnitTask& task, std::int32_t number,
      FunctionRef<void(const terrace_unit_memory&)> look = [](const terrace_unit_memory&) {}) {
    terrace_unit_memory memory = {};
    memory.struct_size = sizeof memory;
    EXPECT_DONE(terrace_unit_acquire(units_, task.unit, task.pass, task.micro_batch, &memory));
    ASSERT_EQ(memory.dtype, dtype_);
    ASSERT_NE(memory.parameters, nullptr);
    const bool is_backward = task.pass == TERRACE_PASS_BACKWARD;
    ASSERT_EQ(memory.gradient != nullptr, is_backward && task.unit != kFrozen);
    ASSERT_EQ(memory.saved != nullptr, task.unit != 2);
    const std::int32_t mark = 100 * number + 10 * task.unit + task.micro_batch;
    if (memory.saved != nullptr && !is_backward) std::memcpy(memory.saved, &mark, sizeof mark);
    if (memory.saved != nullptr && is_backward) {
      EXPECT_EQ(std::memcmp(memory.saved, &mark, sizeof mark), 0);
    }
    for (std::int64_t i = 0; memory.gradient != nullptr && i < kUnitElements[task.unit]; ++i) {
      const float parameter = dtype_ == TERRACE_DTYPE_FP32
                                  ? static_cast<const float*>(memory.parameters)[i]
                                  : to_float(static_cast<const Bf16*>(memory.parameters)[i]);
      const float gradient = toy_gradient(parameter, task, number, i);
      memory.gradient[i] = memory.adds_gradient != 0 ? memory.gradient[i] + gradient : gradient;
    }
    if (memory.gradient != nullptr) {
      gradients_[task.unit].assign(memory.gradient, memory.gradient + kUnitElements[task.unit]);
    }
    look(memory);
    EXPECT_DONE(terrace_unit_release(units_, task.unit));
  }

  // Gives a step up before the task with the index `before`, and goes through the remaining tasks.
  // Expects the gradients at the sink, each element once.
  void abandon(std::size_t before, std::int32_t number) {
    using Gradients = std::map<std::int32_t, std::vector<float>>;
    Gradients told;
    const auto sink = [](void* user, std::int32_t unit, std::int64_t first, std::int64_t count,
                         const float* gradient) {
      std::vector<float>& of_unit = (*static_cast<Gradients*>(user))[unit];
      EXPECT_EQ(static_cast<std::int64_t>(of_unit.size()), first);
      of_unit.insert(of_unit.end(), gradient, gradient + count);
    };
    EXPECT_DONE(terrace_units_step_begin(units_, 0.5));
    gradients_.clear();
    for (std::size_t i = 0; i <= order_.size(); ++i) {
      if (i == before) {
        EXPECT_DONE(terrace_units_step_abandon(units_, sink, &told));
      }
      if (i < order_.size()) compute(order_[i], number);
    }
    expect_error(terrace_units_step_abandon(units_, sink, &told), TERRACE_ERROR_ORDER, "twice");
    terrace_step_result result = {};
    result.struct_size = sizeof result;
    EXPECT_DONE(terrace_units_step_end(units_, &result));
    EXPECT_EQ(result.step, number - 1);
    EXPECT_EQ(told, gradients_);
  }

  void expect_parameters_of_masters() {
    for (std::int32_t u = 0; u < kUnits; ++u) {
      std::vector<float> masters(static_cast<std::size_t>(kUnitElements[u]));
      std::vector<Bf16> parameters(masters.size());
      terrace_buffer out = buffer_of(masters.data(), kUnitElements[u], TERRACE_DTYPE_FP32);
      EXPECT_DONE(terrace_units_state_read(units_, u, "master", 0, &out));
      out = buffer_of(parameters.data(), kUnitElements[u], TERRACE_DTYPE_BF16);
      EXPECT_DONE(terrace_units_state_read(units_, u, "parameter", 0, &out));
      for (std::size_t i = 0; i < masters.size(); ++i) {
        ASSERT_EQ(to_float(parameters[i]), to_float(to_bf16_ties_away(masters[i])));
      }
    }
  }

  UnitState state() {
    UnitState state;
    for (std::int32_t u = 0; u < kUnits; ++u) {
      for (const char* const field : {"master", "exp_avg", "exp_avg_sq"}) {
        std::vector<float> values(static_cast<std::size_t>(kUnitElements[u]));
        const terrace_buffer out = buffer_of(values.data(), kUnitElements[u], TERRACE_DTYPE_FP32);
        EXPECT_DONE(terrace_units_state_read(units_, u, field, 0, &out));
        state[std::to_string(u) + field] = std::move(values);
      }
    }
    return state;
  }

 private:
  const std::int32_t dtype_;
  std::vector<UnitTask> order_;
  std::map<std::int32_t, std::vector<float>> gradients_;  // as the step's backwards left them
  terrace_units* units_ = nullptr;
};

}  // namespace terrace::test
