#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "tests/runtime/checkpoint/snapshot_state.h"
#include "tests/runtime/engine/engine_fixture.h"

// Switches do not change bits (docs/numerics.md): every run below must give the losses and gradient
// norms of the plain run to the last bit, and must show that its switch took effect. By default
// each shape in a precision runs with every second switch, chosen so that every pair of shape,
// precision and switch occurs. With TERRACE_EVERY_SWITCH each runs with all of them.
namespace terrace {
namespace {

constexpr std::int64_t kSteps = 20;

struct Shape {
  const char* name;
  std::string_view family;
  bool tied;
  bool odd;
  double max_grad_norm;  // within the range of its norms
};

constexpr Shape kShapes[] = {
    {"gpt2_tied", "gpt2", true, false, 1.6},
    {"gpt2_untied_odd", "gpt2", false, true, 1.6},
    {"llama_tied", "llama", true, false, 1.6},
    {"llama_untied_odd", "llama", false, true, 0.9},
    {"qwen3_untied_odd", "qwen3", false, true, 0.9},
    {"gemma2_tied", "gemma2", true, false, 1.6},
    {"olmo2_untied_odd", "olmo2", false, true, 0.9},
    {"mixtral_tied", "mixtral", true, false, 1.6},
    {"qwen3_moe_untied_odd", "qwen3_moe", false, true, 0.9},
    {"gpt_oss_untied_odd", "gpt_oss", false, true, 0.9},
};

using Case = std::tuple<int, DType>;  // index of a shape, precision

#ifdef TERRACE_EVERY_SWITCH
constexpr bool kEverySwitch = true;
#else
constexpr bool kEverySwitch = false;
#endif

bool has_switch(const Case& tested, std::size_t number) {
  const auto [shape, type] = tested;
  const int parity = shape + (type == DType::kBF16 ? 1 : 0);
  return kEverySwitch || (number + static_cast<std::size_t>(parity)) % 2 == 0;
}

struct Switch {
  std::string name;
  std::function<void(ModelRuntimeOptions&)> set;
  std::function<void(const TrainedRun& plain, const TrainedRun& run)> took_effect;
};

void expect_traffic(const TrainedRun& run, std::initializer_list<Lane> lanes) {
  for (const Lane lane : lanes) EXPECT_GT(run.traffic.of(lane), 0) << name_of(lane);
}

void on_device(ModelRuntimeOptions& options) {
  options.placement.unified = false;
  options.placement.homes.fill(Tier::kDevice);
}

void all_on(ModelRuntimeOptions& options, Tier tier) {
  options.placement.homes.fill(tier);
  options.placement.has_nvme = tier == Tier::kNvme;
}

Switch one_state(const StateClassInfo& info, Tier tier) {
  return {std::string(name_of(info.account)) + "_on_" + std::string(name_of(tier)),
          [state = info.state, tier](ModelRuntimeOptions& options) {
            on_device(options);
            options.placement.homes[state] = tier;
            options.placement.has_nvme = tier == Tier::kNvme;
          },
          [=](const TrainedRun&, const TrainedRun& run) {
            expect_traffic(run, {Lane::kUpload, Lane::kDownload});
            if (tier == Tier::kNvme) expect_traffic(run, {Lane::kRead, Lane::kWrite});
          }};
}

std::vector<Switch> placements() {
  std::vector<Switch> list = {
      {"all_on_device", on_device,
       [](const TrainedRun&, const TrainedRun& run) {
         EXPECT_EQ(run.traffic.of(Lane::kWrite), 0);
         EXPECT_GT(run.ledger[Tier::kDevice].peak_bytes, 0U);
       }},
      {"unified_all_on_nvme", [](ModelRuntimeOptions& options) { all_on(options, Tier::kNvme); },
       [](const TrainedRun& plain, const TrainedRun& run) {
         expect_traffic(run, {Lane::kRead, Lane::kWrite});
         EXPECT_EQ(run.traffic.of(Lane::kUpload), 0);
         EXPECT_LT(run.ledger[Tier::kHost].live_peak_bytes,
                   plain.ledger[Tier::kHost].live_peak_bytes);
       }},
  };
  for (const Tier tier : {Tier::kHost, Tier::kNvme}) {
    for (const StateClassInfo& info : kStateClasses) {
      if (info.use == StateUse::kReduce) continue;  // only ranks have it
      list.push_back(one_state(info, tier));
    }
    list.push_back({"all_on_" + std::string(name_of(tier)),
                    [tier](ModelRuntimeOptions& options) {
                      options.placement.unified = false;
                      all_on(options, tier);
                    },
                    [](const TrainedRun&, const TrainedRun& run) {
                      expect_traffic(run, {Lane::kUpload, Lane::kDownload});
                    }});
  }
  return list;
}

void all_on_nvme_from_device(ModelRuntimeOptions& options) {
  options.placement.unified = false;
  all_on(options, Tier::kNvme);
}

std::vector<Switch> orders() {
  const auto layer_major = [](ModelRuntimeOptions& options) {
    options.placement.order = MicroBatchOrder::kLayerMajor;
  };
  return {
      {"recompute_full", [](ModelRuntimeOptions& options) { options.placement.recompute = true; },
       [](const TrainedRun& plain, const TrainedRun& run) {
         EXPECT_LT(run.ledger[Tier::kHost].live_peak_bytes,
                   plain.ledger[Tier::kHost].live_peak_bytes);
       }},
      {"layer_major", layer_major,
       [](const TrainedRun& plain, const TrainedRun& run) {
         EXPECT_NE(run.ledger[Tier::kHost].live_peak_bytes,
                   plain.ledger[Tier::kHost].live_peak_bytes);
       }},
      {"layer_major_recompute_all_on_nvme",
       [=](ModelRuntimeOptions& options) {
         all_on_nvme_from_device(options);
         options.placement.recompute = true;
         layer_major(options);
       },
       [](const TrainedRun&, const TrainedRun& run) {
         expect_traffic(run, {Lane::kUpload, Lane::kDownload, Lane::kRead, Lane::kWrite});
       }},
  };
}

// Sets budgets to the smallest that the run fits in, within a few per cent, times `factor`.
void limit_arenas(ModelRuntimeOptions& options, double factor) {
  const Ledger loose = plan_model(options).ledger;
  const auto set = [&](double share) {
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      options.budgets.at(static_cast<std::size_t>(tier)) =
          static_cast<std::size_t>(share * static_cast<double>(loose[tier].peak_bytes));
    }
  };
  for (double share = 0.3; share < 1.1; share += 0.03) {
    set(share);
    try {
      plan_model(options);
    } catch (const OutOfMemory&) {
      continue;
    }
    set(share * factor);
    return;
  }
}

std::vector<Switch> resources() {
  std::vector<Switch> list;
  for (const double factor : {1.0, 2.0}) {
    list.push_back({factor == 1.0 ? "arenas_smallest" : "arenas_twice_the_smallest",
                    [factor](ModelRuntimeOptions& options) {
                      all_on_nvme_from_device(options);
                      limit_arenas(options, factor);
                    },
                    [](const TrainedRun&, const TrainedRun& run) {
                      for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
                        EXPECT_LE(run.ledger[tier].peak_bytes, *run.ledger[tier].budget_bytes);
                      }
                    }});
  }
  for (const std::int32_t lookahead : {0, 1, 6}) {
    list.push_back({"lookahead_" + std::to_string(lookahead),
                    [lookahead](ModelRuntimeOptions& options) {
                      all_on_nvme_from_device(options);
                      options.placement.lookahead = lookahead;
                    },
                    [](const TrainedRun&, const TrainedRun& run) {
                      // LookaheadChangesThePeak tests the change that the lookahead itself makes.
                      expect_traffic(run, {Lane::kRead, Lane::kUpload});
                    }});
  }
  for (const int threads : {1, 3}) {
    list.push_back(
        {"threads_" + std::to_string(threads),
         [threads](ModelRuntimeOptions& options) { options.threads = threads; },
         [threads](const TrainedRun&, const TrainedRun& run) { EXPECT_EQ(run.threads, threads); }});
  }
  list.push_back({"posix",
                  [](ModelRuntimeOptions& options) {
                    all_on_nvme_from_device(options);
                    options.nvme.engine = IoEngineKind::kPosix;
                  },
                  [](const TrainedRun&, const TrainedRun& run) {
                    ASSERT_EQ(run.paths.size(), 1U);
                    EXPECT_EQ(run.paths.front().engine, "posix");
                  }});
  return list;
}

