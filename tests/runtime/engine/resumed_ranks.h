#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/runtime/engine/ranks_fixture.h"

// Ranks as threads that go on with a state that other ranks have left, and the distance between
// curves.
namespace terrace {

using RankBody =
    std::function<void(ModelRuntime& engine, const ModelRuntimeOptions& own, Communicator& world)>;
using PlanChange = std::function<void(TierPlan& plan)>;

// Calls `body` on one thread per rank, with an engine whose plan `change` may have changed.
inline void on_ranks(
    const ModelRuntimeOptions& options, const MeshShape& shape, std::int32_t stage,
    const RankBody& body, const PlanChange& change = [](TierPlan&) {}) {
  auto worlds = make_thread_communicators(shape.ranks(), "world");
  ModelRuntimeOptions of_stage = options;
  of_stage.zero_stage = stage;
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < worlds.size(); ++r) {
    threads.emplace_back([&, r] {
      as_rank(*worlds[r], of_stage, shape, [&](const ModelRuntimeOptions& own) {
        TierPlan plan = plan_model(own);
        change(plan);
        SilentLog log;
        ModelRuntime engine(own, plan, log);
        body(engine, own, *worlds[r]);
      });
    });
  }
}

// The largest relative differences of losses and of norms.
struct Distance {
  double loss = 0;
  double norm = 0;
};

inline Distance distance(const Curve& a, const Curve& b) {
  Distance most;
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    most.loss = std::max(most.loss, std::abs(a.losses[i] / b.losses[i] - 1));
    most.norm = std::max(most.norm, std::abs(a.norms[i] / b.norms[i] - 1));
  }
  return most;
}

// The state that read_state() has read.
class ReadState final : public StateSource {
 public:
  ReadState(const std::vector<float>& values, const ModelRuntimeOptions& options)
      : values_(values) {
    const std::size_t fields = 1 + options.optimizer.rule->slots.size();
    for (const UnitLayout& unit : parameter_layout(options.model)) {
      begins_.push_back(end_);
      end_ += fields * static_cast<std::size_t>(unit.elements);
    }
  }
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override {
    const auto first = begins_.at(static_cast<std::size_t>(unit.index)) +
                       static_cast<std::size_t>(field) * static_cast<std::size_t>(unit.elements);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto at = static_cast<std::size_t>(begin) + i;
      const bool is_there = at < static_cast<std::size_t>(unit.elements);
      out[i] = is_there ? values_.at(first + at) : 0.0F;
    }
  }

 private:
  const std::vector<float>& values_;
  std::vector<std::size_t> begins_;
  std::size_t end_ = 0;
};

struct Resumed {
  std::vector<float> state;  // right after it was filled in
  Curve curve;
};

inline Resumed resume(const ModelRuntimeOptions& options, const MeshShape& shape,
                      std::int32_t stage, const std::vector<float>& from) {
  Resumed resumed;
  on_ranks(options, shape, stage,
           [&](ModelRuntime& engine, const ModelRuntimeOptions& own, Communicator& world) {
             engine.fill_state(ReadState(from, options));
             const std::vector<float> state = read_state(engine, own, world);
             TrainedRun run;
             train_steps(engine, own, kSteps + 1, kSteps + 4, run);
             if (world.rank() == 0) resumed = {state, run.curve};
           });
  return resumed;
}

}  // namespace terrace
