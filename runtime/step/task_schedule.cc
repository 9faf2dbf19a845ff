#include "runtime/step/task_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/usage_error.h"

namespace terrace {
namespace {

std::string name_of(const StepTask& task) {
  return fmt::format("the {} of unit {}, micro-batch {}",
                     task.pass == UnitPass::kBackward ? "backward" : "forward", task.unit,
                     task.micro_batch);
}

// What a task is part of: the forwards of a micro-batch, in order.
struct Link {
  std::int32_t unit = 0;
  bool has_backward = false;
  bool has_hidden_gradient = false;  // of its output
};

// Goes through the tasks and finds the place of each.
class TaskChains {
 public:
  explicit TaskChains(const StepModel& model) : model_(model) {}

  std::vector<Link>& of(std::int32_t micro_batch) {
    if (std::ssize(chains_) <= micro_batch) chains_.resize(micro_batch + 1);
    return chains_[micro_batch];
  }

  // Returns the place of a task; -1 for a backward that has no forward.
  std::int32_t add(const StepTask& task) {
    std::vector<Link>& chain = of(task.micro_batch);
    if (task.pass == UnitPass::kForward) {
      chain.push_back({task.unit, model_.is_head(task.unit)});
      return static_cast<std::int32_t>(chain.size()) - 1;
    }
    for (auto place = static_cast<std::int32_t>(chain.size()) - 1; place >= 0; --place) {
      Link& link = chain[place];
      if (link.unit != task.unit || link.has_backward) continue;
      link.has_backward = true;
      return place;
    }
    return -1;
  }

  // How many forwards of the same unit come before a place.
  std::int32_t use_at(std::int32_t micro_batch, std::int32_t place) const {
    const std::vector<Link>& chain = chains_[micro_batch];
    return static_cast<std::int32_t>(
        std::count_if(chain.begin(), chain.begin() + place,
                      [&](const Link& link) { return link.unit == chain[place].unit; }));
  }

 private:
  const StepModel& model_;
  std::vector<std::vector<Link>> chains_;  // by micro-batch
};

class TaskCheck {
 public:
  TaskCheck(const StepModel& model, std::int32_t micro_batches)
      : model_(model), micro_batches_(micro_batches), chains_(model) {}

  void run() {
    std::vector<bool> has_gradient(model_.unit_count());
    std::vector<bool> has_loss(static_cast<std::size_t>(micro_batches_));
    bool any_loss = false;
    for (const StepTask& task : model_.tasks) {
      check_numbers(task);
      check_pass(task);
      check_hidden(task, chains_.add(task));
      const std::vector<UnitStep>& steps = steps_of(task);
      if (UnitModel::writes(steps, Role::kGradient)) has_gradient[task.unit] = true;
      if (!UnitModel::writes(steps, Role::kLosses)) continue;
      if (has_loss[task.micro_batch]) {
        refuse(task, "writes the loss of its micro-batch a second time",
               "let only one task of a micro-batch compute the loss");
      }
      has_loss[task.micro_batch] = any_loss = true;
    }
    check_backwards(has_gradient);
    for (std::int32_t m = 0; any_loss && m < micro_batches_; ++m) {
      if (has_loss[m]) continue;
      throw UsageError(fmt::format("schedule: no task computes the loss of micro-batch {}", m),
                       "add the task that computes it, or describe a step with fewer "
                       "micro-batches");
    }
  }

 private:
  const std::vector<UnitStep>& steps_of(const StepTask& task) const {
    const UnitModel& unit = model_.units.at(task.unit);
    const bool is_forward = task.pass == UnitPass::kForward && !model_.is_head(task.unit);
    return is_forward ? unit.forward : unit.backward;
  }

  [[noreturn]] static void refuse(const StepTask& task, const std::string& what,
                                  const std::string& remedy) {
    throw UsageError(fmt::format("schedule: {} {}", name_of(task), what), remedy);
  }

  void check_numbers(const StepTask& task) const {
    if (task.unit < 0 || task.unit > model_.head()) {
      refuse(
          task,
          fmt::format("belongs to a unit that is not described: only {} are", model_.units.size()),
          "describe it, or leave the task out");
    }
    if (task.micro_batch < 0 || task.micro_batch >= micro_batches_) {
      refuse(task,
             fmt::format("belongs to a micro-batch that the step does not have: it has only {}",
                         micro_batches_),
             "raise PlacementRequest::micro_batches, or leave the task out");
    }
  }

  void check_pass(const StepTask& task) const {
    if (task.pass == UnitPass::kRecompute) {
      refuse(task, "is a recomputation",
             "leave it out: Terrace adds the recomputations that a plan needs");
    }
    if (task.pass == UnitPass::kForward) return;
    if (model_.is_head(task.unit)) {
      refuse(task, "is part of its forward: the unit is a head",
             "leave it out, or describe the unit as a block");
    }
    if (model_.is_embedding(task.unit)) {
      refuse(task, "is added automatically at the end of the step: the unit is an embedding",
             "leave it out, or describe the unit as a block");
    }
    if (model_.units.at(task.unit).backward.empty()) {
      refuse(task, "is not described", "describe the unit's backward, or leave the task out");
    }
  }

