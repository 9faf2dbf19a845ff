#include "runtime/engine/unit_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/usage_error.h"
#include "runtime/engine/step_bodies.h"
#include "runtime/step/task_order.h"

namespace terrace {
namespace {

class UnitCheck {
 public:
  UnitCheck(const ComputeModel& model, const TierRuntimeOptions& options)
      : model_(model), options_(options) {}

  void run() const {
    if (model_.units.empty()) throw UsageError("no units are described", "describe at least one");
    check_ranks();
    for (number_ = 0; number_ < model_.units.size(); ++number_) {
      check_kind();
      check_inputs();
      check_groups();
      check_steps();
    }
    check_owners();
    const bool trains = std::ranges::any_of(
        model_.groups, [](const ParameterGroup& group) { return group.trained_elements() > 0; });
    if (options_.trains && !trains) {
      throw UsageError("no unit trains", "describe elements that are not frozen");
    }
    demand(options_.trains || (!trains && options_.evaluates),
           "a plan without training has units that train, or no evaluation",
           "count all elements as frozen, and plan with evaluation");
    check_ends();
    check_types();
    check_threads();
    check_placement();
  }

 private:
  const UnitModel& unit() const { return model_.units[number_]; }

  void require(bool holds, const std::string& what, const std::string& remedy) const {
    if (!holds) throw UsageError(fmt::format("unit {} {}", number_, what), remedy);
  }

  void check_kind() const {
    require(!unit().joins_micro_batches() || number_ == 0, "is an embedding but not the first unit",
            "describe it as a block");
    require(!unit().fuses_passes() || number_ + 1 == model_.units.size(),
            "is a head but not the last unit", "describe it as a block");
    require(!unit().joins_micro_batches() || unit().backward.empty(),
            "is an embedding whose backward has steps, but the backward of an embedding is one "
            "task",
            "leave the steps out, or describe it as a block");
  }

  void check_inputs() const {
    require(!has_twice(unit().inputs), "names an input twice", "name each unit once");
    for (const std::int32_t input : unit().inputs) {
      require(0 <= input && input < static_cast<std::int32_t>(number_),
              fmt::format("reads the output of unit {}, which is not before it", input),
              "describe the units in the order in which they are computed");
    }
  }

  // Checks the numbers of the groups that the unit uses: its own come first.
  void check_groups() const {
    require(!has_twice(unit().groups), "names a group twice", "name each group once");
    bool has_other = false;
    std::int32_t last = -1;
    for (const std::int32_t group : unit().groups) {
      require(0 <= group && group < std::ssize(model_.groups),
              fmt::format("uses group {}, but only {} are described", group, model_.groups.size()),
              "add it to ComputeModel::groups");
      const std::int32_t owner = group_at(group).unit;
      const bool is_own = owner == static_cast<std::int32_t>(number_);
      require(owner <= static_cast<std::int32_t>(number_),
              fmt::format("uses group {} of unit {}, which is behind it", group, owner),
              "let the first unit that uses a group own it: set ParameterGroup::unit");
      require(!is_own || last < group, "does not name its own groups in their order",
              "sort the numbers in UnitModel::groups");
      last = group;
      require(!is_own || !has_other, "has a group of its own behind another unit's",
              "name its own groups first in UnitModel::groups");
      has_other = has_other || !is_own;
      if (is_own) check_elements(group_at(group));
    }
  }

  static bool has_twice(std::vector<std::int32_t> numbers) {
    std::ranges::sort(numbers);
    return std::ranges::adjacent_find(numbers) != numbers.end();
  }

  // Checks that every group belongs to a unit that uses it, and that groups are in order.
  void check_owners() const {
    std::int32_t last = 0;
    for (std::size_t g = 0; g < model_.groups.size(); ++g) {
      const std::int32_t owner = model_.groups[g].unit;
      const bool is_unit = 0 <= owner && owner < std::ssize(model_.units);
      demand(is_unit && uses(owner, g),
             fmt::format("group {} belongs to unit {}, which does not use it", g, owner),
             "set ParameterGroup::unit, and add the group to UnitModel::groups");
      demand(last <= owner,
             fmt::format("group {} of unit {} stands behind one of unit {}", g, owner, last),
             "describe the groups in the order of their units");
      last = owner;
    }
  }