// Puts all state in `tier`, and runs this share of the updates on the device.
Switch streamed_updates(Tier tier, double share) {
  return {"streamed_updates_" + std::to_string(share) + "_" + std::string(name_of(tier)),
          [=](ModelRuntimeOptions& options) {
            options.placement.unified = false;
            all_on(options, tier);
            options.placement.streamed_updates = share;
          },
          [](const TrainedRun&, const TrainedRun& run) {
            expect_traffic(run, {Lane::kUpload, Lane::kDownload});
          }};
}

std::vector<Switch> update_splits() {
  std::vector<Switch> list;
  for (const double share : {0.5, 1.0}) {
    for (const Tier tier : {Tier::kHost, Tier::kNvme})
      list.push_back(streamed_updates(tier, share));
  }
  list.push_back({"streamed_updates_with_whole_masters",
                  [](ModelRuntimeOptions& options) {
                    on_device(options);
                    options.placement.homes[StateClass::kOptimizer] = Tier::kHost;
                    options.placement.streamed_updates = 0.6;
                    options.optimizer.splits_bf16_masters = false;
                  },
                  [](const TrainedRun& plain, const TrainedRun& run) {
                    EXPECT_GT(run.traffic.of(Lane::kUpload), plain.traffic.of(Lane::kUpload));
                  }});
  list.push_back({"streamed_updates_layer_major_in_the_smallest_arenas",
                  [](ModelRuntimeOptions& options) {
                    options.placement.unified = false;
                    all_on(options, Tier::kNvme);
                    options.placement.streamed_updates = 1;
                    options.placement.order = MicroBatchOrder::kLayerMajor;
                    limit_arenas(options, 1.0);
                  },
                  [](const TrainedRun&, const TrainedRun& run) {
                    EXPECT_LE(run.ledger[Tier::kDevice].peak_bytes,
                              *run.ledger[Tier::kDevice].budget_bytes);
                  }});
  return list;
}

