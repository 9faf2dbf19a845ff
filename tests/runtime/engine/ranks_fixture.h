#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "parallel/thread_communicator.h"
#include "runtime/train/ranked_state.h"
#include "tests/runtime/engine/engine_fixture.h"

// Small models trained by ranks as threads.
namespace terrace {

inline constexpr std::int64_t kSteps = 4;

// A training by ranks. The state is the one after training, as the first rank reads it.
struct RankedRun {
  TrainedRun run;  // the first rank's
  std::vector<Curve> curves;
  std::vector<double> evaluations;
  std::vector<float> state;
  double bytes_sent = 0;  // by the first rank, until the last drain
};

inline std::vector<float> read_state(ModelRuntime& engine, const ModelRuntimeOptions& options,
                                     Communicator& world) {
  const std::vector<UnitLayout> layout = parameter_layout(options.model);
  const TierPlan plan = plan_model(options);
  RankedState state(engine.state(), plan.model, &world);
  std::vector<float> all;
  if (world.rank() != 0) {
    state.serve_reads();
    return all;
  }
  for (const UnitLayout& unit : layout) {
    for (const StateField field : state_fields(options.optimizer.rule->slots.size())) {
      const bool is_quantized = options.base_quantization.has_value();  // then trained state alone
      std::vector<float> values(
          static_cast<std::size_t>(is_quantized ? unit.trained_elements() : unit.elements));
      state.read(field, static_cast<std::int32_t>(unit.index), 0, values);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  state.end_reads();
  return all;
}

// Calls `body` with the options of one rank, which include its communicators. If the backend has an
// exchange, these include communicators of device memory, made with `of_devices`.
inline void as_rank(Communicator& world, const ModelRuntimeOptions& options, const MeshShape& shape,
                    const std::function<void(const ModelRuntimeOptions&)>& body,
                    const CommunicatorOptions& of_devices = {}) {
  StepCommunicators communicators(world, shape);
  std::unique_ptr<Communicator> devices;
  if (const DeviceExchange* exchange = exchange_of(options.backend)) {
    devices = exchange->make_communicator(world, of_devices);
    communicators.add_devices(*devices);
  }
  ModelRuntimeOptions own = options;
  own.ranks = communicators.ranks();
  own.threads = 1;
  body(own);
}

inline RankedRun train_ranks(const ModelRuntimeOptions& options, const MeshShape& shape,
                             std::int32_t stage) {
  const auto count = static_cast<std::size_t>(shape.ranks());
  auto worlds = make_thread_communicators(shape.ranks(), "world");
  RankedRun result;
  result.curves.resize(count);
  result.evaluations.resize(count);
  ModelRuntimeOptions of_stage = options;
  of_stage.zero_stage = stage;
  const auto train = [&](std::size_t r, const ModelRuntimeOptions& own) {
    double sent = 0;
    std::vector<float> state;
    const TrainedRun run = train_tiny(own, kSteps, [&](ModelRuntime& engine) {
      sent = static_cast<double>(own.ranks.data.host->bytes_sent() + own.ranks.world->bytes_sent());
      state = read_state(engine, own, *worlds[r]);
    });
    result.curves[r] = run.curve;
    result.evaluations[r] = run.evaluation;
    if (r != 0) return;
    result.run = run;
    result.state = std::move(state);
    result.bytes_sent = sent;
  };
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < count; ++r) {
    threads.emplace_back([&, r] {
      as_rank(*worlds[r], of_stage, shape, [&](const ModelRuntimeOptions& own) { train(r, own); });
    });
  }
  threads.clear();
  return result;
}

inline RankedRun train_ranks(const ModelRuntimeOptions& options, int ranks, std::int32_t stage) {
  return train_ranks(options, MeshShape{.data = ranks}, stage);
}

inline void all_on(ModelRuntimeOptions& options, bool unified, Tier tier) {
  options.placement.unified = unified;
  options.placement.homes.fill(tier);
  options.placement.has_nvme = tier == Tier::kNvme;
}

struct Placed {
  const char* name;
  std::function<void(ModelRuntimeOptions&)> set;
};

// Where the state lives, and other switches that change no bit.
inline const std::vector<Placed>& placements() {
  static const std::vector<Placed> list = {
      {"unified", [](ModelRuntimeOptions&) {}},
      {"unified_nvme", [](ModelRuntimeOptions& o) { all_on(o, true, Tier::kNvme); }},
      {"device", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kDevice); }},
      {"device_host", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kHost); }},
      {"device_nvme", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kNvme); }},
      {"optimizer_on_host",
       [](ModelRuntimeOptions& o) {
         all_on(o, false, Tier::kDevice);
         o.placement.homes[StateClass::kOptimizer] = Tier::kHost;
       }},
      {"parameters_on_host",
       [](ModelRuntimeOptions& o) {
         all_on(o, false, Tier::kDevice);
         o.placement.homes[StateClass::kParameters] = Tier::kHost;
       }},
      {"optimizer_and_gradients_on_nvme",
       [](ModelRuntimeOptions& o) {
         o.placement.homes[StateClass::kOptimizer] = o.placement.homes[StateClass::kGradients] =
             Tier::kNvme;
         o.placement.has_nvme = true;
       }},
      {"layer_major",
       [](ModelRuntimeOptions& o) { o.placement.order = MicroBatchOrder::kLayerMajor; }},
      {"recompute", [](ModelRuntimeOptions& o) { o.placement.recompute = true; }},
  };
  return list;
}

}  // namespace terrace