  bool uses(std::int32_t unit, std::size_t group) const {
    const std::vector<std::int32_t>& used = model_.units[static_cast<std::size_t>(unit)].groups;
    return std::ranges::find(used, static_cast<std::int32_t>(group)) != used.end();
  }

  const ParameterGroup& group_at(std::int32_t group) const {
    return model_.groups[static_cast<std::size_t>(group)];
  }

  void check_elements(const ParameterGroup& group) const {
    const std::int64_t grain = options_.ranks.shape.data * kBlockElements;
    const auto check = [&](std::int64_t elements, const char* name) {
      require(elements >= 0 && elements % grain == 0,
              fmt::format("has {} {}, which is not a multiple of {}", name, elements, grain),
              "round up with padded_elements(), and give the number of data-parallel ranks");
    };
    check(group.padded_elements, "padded_elements");
    check(group.frozen_elements, "frozen_elements");
    require(group.frozen_elements <= group.padded_elements,
            "has more frozen elements than elements", "count them among padded_elements");
    const ElementSpan& quantized = group.quantized;
    require(quantized.empty() || (group.trained_elements() <= quantized.begin &&
                                  quantized.end <= group.padded_elements),
            "has quantised elements that are not frozen", "count them among frozen_elements");
    require(0 <= group.decayed_elements && group.decayed_elements <= group.trained_elements(),
            "has more decayed elements than trained elements",
            "count only the elements at its start");
    const auto rules = static_cast<std::int32_t>(options_.optimizer.further_rules.size()) + 1;
    require(0 <= group.rule && group.rule < rules,
            fmt::format("has a group with update rule {}, but there are {}", group.rule, rules),
            "add it to OptimizerOptions::further_rules");
    const DType type = group.type.value_or(model_.compute_type);
    require(type == model_.compute_type || type == DType::kF32 || type == DType::kBF16,
            fmt::format("has a group of type {}", terrace::name_of(type)), "set fp32 or bf16");
  }

  void check_steps() const {
    for (const auto* pass : {&unit().forward, &unit().recompute, &unit().backward}) {
      for (const UnitStep& step : *pass) check_step(step, pass == &unit().backward);
    }
    require(!unit().forward.empty(), "has no forward",
            "describe at least one step, even an empty one");
    check_saved();
    check_writers();
    check_losses();
    check_between();
    for (std::int32_t index = 0; index < std::ssize(unit().groups); ++index) check_gradient(index);
  }

  void check_gradient(std::int32_t index) const {
    const ParameterGroup& group = group_at(unit().groups[static_cast<std::size_t>(index)]);
    const bool is_own = group.unit == static_cast<std::int32_t>(number_);
    const bool trains = group.trained_elements() > 0;
    const bool writes = UnitModel::writes_gradient(unit().backward, index);
    require(!writes || trains, "writes a gradient, but none of its elements train",
            "leave Role::kGradient out of its backward");
    require(!trains || !is_own || unit().joins_micro_batches() || writes,
            "trains, but its backward does not write Role::kGradient",
            "add it to what the backward writes, or count its elements as frozen");
  }

  // Checks that the gradient of a group, or of an input, is written by one part of the backward:
  // where it is added to, it is added to once in a pass.
  void check_writers() const {
    std::vector<UnitAccess> before;  // of earlier parts
    for (const StepSpan& part : UnitModel::parts(unit().backward)) {
      std::vector<UnitAccess> here;
      for (std::int32_t s = part.begin; s < part.end; ++s) {
        for (const UnitAccess& write : unit().backward[static_cast<std::size_t>(s)].writes) {
          const bool is_gradient =
              write.role == Role::kGradient || write.role == Role::kHiddenGradientOut;
          if (is_gradient) here.push_back({write.role, write.number});
        }
      }
      for (const UnitAccess& write : here) {
        require(std::ranges::find(before, write) == before.end(),
                "writes a gradient in two parts of its backward", "write it in one of them");
      }
      before.insert(before.end(), here.begin(), here.end());
    }
  }

  // Checks that a backward which reads saved activations has a forward that writes them.
  void check_saved() const {
    if (unit().fuses_passes()) return;  // its backward has a forward of its own
    const bool is_read = std::ranges::any_of(unit().backward, [](const UnitStep& step) {
      return std::ranges::any_of(step.reads,
                                 [](const UnitAccess& a) { return a.role == Role::kSaved; });
    });
    require(!is_read || UnitModel::writes(unit().forward, Role::kSaved),
            "reads saved activations in its backward, but its forward writes none",
            "add Role::kSaved to what the forward writes");
  }