// Switches of the masters of bf16 parameters. The plain run splits its masters.
std::vector<Switch> masters() {
  const auto whole = [](ModelRuntimeOptions& options) {
    options.optimizer.splits_bf16_masters = false;
  };
  const auto writes_more = [](const TrainedRun&, const TrainedRun& run) {
    expect_traffic(run, {Lane::kRead, Lane::kWrite});
  };
  return {{"whole_masters", whole,
           [](const TrainedRun& plain, const TrainedRun& run) {
             EXPECT_GT(run.ledger[Tier::kHost][Account::kOptimizerState],
                       plain.ledger[Tier::kHost][Account::kOptimizerState]);
           }},
          {"whole_masters_on_device",
           [=](ModelRuntimeOptions& options) {
             on_device(options);
             whole(options);
           },
           [](const TrainedRun&, const TrainedRun& run) {
             EXPECT_GT(run.ledger[Tier::kDevice].peak_bytes, 0U);
           }},
          {"whole_masters_all_on_nvme",
           [=](ModelRuntimeOptions& options) {
             all_on_nvme_from_device(options);
             whole(options);
           },
           writes_more},
          {"split_masters_apart_from_their_parameters",
           [](ModelRuntimeOptions& options) {
             on_device(options);
             options.placement.homes[StateClass::kOptimizer] = Tier::kNvme;
             options.placement.homes[StateClass::kParameters] = Tier::kHost;
             options.placement.has_nvme = true;
           },
           writes_more}};
}

class EngineBits : public testing::TestWithParam<Case> {
 protected:
  ModelRuntimeOptions plain_options() const {
    const Shape& shape = kShapes[std::get<0>(GetParam())];
    ModelRuntimeOptions options =
        tiny_options(tiny_model(shape.family, shape.tied, shape.odd), std::get<1>(GetParam()));
    options.optimizer.max_grad_norm = shape.max_grad_norm;
    options.nvme.directories = {{directory_.path(), std::nullopt}};
    return options;
  }

  // Trained once for all tests of a process.
  const TrainedRun& plain_run() const {
    static std::map<Case, TrainedRun> runs;
    const auto found = runs.find(GetParam());
    if (found != runs.end()) return found->second;
    return runs.emplace(GetParam(), train_tiny(plain_options(), kSteps)).first->second;
  }

  void expect_equal(const std::vector<Switch>& switches) {
    const ModelRuntimeOptions plain = plain_options();
    const TrainedRun& expected = plain_run();
    for (std::size_t i = 0; i < switches.size(); ++i) {
      if (!has_switch(GetParam(), i)) continue;
      const Switch& one = switches[i];
      SCOPED_TRACE(one.name);
      ModelRuntimeOptions options = plain;
      one.set(options);
      const TrainedRun run = train_tiny(options, kSteps);
      EXPECT_EQ(run.curve.losses, expected.curve.losses);
      EXPECT_EQ(run.curve.norms, expected.curve.norms);
      EXPECT_EQ(run.evaluation, expected.evaluation);
      one.took_effect(expected, run);
    }
  }