  void check_hidden(const StepTask& task, std::int32_t place) {
    std::vector<Link>& chain = chains_.of(task.micro_batch);
    if (place < 0) {
      refuse(task, "has no forward before it",
             "put the unit's forward of this micro-batch before it");
    }
    if (model_.is_embedding(task.unit) && place > 0) {
      refuse(task, "does not come first: the unit is an embedding",
             "begin the micro-batch with it, once, or describe the unit as a block");
    }
    const std::vector<UnitStep>& steps = steps_of(task);
    const auto feeds = [&](const Link& link) {
      return UnitModel::writes(model_.units.at(link.unit).forward, Role::kHiddenOut);
    };
    if (UnitModel::reads(steps, Role::kHidden) && (place == 0 || !feeds(chain[place - 1]))) {
      refuse(task, "reads hidden states, but the forward before it writes none",
             "put the unit that writes them before it");
    }
    if (UnitModel::reads(steps, Role::kHiddenGradient) && !chain[place].has_hidden_gradient) {
      refuse(task, "reads the gradient of its output, but nothing before it has written that",
             "put the backward of the unit that has read this output before it");
    }
    if (!UnitModel::writes(steps, Role::kHiddenGradientOut)) return;
    if (place == 0) {
      refuse(task, "writes the gradient of its input, but no unit comes before it",
             "leave that out of the unit's backward");
    }
    chain[place - 1].has_hidden_gradient = true;
  }

  void check_backwards(const std::vector<bool>& has_gradient) {
    for (std::int32_t u = 0; u <= model_.head(); ++u) {
      if (!model_.trains(u) || model_.is_embedding(u) || has_gradient[u]) continue;
      throw UsageError(fmt::format("schedule: unit {} trains, but nothing writes its gradient", u),
                       "add its backward, or describe all its elements as frozen");
    }
    for (std::int32_t m = 0; m < micro_batches_; ++m) {
      for (const Link& link : chains_.of(m)) {
        if (link.has_backward || !model_.trains(link.unit) || model_.is_embedding(link.unit)) {
          continue;
        }
        refuse({UnitPass::kForward, link.unit, m}, "has no backward, but the unit trains",
               "add the unit's backward of this micro-batch");
      }
    }
    check_embedding();
  }

  // Its backward reads a gradient of every micro-batch.
  void check_embedding() {
    if (!model_.is_embedding(0) || !model_.trains(0)) return;
    for (std::int32_t m = 0; m < micro_batches_; ++m) {
      const std::vector<Link>& chain = chains_.of(m);
      if (!chain.empty() && chain.front().unit == 0 && chain.front().has_hidden_gradient) continue;
      throw UsageError(
          fmt::format("schedule: nothing writes the gradient of the embedding's output in "
                      "micro-batch {}",
                      m),
          "begin each micro-batch with the embedding's forward, and add the backward of the unit "
          "after it");
    }
  }

  const StepModel& model_;
  const std::int32_t micro_batches_;
  TaskChains chains_;
};

}  // namespace

void check_tasks(const StepModel& model, std::int32_t micro_batches) {
  TaskCheck(model, micro_batches).run();
}

std::vector<Task> tasks_from_outside(const StepModel& model, bool has_backward) {
  std::vector<Task> tasks;
  TaskChains chains(model);
  for (const StepTask& task : model.tasks) {
    const std::int32_t place = chains.add(task);
    TERRACE_CHECK_LE(0, place);
    const bool is_backward = task.pass == UnitPass::kBackward;
    if (is_backward && !has_backward) continue;
    const OpKind kind = is_backward                ? OpKind::kBackward
                        : model.is_head(task.unit) ? OpKind::kHead
                                                   : OpKind::kForward;
    tasks.push_back({.kind = kind,
                     .unit = task.unit,
                     .micro_batch = task.micro_batch,
                     .place = place,
                     .use = chains.use_at(task.micro_batch, place)});
  }
  return tasks;
}

MicroBatchOrder order_of_tasks(const StepModel& model) {
  std::vector<bool> is_done(model.unit_count());
  std::int32_t last = -1;
  for (const StepTask& task : model.tasks) {
    if (task.pass != UnitPass::kBackward && !model.is_head(task.unit)) continue;
    if (task.unit != last && is_done[task.unit]) return MicroBatchOrder::kMicroBatchMajor;
    is_done[task.unit] = true;
    last = task.unit;
  }
  return MicroBatchOrder::kLayerMajor;
}

}  // namespace terrace