  // Checks where a loss is written. An evaluation runs only forwards, and in a step a head runs
  // only its backward.
  void check_losses() const {
    const bool in_forward = UnitModel::writes(unit().forward, Role::kLosses);
    const bool in_backward = UnitModel::writes(unit().backward, Role::kLosses);
    if (!unit().fuses_passes()) {
      return require(!in_backward, "writes a loss in its backward", "write it in the forward");
    }
    require(in_forward == in_backward || !options_.evaluates,
            "is a head that writes a loss in only one of its passes",
            "write Role::kLosses in both, or plan without evaluation");
  }

  void check_between() const {
    require(unit().between.size() <= kMostBetween,
            fmt::format("has {} buffers between its steps, but at most {} are allowed",
                        unit().between.size(), kMostBetween),
            "join some of them");
    const bool has_bytes = std::ranges::all_of(
        unit().between, [](const BetweenBuffer& buffer) { return buffer.size_bytes > 0; });
    require(has_bytes, "has a buffer of no bytes between its steps",
            "set BetweenBuffer::size_bytes");
  }

  // Checks that a step names a role in a list, and in a pass, that may have it.
  void check_direction(Role role, bool writes, bool is_backward) const {
    const bool is_head = unit().fuses_passes();
    switch (role) {
      case Role::kTokens:
      case Role::kHidden:
      case Role::kLossScale:
        return require(!writes, "writes something that it may only read",
                       "move the input, hidden states and loss scale to the reads");
      case Role::kHiddenOut:
        return require(writes && !is_backward, "lists its output outside a forward's writes",
                       "save the parts of it that the backward needs: Role::kSaved");
      case Role::kHiddenGradient:
        return require(!writes && is_backward,
                       "lists the gradient of its output outside a backward's reads",
                       "move it there");
      case Role::kHiddenGradientOut:
        return require(writes && is_backward,
                       "lists the gradient of its input outside a backward's writes",
                       "move it there");
      case Role::kGradient:
        return require(writes && is_backward, "lists its gradient outside a backward's writes",
                       "list it only there: if a backward adds to it, the read is implied");
      case Role::kSaved:
        return require(writes || is_backward, "reads saved activations in its forward",
                       "pass it between steps in UnitModel::between");
      case Role::kLosses:
        return require(writes && (is_head || !is_backward), "lists its loss outside the writes",
                       "write it in the forward");
      default:
        return;
    }
  }

  void check_step(const UnitStep& step, bool is_backward) const {
    require(step.kind == UnitStep::Kind::kCompute || model_.tensor.ranks > 1,
            "has an exchange between tensor-parallel ranks, but there are none",
            "leave the exchange out");
    for (const std::int32_t index : step.groups) {
      require(unit().groups.empty() || (0 <= index && index < std::ssize(unit().groups)),
              fmt::format("reads parameters of the group with index {}, but it uses only {}", index,
                          unit().groups.size()),
              "add the group to UnitModel::groups");
    }
    for (const auto* list : {&step.reads, &step.writes}) {
      for (const UnitAccess& access : *list) {
        check_access(access, is_backward);
        require(access.size_bytes == 0 || step.kind != UnitStep::Kind::kCompute,
                "names part of a buffer in a step that computes",
                "name the whole buffer: the compute code selects the part");
        check_direction(access.role, list == &step.writes, is_backward);
      }
    }
  }