  TemporaryDirectory directory_;
};

TEST_P(EngineBits, ClippingIsActiveOnSomeStepsAndTheLossFalls) {
  const ModelRuntimeOptions options = plain_options();
  const TrainedRun& run = plain_run();
  const auto clipped = std::count_if(run.curve.norms.begin(), run.curve.norms.end(),
                                     [&](double n) { return n > options.optimizer.max_grad_norm; });
  EXPECT_GT(clipped, 0);
  EXPECT_LT(clipped, kSteps);
  EXPECT_LT(run.curve.losses.back(), run.curve.losses.front() - 0.3);
}

TEST_P(EngineBits, Placements) { expect_equal(placements()); }
TEST_P(EngineBits, Orders) { expect_equal(orders()); }
TEST_P(EngineBits, UpdateSplits) { expect_equal(update_splits()); }
TEST_P(EngineBits, Resources) { expect_equal(resources()); }

TEST_P(EngineBits, Masters) {
  if (std::get<1>(GetParam()) == DType::kBF16) return expect_equal(masters());
  ModelRuntimeOptions options = plain_options();  // fp32 parameters are their masters
  const Ledger plain = plan_model(options).ledger;
  options.optimizer.splits_bf16_masters = false;
  EXPECT_EQ(plan_model(options).ledger[Tier::kHost][Account::kOptimizerState],
            plain[Tier::kHost][Account::kOptimizerState]);
}

// Moments in each form give results of their own, whose bits stay the same whatever the switches.
class EngineBitsOfMoments : public EngineBits {
 protected:
  void expect_equal_with(SlotForm moments) {
    ModelRuntimeOptions plain = plain_options();
    plain.optimizer.slot_form = moments;
    const TrainedRun expected = train_tiny(plain, kSteps);
    EXPECT_NE(expected.curve.losses.back(), plain_run().curve.losses.back());
    for (const auto& set : switches()) {
      ModelRuntimeOptions options = plain;
      set(options);
      const TrainedRun run = train_tiny(options, kSteps);
      EXPECT_EQ(run.curve, expected.curve);
      EXPECT_EQ(run.evaluation, expected.evaluation);
    }
  }

 private:
  static std::vector<std::function<void(ModelRuntimeOptions&)>> switches() {
    return {[](ModelRuntimeOptions& options) {
              all_on_nvme_from_device(options);
              options.threads = 3;
              options.update_threads = 2;
            },
            [](ModelRuntimeOptions& options) {
              on_device(options);
              options.placement.order = MicroBatchOrder::kLayerMajor;
              options.threads = 1;
            },
            [](ModelRuntimeOptions& options) {
              all_on(options, Tier::kNvme);
              options.optimizer.splits_bf16_masters = false;
            },
            [](ModelRuntimeOptions& options) {
              options.placement.unified = false;
              all_on(options, Tier::kHost);
              options.placement.streamed_updates = 0.5;
            },
            [](ModelRuntimeOptions& options) { options.chunk_elements = 3 * kBlockElements; }};
  }
};

TEST_P(EngineBitsOfMoments, Bf16) { expect_equal_with(SlotForm::kBf16); }
TEST_P(EngineBitsOfMoments, Int8) { expect_equal_with(SlotForm::kInt8); }

TEST_P(EngineBits, LookaheadChangesThePeak) {
  ModelRuntimeOptions options = plain_options();
  all_on_nvme_from_device(options);
  options.placement.lookahead = 0;
  const std::size_t none = plan_model(options).ledger[Tier::kDevice].live_peak_bytes;
  options.placement.lookahead = 6;
  EXPECT_GT(plan_model(options).ledger[Tier::kDevice].live_peak_bytes, none);
}

