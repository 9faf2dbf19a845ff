#include "runtime/step/step_values.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>

#include "runtime/step/homes.h"
#include "runtime/step/place_map.h"

namespace terrace {
namespace {

constexpr std::int64_t kIterations = 3;

// Returns whether the op writes the values that it reads, whatever step they are of.
bool passes_values_on(const Op& op) {
  switch (op.kind) {
    case OpKind::kUpload:
    case OpKind::kDownload:
    case OpKind::kRead:
    case OpKind::kWrite:
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
    case OpKind::kAllGather:
    case OpKind::kAllToAll:
    case OpKind::kRoundGradient:
    case OpKind::kEncode:
    case OpKind::kDecode:
    case OpKind::kDecodeSum:
      return true;
    default:
      return false;
  }
}

// By role: the step whose value an op needs, relative to the op's own step; none if any step will
// do.
using NeededSteps = std::array<std::optional<std::int64_t>, kRoleCount>;

NeededSteps needed_steps() {
  NeededSteps needed;
  needed.fill(0);
  const auto set = [&needed](Role role, std::optional<std::int64_t> step) {
    needed.at(static_cast<std::size_t>(role)) = step;
  };
  for (const StateClassInfo& info : kStateClasses) {
    const bool lasts = info.use == StateUse::kUpdate || info.use == StateUse::kReduce;
    if (lasts) set(home_names(info.state).role, -1);
  }
  for (const Role role : {Role::kParameters, Role::kLossScale}) set(role, -1);
  for (const Role role : {Role::kConstants, Role::kWorkspace}) set(role, std::nullopt);
  return needed;
}

std::string relative_step(std::int64_t step) {
  if (step == 0) return "its own step";
  if (step == 1) return "the next step";
  if (step == -1) return "the step before";
  return fmt::format("step {:+d} from its own", step);
}

class StepValueChecker {
 public:
  StepValueChecker(const Program& program, std::size_t limit) : program_(program), limit_(limit) {}

  std::vector<std::string> run() {
    for (std::int64_t iteration = 0; iteration < kIterations; ++iteration) {
      for (OpId id = 0; id < static_cast<OpId>(program_.ops.size()); ++id) {
        if (problems_.size() >= limit_) return std::move(problems_);
        take(id, iteration - (program_.ops[id].is_deferred() ? 1 : 0));
      }
    }
    return std::move(problems_);
  }

 private:
  struct Value {
    std::optional<std::int64_t> step;  // none if it was there before the first iteration
    OpId writer = -1;
  };

  void take(OpId id, std::int64_t own_step) {
    const Op& op = program_.ops[id];
    const bool passes_on = passes_values_on(op);
    std::optional<std::int64_t> written = own_step;
    if (passes_on) written = step_passed_on(id);
    check_reads(id, own_step, passes_on);
    for (const Access& access : op.writes) {
      values_.assign(place_of(program_, access), {written, id});
    }
  }

  // Values that the op passes on may be of any step.
  void check_reads(OpId id, std::int64_t own_step, bool passes_on) {
    for (const Access& access : program_.ops[id].reads) {
      if (passes_on && is_passed_on(access)) continue;
      const auto& needed = needed_.at(static_cast<std::size_t>(access.role));
      if (!needed.has_value()) continue;
      values_.visit(place_of(program_, access), [&](const Value& value) {
        if (!value.step.has_value() || *value.step - own_step == *needed) return;
        problem(fmt::format("{} needs {} of {} and finds those of {}, which {} wrote", name(id),
                            program_.buffers.at(access.buffer).name, relative_step(*needed),
                            relative_step(*value.step - own_step), name(value.writer)));
      });
    }
  }

  // Returns whether an op that passes values on passes these on. The errors of a gradient's codes
  // are added to it.
  static bool is_passed_on(const Access& access) { return access.role != Role::kErrors; }

  // Returns the step of the values that an op passes on. All of them must be of one step.
  std::optional<std::int64_t> step_passed_on(OpId id) {
    std::optional<std::int64_t> step;
    for (const Access& access : program_.ops[id].reads) {
      if (!is_passed_on(access)) continue;
      values_.visit(place_of(program_, access), [&](const Value& value) {
        if (!value.step.has_value()) return;
        if (step.has_value() && *step != *value.step) {
          problem(fmt::format("{} passes on values of two steps in {}", name(id),
                              program_.buffers.at(access.buffer).name));
        }
        step = value.step;
      });
    }
    return step;
  }

  std::string name(OpId id) const {
    return fmt::format("op {} ({})", id, describe(program_, program_.ops.at(id)));
  }

  void problem(std::string text) {
    if (problems_.size() < limit_) problems_.push_back(std::move(text));
  }

  const Program& program_;
  std::size_t limit_;
  const NeededSteps needed_ = needed_steps();
  PlaceMap<Value> values_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> check_step_values(const Program& program, std::size_t limit) {
  return StepValueChecker(program, limit).run();
}

}  // namespace terrace