  // Checks that the buffer of a role has the size that the role needs.
  void check_access(const UnitAccess& access, bool is_backward) const {
    const bool is_single = access.role == Role::kTokens || access.role == Role::kSaved ||
                           access.role == Role::kLosses || access.role == Role::kLossScale;
    require(!is_single || access.number == 0, "numbers a buffer of which there is one",
            "leave UnitAccess::number at 0");
    switch (access.role) {
      case Role::kTokens:
        return require(model_.tokens_bytes > 0,
                       "reads the step's input, but the input has no bytes",
                       "set ComputeModel::tokens_bytes");
      case Role::kHidden:
      case Role::kHiddenOut:
      case Role::kHiddenGradient:
      case Role::kHiddenGradientOut:
        if (access.role == Role::kHiddenOut || access.role == Role::kHiddenGradient) {
          require(access.number == 0, "numbers its output, but a unit has one output",
                  "leave UnitAccess::number at 0");
        }
        require(0 <= access.number &&
                    access.number < std::max<std::ptrdiff_t>(1, std::ssize(unit().inputs)),
                fmt::format("uses its hidden input {}, which it does not name", access.number),
                "add the unit that writes it to UnitModel::inputs");
        return require(model_.hidden_bytes > 0, "uses hidden states, but they have no bytes",
                       "set ComputeModel::hidden_bytes to the largest output of a unit");
      case Role::kSaved:
        return require(unit().saved_bytes > 0, "uses saved activations, but they have no bytes",
                       "set UnitModel::saved_bytes");
      case Role::kBetween:
        return require(0 <= access.number && access.number < std::ssize(unit().between),
                       fmt::format("uses buffer {} between its steps, but there are only {}",
                                   access.number, unit().between.size()),
                       "describe it in UnitModel::between");
      case Role::kGradient:
        require(0 <= access.number && access.number < std::ssize(unit().groups),
                fmt::format("writes the gradient of the group with index {}, but it uses only {}",
                            access.number, unit().groups.size()),
                "add the group to UnitModel::groups");
        return require(is_backward, "writes its gradient in a forward",
                       "describe that in its backward");
      case Role::kLosses:
      case Role::kLossScale:
        return;
      default:
        require(false, "names a role that the steps of a unit cannot use",
                "every step has parameters, constants and workspace anyway");
    }
  }

  // Throws UsageError with a message about the whole model.
  static void demand(bool holds, const std::string& what, const std::string& remedy) {
    if (!holds) throw UsageError(what, remedy);
  }

  void check_ends() const {
    const bool has_ends =
        model_.units.front().joins_micro_batches() && model_.units.back().fuses_passes();
    const bool has_stages = options_.ranks.shape.pipeline > 1;
    for (std::size_t u = 0; !options_.schedule.empty() && u < model_.units.size(); ++u) {
      for (const std::int32_t group : model_.units[u].groups) {
        const std::int32_t owner = group_at(group).unit;
        const bool is_joined = model_.units[static_cast<std::size_t>(owner)].joins_micro_batches();
        demand(owner == static_cast<std::int32_t>(u) || is_joined,
               fmt::format("unit {} uses parameters of unit {}, and a schedule is given", u, owner),
               "train in the usual order, or share only the parameters of an embedding");
      }
    }
    demand(!has_stages || options_.schedule.empty(),
           "a schedule from outside must cover a whole model, not pipeline stages",
           "train without pipeline stages, or without a schedule");
    demand(!has_stages || has_ends,
           "pipeline stages need an embedding as the first unit and a head as the last",
           "describe both, or train without pipeline stages");
    for (std::size_t u = 0; has_stages && u < model_.units.size(); ++u) {
      demand(model_.units[u].inputs.empty(),
             fmt::format("unit {} names its inputs, and there are pipeline stages", u),
             "leave UnitModel::inputs empty, or train without pipeline stages");
      for (const std::int32_t group : model_.units[u].groups) {
        const std::int32_t owner = group_at(group).unit;
        const bool passes = owner == 0 && u + 1 == model_.units.size();
        demand(owner == static_cast<std::int32_t>(u) || passes,
               fmt::format("unit {} uses parameters of unit {}, and there are pipeline stages", u,
                           owner),
               "between stages only a head may use parameters of another unit, the embedding's");
      }
    }
  }

  void check_types() const {
    const DType type = model_.compute_type;
    demand(type == DType::kF32 || type == DType::kBF16 || type == DType::kF16,
           fmt::format("ComputeModel::compute_type is {}", terrace::name_of(type)),
           "set fp32, bf16 or fp16");
    demand(type != DType::kF16 || options_.backend != nullptr, "fp16 on the CPU device",
           "set ComputeModel::compute_type to bf16, or give a backend");
    demand(options_.gradient_type == DType::kF32 || options_.gradient_type == DType::kBF16,
           fmt::format("gradient_type is {}", terrace::name_of(options_.gradient_type)),
           "set fp32 or bf16");
  }