// Without clipping each update runs as soon as its gradient is ready. A norm limit that is never
// reached does the same arithmetic, but its updates run under the next forward.
TEST_P(EngineBits, UpdatesThatDoNotWaitForTheNorm) {
  const auto layer_major = [](ModelRuntimeOptions& options) {
    options.placement.order = MicroBatchOrder::kLayerMajor;
  };
  const std::vector<std::function<void(ModelRuntimeOptions&)>> placements = {
      [](ModelRuntimeOptions&) {},
      layer_major,
      [](ModelRuntimeOptions& options) { all_on(options, Tier::kNvme); },
      [](ModelRuntimeOptions& options) {
        all_on(options, Tier::kNvme);
        options.placement.homes[StateClass::kGradients].reset();
        options.placement.recompute = true;
      },
      on_device,
      all_on_nvme_from_device,
      [](ModelRuntimeOptions& options) {
        all_on_nvme_from_device(options);
        options.placement.streamed_updates = 0.5;
      },
      [=](ModelRuntimeOptions& options) {
        all_on_nvme_from_device(options);
        layer_major(options);
      },
      [](ModelRuntimeOptions& options) {
        all_on_nvme_from_device(options);
        options.placement.homes[StateClass::kGradients] = Tier::kHost;
        limit_arenas(options, 1.0);
      },
  };
  ModelRuntimeOptions waiting = plain_options();
  waiting.optimizer.max_grad_norm = 1e30;
  const TrainedRun expected = train_tiny(waiting, kSteps);
  for (std::size_t i = 0; i < placements.size(); ++i) {
    SCOPED_TRACE(i);
    ModelRuntimeOptions options = waiting;
    options.optimizer.max_grad_norm = 0;
    placements[i](options);
    const TrainedRun run = train_tiny(options, kSteps);
    EXPECT_EQ(run.curve, expected.curve);
    EXPECT_EQ(run.evaluation, expected.evaluation);
  }
}

// A run whose state was read out of another run's homes and put into other tiers continues the
// curve.
class EngineBitsResumed : public EngineBits {
 protected:
  void expect_resumed(SlotForm moments);
};

void EngineBitsResumed::expect_resumed(SlotForm moments) {
  ModelRuntimeOptions plain = plain_options();
  plain.optimizer.slot_form = moments;
  const TrainedRun whole = train_tiny(plain, kSteps);
  ModelRuntimeOptions second = plain;
  all_on_nvme_from_device(second);
  second.optimizer.splits_bf16_masters = false;
  const TierPlan first_plan = plan_model(plain);
  const TierPlan second_plan = plan_model(second);
  SilentLog log;
  TrainedRun run;
  ModelRuntime first(plain, first_plan, log);
  first.fill_state(RandomState(1234));
  train_steps(first, plain, 1, kSteps / 2, run);
  const SnapshotState snapshot(first);
  ModelRuntime resumed(second, second_plan, log);
  resumed.fill_state(snapshot);
  train_steps(resumed, second, kSteps / 2 + 1, kSteps, run);
  EXPECT_EQ(run.curve, whole.curve);
}

TEST_P(EngineBitsResumed, InOtherTiers) {
  for (const SlotForm moments : {SlotForm::kFp32, SlotForm::kBf16, SlotForm::kInt8}) {
    SCOPED_TRACE(static_cast<int>(moments));
    expect_resumed(moments);
  }
}

std::string name_of_case(const testing::TestParamInfo<Case>& instance) {
  const auto [shape, type] = instance.param;
  return std::string(kShapes[shape].name) + "_" + std::string(name_of(type));
}

// By default the shapes of gpt2 and llama are trained in both precisions, the others in one.
constexpr int kShapesInBoth = kEverySwitch ? static_cast<int>(std::size(kShapes)) : 4;
const auto kCases =
    testing::Combine(testing::Range(0, kShapesInBoth), testing::Values(DType::kBF16, DType::kF32));
constexpr Case kOtherFamilies[] = {
    {4, DType::kBF16}, {5, DType::kF32}, {6, DType::kBF16}, {7, DType::kF32}, {8, DType::kBF16}};
constexpr Case kFewCases[] = {
    {0, DType::kF32}, {1, DType::kBF16}, {2, DType::kBF16}, {3, DType::kF32}};
#ifdef TERRACE_EVERY_SWITCH
INSTANTIATE_TEST_SUITE_P(EverySwitch, EngineBits, kCases, name_of_case);
INSTANTIATE_TEST_SUITE_P(EverySwitch, EngineBitsOfMoments, kCases, name_of_case);
INSTANTIATE_TEST_SUITE_P(EverySwitch, EngineBitsResumed, kCases, name_of_case);
#else
INSTANTIATE_TEST_SUITE_P(Shapes, EngineBitsOfMoments, testing::ValuesIn(kFewCases), name_of_case);
INSTANTIATE_TEST_SUITE_P(Shapes, EngineBitsResumed, testing::ValuesIn(kFewCases), name_of_case);
INSTANTIATE_TEST_SUITE_P(Shapes, EngineBits, kCases, name_of_case);
INSTANTIATE_TEST_SUITE_P(Families, EngineBits, testing::ValuesIn(kOtherFamilies), name_of_case);
#endif

}  // namespace
}  // namespace terrace
