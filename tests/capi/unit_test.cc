#include <sys/wait.h>
#include <unistd.h>

#include "optim/update_rules.h"
#include "tests/capi/unit_training.h"

// Compares units that a trainer acquires and releases with the same training by AdamW's definition.
namespace terrace::test {
namespace {

// Returns the state of the units by the definition; `clips` has each step's coefficient.
UnitState defined_state(std::int32_t dtype, const std::vector<double>& clips) {
  const UpdateRule& rule = *find_update_rule("adamw");
  UnitState state;
  for (std::int32_t u = 0; u < kUnits; ++u) {
    const auto count = static_cast<std::size_t>(kUnitElements[u]);
    std::vector<float> master(count);
    std::vector<float> slots[2] = {std::vector<float>(count), std::vector<float>(count)};
    std::vector<float> gradient(count);
    for (std::size_t i = 0; i < count; ++i) {
      master[i] = first_parameter(u, static_cast<std::int64_t>(i));
      // A frozen unit is kept in the compute type.
      if (u == kFrozen && dtype == TERRACE_DTYPE_BF16) {
        master[i] = to_float(to_bf16_ties_away(master[i]));
      }
    }
    for (std::int32_t step = 1; u != kFrozen && step <= std::ssize(clips); ++step) {
      for (std::size_t i = 0; i < count; ++i) {
        const float parameter =
            dtype == TERRACE_DTYPE_FP32 ? master[i] : to_float(to_bf16_ties_away(master[i]));
        const auto at = static_cast<std::int64_t>(i);
        gradient[i] = toy_gradient(parameter, {u, 0, 0}, step, at);
        gradient[i] += toy_gradient(parameter, {u, 0, 1}, step, at);
      }
      ParameterUpdate update;
      update.options = standard_options(rule);
      update.options.weight_decay = 0.1F;
      update.decayed_elements = u == 3 ? 1000 : 0;
      const StepScalars scalars = {
          .learning_rate = 0.01F,
          .gradient_scale = static_cast<float>(clips[static_cast<std::size_t>(step - 1)]),
          .of_rule = rule.step_scalars(update.options, step, 0.01),
          .step = static_cast<std::uint32_t>(step)};
      update.scalars = &scalars;
      update.gradient = view(std::span(gradient));
      update.master = update.parameter = view(std::span(master));
      update.slots = {view(std::span(slots[0])), view(std::span(slots[1]))};
      rule.reference(update);
    }
    state[std::to_string(u) + "master"] = std::move(master);
    state[std::to_string(u) + "exp_avg"] = std::move(slots[0]);
    state[std::to_string(u) + "exp_avg_sq"] = std::move(slots[1]);
  }
  return state;
}

void expect_training(const UnitChoice& choice) {
  UnitTraining training(choice);
  training.begin();
  std::vector<double> clips;
  for (std::int32_t step = 1; step <= kUnitSteps; ++step) {
    const terrace_step_result result = training.step(step);
    EXPECT_EQ(result.step, step);
    EXPECT_GT(result.gradient_norm, 50);
    EXPECT_LT(result.clip_coefficient, 1);
    clips.push_back(result.clip_coefficient);
  }
  EXPECT_EQ(training.state(), defined_state(choice.dtype, clips));
}

TEST(CapiUnits, TrainOnTheHost) {
  for (const std::int32_t dtype : {TERRACE_DTYPE_FP32, TERRACE_DTYPE_BF16}) {
    expect_training({.dtype = dtype});
    expect_training({.dtype = dtype, .tier = TERRACE_TIER_AUTO, .order = layer_order()});
  }
}

TEST(CapiUnits, TrainOnNvme) {
  const TemporaryDirectory drive;
  for (const std::int32_t dtype : {TERRACE_DTYPE_FP32, TERRACE_DTYPE_BF16}) {
    expect_training({.dtype = dtype, .tier = TERRACE_TIER_NVME, .nvme = drive.path()});
    expect_training(
        {.dtype = dtype, .tier = TERRACE_TIER_NVME, .nvme = drive.path(), .order = layer_order()});
  }
  EXPECT_TRUE(std::filesystem::is_empty(drive.path()));
}

TEST(CapiUnits, AnAbandonedStepLeavesNoTrace) {
  const TemporaryDirectory drive;
  for (const bool on_drive : {false, true}) {
    for (const std::int32_t dtype : {TERRACE_DTYPE_FP32, TERRACE_DTYPE_BF16}) {
      UnitTraining training({.dtype = dtype,
                             .tier = on_drive ? TERRACE_TIER_NVME : TERRACE_TIER_HOST,
                             .nvme = on_drive ? drive.path() : std::string(),
                             .order = on_drive ? frozen_last_order() : usual_order(),
                             .flags = TERRACE_UNITS_CAN_ABANDON});
      training.begin();
      std::vector<double> clips;
      for (std::int32_t step = 1; step <= kUnitSteps; ++step) {
        const std::size_t tasks = training.order().size();
        for (const std::size_t before : {std::size_t{0}, tasks / 2, tasks - 1, tasks}) {
          training.abandon(before, step);
        }
        clips.push_back(training.step(step).clip_coefficient);
      }
      EXPECT_EQ(training.state(), defined_state(dtype, clips));
      if (dtype == TERRACE_DTYPE_BF16) training.expect_parameters_of_masters();
    }
  }
}

TEST(CapiUnits, StepsThatCanBeAbandonedAreTheSame) {
  UnitTraining plain({.max_grad_norm = 0});
  UnitTraining training({.flags = TERRACE_UNITS_CAN_ABANDON, .max_grad_norm = 0});
  for (UnitTraining* each : {&plain, &training}) {
    each->begin();
    for (std::int32_t step = 1; step <= kUnitSteps; ++step) {
      EXPECT_EQ(each->step(step).clip_coefficient, 1);
    }
  }
  EXPECT_EQ(training.state(), plain.state());
  const auto sink = [](void*, std::int32_t, std::int64_t, std::int64_t, const float*) {};
  expect_error(terrace_units_step_abandon(training.get(), sink, nullptr), TERRACE_ERROR_ORDER,
               "no step");
  ASSERT_DONE(terrace_units_step_begin(plain.get(), 0.1));
  expect_error(terrace_units_step_abandon(plain.get(), sink, nullptr), TERRACE_ERROR_ORDER,
               "TERRACE_UNITS_CAN_ABANDON");
}

TEST(CapiUnits, GoOnInAnotherSession) {
  const TemporaryDirectory drive;
  UnitTraining whole({});
  whole.begin();
  for (std::int32_t step = 1; step <= kUnitSteps; ++step) whole.step(step);
  UnitState kept;
  {
    UnitTraining first({});
    first.begin();
    first.step(1);
    kept = first.state();
  }
  UnitTraining second({.tier = TERRACE_TIER_NVME, .nvme = drive.path()});
  second.go_on_from(1, kept);
  for (std::int32_t step = 2; step <= kUnitSteps; ++step) EXPECT_EQ(second.step(step).step, step);
  EXPECT_EQ(second.state(), whole.state());
}

TEST(CapiUnits, ATaskThatIsNotNextIsRefused) {
  UnitTraining training({});
  terrace_unit_memory memory = {};
  memory.struct_size = sizeof memory;
  const auto acquire = [&](std::int32_t unit, std::int32_t pass, std::int32_t micro_batch) {
    return terrace_unit_acquire(training.get(), unit, pass, micro_batch, &memory);
  };
  expect_error(terrace_units_step_begin(training.get(), 0.01), TERRACE_ERROR_ORDER,
               "terrace_units_fill");
  training.begin();
  expect_error(acquire(0, 0, 0), TERRACE_ERROR_ORDER, "terrace_units_step_begin");
  for (const double rate : {-1.0, 1e39}) {
    expect_error(terrace_units_step_begin(training.get(), rate), TERRACE_ERROR_ARGUMENT, "rate");
  }
  ASSERT_DONE(terrace_units_step_begin(training.get(), 0.01));
  expect_error(acquire(1, 0, 0), TERRACE_ERROR_ORDER, "continues with the forward of unit layer0");
  expect_error(acquire(9, 0, 0), TERRACE_ERROR_ARGUMENT, "unit 9");
  expect_error(acquire(0, 5, 0), TERRACE_ERROR_ARGUMENT, "pass");
  expect_error(terrace_unit_release(training.get(), 0), TERRACE_ERROR_ORDER, "layer0");
  ASSERT_DONE(acquire(0, 0, 0));
  expect_error(acquire(1, 0, 0), TERRACE_ERROR_ORDER, "terrace_unit_release");
  expect_error(terrace_unit_release(training.get(), 1), TERRACE_ERROR_ORDER, "layer1");
  expect_error(terrace_units_step_end(training.get(), nullptr), TERRACE_ERROR_ORDER, "layer0");
  expect_error(terrace_units_step_begin(training.get(), 0.01), TERRACE_ERROR_ORDER, "under way");
  const std::int32_t mark = 100;
  std::memcpy(memory.saved, &mark, sizeof mark);
  ASSERT_DONE(terrace_unit_release(training.get(), 0));
  expect_error(terrace_units_step_end(training.get(), nullptr), TERRACE_ERROR_ORDER, "layer1");
  // None of it has disturbed the step.
  for (std::size_t i = 1; i < training.order().size(); ++i) {
    training.compute(training.order()[i], 1);
  }
  expect_error(acquire(0, 0, 0), TERRACE_ERROR_ORDER, "complete");
  ASSERT_DONE(terrace_units_step_end(training.get(), nullptr));
}

TEST(CapiUnits, EndInTheMiddleOfAStep) {
  terrace_unit_memory memory = {};
  memory.struct_size = sizeof memory;
  for (const bool acquires : {false, true}) {
    UnitTraining training({});
    training.begin();
    ASSERT_DONE(terrace_units_step_begin(training.get(), 0.01));
    if (acquires) {
      ASSERT_DONE(terrace_unit_acquire(training.get(), 0, TERRACE_PASS_FORWARD, 0, &memory));
    }
  }
}

void expect_not_finite(UnitTraining& training) {
  ASSERT_DONE(terrace_units_step_begin(training.get(), 0.01));
  for (const UnitTask& task : training.order()) {
    terrace_unit_memory memory = {};
    memory.struct_size = sizeof memory;
    ASSERT_DONE(
        terrace_unit_acquire(training.get(), task.unit, task.pass, task.micro_batch, &memory));
    if (memory.gradient != nullptr) {
      std::fill_n(memory.gradient, kUnitElements[task.unit],
                  std::numeric_limits<float>::infinity());
    }
    ASSERT_DONE(terrace_unit_release(training.get(), task.unit));
  }
  expect_error(terrace_units_step_end(training.get(), nullptr), TERRACE_ERROR_NOT_FINITE, "");
}

TEST(CapiUnits, AGradientThatIsNotFiniteChangesNothing) {
  UnitTraining training({.flags = TERRACE_UNITS_CAN_ABANDON});
  training.begin();
  std::vector<double> clips;
  for (std::int32_t step = 1; step <= kUnitSteps; ++step) {
    expect_not_finite(training);
    clips.push_back(training.step(step).clip_coefficient);
  }
  EXPECT_EQ(training.state(), defined_state(TERRACE_DTYPE_FP32, clips));
}

TEST(CapiUnits, AGradientThatIsNotFiniteEndsTheSession) {
  UnitTraining training({});
  training.begin();
  expect_not_finite(training);
  expect_error(terrace_units_step_begin(training.get(), 0.01), TERRACE_ERROR_FAILED, "destroy");
}

TEST(CapiUnits, WhatCannotBeIsRefused) {
  UnitChoice choice;
  const terrace_nvme_directory directory = {"/nowhere", 0};
  terrace_units* units = nullptr;
  const auto create = [&](auto change) {
    terrace_units_options options = units_options(choice, directory);
    change(options);
    return terrace_units_create(&options, &units);
  };
  expect_error(create([](auto& o) { o.micro_batches = 0; }), TERRACE_ERROR_ARGUMENT, "micro");
  expect_error(create([](auto& o) { o.rule = "adam"; }), TERRACE_ERROR_ARGUMENT, "adam");
  expect_error(create([](auto& o) { o.compute_dtype = TERRACE_DTYPE_FP16; }), TERRACE_ERROR_DTYPE,
               "fp16");
  expect_error(create([](auto& o) { o.saved_tier = TERRACE_TIER_NVME; }), TERRACE_ERROR_ARGUMENT,
               "directory");
  expect_error(create([](auto& o) { o.max_grad_norm = 1e39; }), TERRACE_ERROR_ARGUMENT, "norm");
  expect_error(create([](auto& o) { o.nvme_count = 1; }), TERRACE_ERROR_ARGUMENT,
               "directories are named");
  EXPECT_EQ(units, nullptr);
  ASSERT_DONE(create([](auto& o) { o.host_memory_bytes = 4096; }));
  expect_error(terrace_units_prepare(units), TERRACE_ERROR_ORDER, "no unit");
  terrace_unit_options unit = {};
  unit.struct_size = sizeof unit;
  unit.name = "layer";
  std::int32_t number = -1;
  expect_error(terrace_unit_add(units, &unit, &number), TERRACE_ERROR_ARGUMENT, "0 elements");
  unit.element_count = 100000;
  unit.decayed_elements = 100001;
  expect_error(terrace_unit_add(units, &unit, &number), TERRACE_ERROR_ARGUMENT, "decay");
  unit.decayed_elements = 0;
  ASSERT_DONE(terrace_unit_add(units, &unit, &number));
  expect_error(terrace_units_record(units, 0, TERRACE_PASS_FORWARD, 2), TERRACE_ERROR_ARGUMENT,
               "micro-batch 2");
  expect_error(terrace_units_prepare(units), TERRACE_ERROR_DOES_NOT_FIT, "host_memory_bytes");
  expect_error(terrace_units_prepare(units), TERRACE_ERROR_FAILED, "destroy");
  EXPECT_DONE(terrace_units_destroy(units));

  // A backward without a forward.
  ASSERT_DONE(create([](auto&) {}));
  ASSERT_DONE(terrace_unit_add(units, &unit, &number));
  ASSERT_DONE(terrace_units_record(units, 0, TERRACE_PASS_BACKWARD, 0));
  expect_error(terrace_units_prepare(units), TERRACE_ERROR_ARGUMENT, "backward");
  EXPECT_DONE(terrace_units_destroy(units));
}

TEST(CapiUnits, ASourceThatRefusesAndAForkedChild) {
  UnitTraining training({});
  const auto refuses = [](void*, const terrace_state_range*) { return 1; };
  expect_error(terrace_units_fill(training.get(), (std::int64_t{1} << 53) + 1, refuses, nullptr),
               TERRACE_ERROR_ARGUMENT, "steps");
  expect_error(terrace_units_fill(training.get(), 0, refuses, nullptr), TERRACE_ERROR_ARGUMENT,
               "master");
  expect_error(terrace_units_fill(training.get(), 0, refuses, nullptr), TERRACE_ERROR_FAILED,
               "destroy");
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = terrace_units_step_begin(training.get(), 0.1) == TERRACE_ERROR_FORKED &&
                         terrace_units_destroy(training.get()) == TERRACE_ERROR_FORKED;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace terrace::test