  void check_ranks() const {
    const MeshShape& shape = options_.ranks.shape;
    const std::int32_t stage = options_.zero_stage;
    demand(0 <= stage && stage <= 3, fmt::format("zero_stage is {}", stage), "set 0, 1, 2 or 3");
    const auto has_part = [](std::int32_t part, std::int32_t count) {
      return count >= 1 && 0 <= part && part < count;
    };
    const MeshPosition& position = options_.ranks.position;
    demand(has_part(position.data, shape.data) && has_part(position.pipeline, shape.pipeline) &&
               has_part(position.tensor, shape.tensor),
           "the position of this rank is outside the shape of the mesh",
           "set ranks.shape to at least 1 of each kind, and ranks.position inside it");
    demand(shape.islands >= 1 && shape.data % shape.islands == 0,
           fmt::format("there are {} islands of {} data-parallel ranks", shape.islands, shape.data),
           "set ranks.shape.islands to a number that divides the data-parallel ranks");
    demand(shape.islands == 1 || stage == 3,
           fmt::format("there are {} islands, but zero_stage is {}", shape.islands, stage),
           "set zero_stage to 3, or ranks.shape.islands to 1");
    demand(shape.islands < std::max(shape.data, 2),
           fmt::format("there are {} islands of one rank", shape.islands),
           "set ranks.shape.islands to less than the data-parallel ranks");
    demand(options_.zero_partition != ZeroPartition::kHsdp || shape.islands == 1 ||
               !options_.placement.reduces_micro_batches,
           "zero_partition is kHsdp, and gradients are reduced in each micro-batch",
           "set reduces_micro_batches to false, or another partition");
    demand(shape.tensor == model_.tensor.ranks,
           fmt::format("there are {} tensor-parallel ranks, but the units are shared by {}",
                       shape.tensor, model_.tensor.ranks),
           "set ComputeModel::tensor");
  }

  void check_threads() const {
    demand(options_.threads >= 1 && options_.update_threads >= 1,
           fmt::format("there are {} threads for compute and {} for updates", options_.threads,
                       options_.update_threads),
           "set at least 1 of each");
  }

  void check_placement() const {
    const PlacementRequest& placement = options_.placement;
    const bool has_drive = !options_.nvme.directories.empty();
    bool wants_drive = placement.has_nvme;
    for (const std::optional<Tier>& home : placement.homes.values) {
      wants_drive = wants_drive || home == Tier::kNvme;
    }
    demand(has_drive || !wants_drive, "the placement uses NVMe, but no directory is named",
           "set nvme.directories, or place nothing there");
    demand(options_.schedule.empty() || !placement.order.has_value(),
           "both a schedule from outside and an order of micro-batches are given",
           "leave PlacementRequest::order unset: the schedule defines the order");
    demand(options_.schedule.empty() || !placement.reduces_micro_batches,
           "a schedule from outside is given, and gradients are to be reduced after every "
           "micro-batch",
           "leave PlacementRequest::reduces_micro_batches unset");
    demand(!placement.reduces_micro_batches || placement.order != MicroBatchOrder::kLayerMajor,
           "gradients are to be reduced after every micro-batch, but the order is layer-major",
           "choose one of the two");
    demand(!placement.unified || !(placement.gpu || placement.streamed_updates),
           "there is a GPU, or updates are streamed, but device and host memory are one tier",
           "set PlacementRequest::unified to false, or leave these unset");
    demand(placement.micro_batches >= 1,
           fmt::format("a step of {} micro-batches", placement.micro_batches),
           "set PlacementRequest::micro_batches to 1 or more");
  }

  const ComputeModel& model_;
  const TierRuntimeOptions& options_;
  mutable std::size_t number_ = 0;
};

}  // namespace

void check_units(const ComputeModel& units, const TierRuntimeOptions& options) {
  UnitCheck(units, options).run();
}

void check_order(const StepModel& model, std::int32_t micro_batches) {
  if (!model.tasks.empty()) return check_tasks(model, micro_batches);
  StepModel ordered = model;
  for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
    ordered.tasks.push_back({UnitPass::kForward, u, 0});
  }
  for (std::int32_t u = model.last_unit(); u >= model.lowest_trained(); --u) {
    if (model.fuses_passes(u) || model.joins_micro_batches(u)) continue;
    if (model.units[u].backward.empty()) continue;  // frozen, and nothing passes through it
    ordered.tasks.push_back({UnitPass::kBackward, u, 0});
  }
  check_tasks(ordered, 1);
}

}  // namespace terrace
