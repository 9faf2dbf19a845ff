#include "runtime/model/unit_graph.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "memory/arena_plan.h"

namespace terrace {
namespace {

// The alignment of tensors in one buffer.
constexpr std::size_t kAlignment = 64;

// Returns an address for views of which only the shapes are looked at, and whether they are empty.
std::byte* not_empty() { return reinterpret_cast<std::byte*>(std::uintptr_t{kAlignment}); }

void add_number(std::vector<std::int32_t>& numbers, std::int32_t number) {
  if (std::ranges::find(numbers, number) == numbers.end()) numbers.push_back(number);
}

}  // namespace

std::size_t UnitTensor::size_bytes() const {
  std::int64_t elements = 1;
  for (const std::int64_t length : shape) elements *= length;
  return static_cast<std::size_t>(elements) * size_of(dtype);
}

TensorView UnitRun::view(TensorId tensor) const {
  if (tensor == kNoTensor) return {};
  const UnitTensor& spec = tensors_[static_cast<std::size_t>(tensor)];
  const auto number = static_cast<std::size_t>(spec.number);
  std::byte* base = memory.of(spec.role);
  if (spec.role == Role::kBetween && !memory.between.empty()) {
    base = memory.between[number];
  } else if (spec.role == Role::kParameters && number > 0) {
    base = memory.groups[number].parameters;
  } else if (spec.role == Role::kGradient && number > 0) {
    base = memory.groups[number].gradient;
  }
  return {base == nullptr ? nullptr : base + spec.offset, spec.dtype, spec.shape};
}

GradientMode UnitRun::mode(TensorId gradient) const {
  if (gradient == kNoTensor) return GradientMode::kAssign;
  const UnitTensor& spec = tensors_[static_cast<std::size_t>(gradient)];
  if (spec.role != Role::kGradient) return GradientMode::kAssign;
  if (spec.number == 0) return memory.gradient_mode;
  return memory.groups[static_cast<std::size_t>(spec.number)].gradient_mode;
}

// --- writing down -------------------------------------------------------------------------------

TensorId UnitGraph::add(const UnitTensor& tensor) {
  tensors_.push_back(tensor);
  gradients_.push_back(kNoTensor);
  uses_left_.push_back(0);
  return static_cast<TensorId>(tensors_.size()) - 1;
}

TensorId UnitGraph::like(TensorId tensor, std::string_view name) {
  UnitTensor copy = at(tensor);
  copy.name = name;
  copy.role = Role::kWorkspace;
  copy.offset = 0;
  copy.same_as = kNoTensor;
  return add(copy);
}

void UnitGraph::begin_step(std::string_view name) {
  step_name_ = name;
  begins_step_ = true;
}

void UnitGraph::begin_part(std::string_view name) {
  begin_step(name);
  begins_part_ = true;
  has_parts_ = true;
}

void UnitGraph::call(UnitCall call) {
  Steps& steps = now();
  const bool cuts = begins_part_ || (begins_step_ && sharing_.ranks > 1);
  if (steps.empty() || cuts || steps.back().kind != UnitStep::Kind::kCompute) {
    const bool has_name = begins_part_ || sharing_.ranks > 1;
    steps.push_back({.name = has_name ? step_name_ : "", .begins_part = begins_part_});
  }
  begins_step_ = false;
  begins_part_ = false;
  steps.back().calls.push_back(std::move(call));
}

void UnitGraph::exchange(UnitStep::Kind kind, TensorId source, TensorId target) {
  at(root(target)).is_exchanged = true;
  now().push_back({.kind = kind, .source = source, .target = target});
}

void UnitGraph::on_backward(std::vector<TensorId> inputs, std::function<void()> emit) {
  for (const TensorId input : inputs) ++uses_left_.at(static_cast<std::size_t>(input));
  tape_.push_back({std::move(inputs), std::move(emit)});
}

TensorId UnitGraph::gradient(TensorId tensor) const {
  return gradients_.at(static_cast<std::size_t>(tensor));
}

TensorId UnitGraph::next_gradient(TensorId tensor) {
  const auto index = static_cast<std::size_t>(tensor);
  const bool ends = tensor == input_ && uses_left_.at(index) == 1 && input_gradient_ != kNoTensor;
  const TensorId next = ends ? input_gradient_ : like(tensor, "gradient");
  gradients_.at(index) = next;
  return next;
}

void UnitGraph::add_to_gradient(TensorId tensor, TensorId addend) {
  const TensorId before = gradient(tensor);
  if (before == kNoTensor) {
    TERRACE_CHECK(tensor != input_ || input_gradient_ == kNoTensor ||
                  uses_left_.at(static_cast<std::size_t>(tensor)) > 1);
    gradients_.at(static_cast<std::size_t>(tensor)) = addend;
    return;
  }
  const TensorId sum = next_gradient(tensor);
  UnitCall add;
  add.reads = {before, addend};
  add.writes = {sum};
  add.run = [before, addend, sum](const UnitRun& run) {
    run.kernels.add(run.context, {run.view(before), run.view(addend), run.view(sum)});
  };
  call(std::move(add));
}

void UnitGraph::set_gradient(TensorId tensor, TensorId gradient) {
  gradients_.at(static_cast<std::size_t>(tensor)) = gradient;
}

void UnitGraph::finish(TensorId input_gradient) {
  input_gradient_ = input_gradient;
  is_backward_ = true;
  for (auto entry = tape_.rbegin(); entry != tape_.rend(); ++entry) {
    entry->emit();
    for (const TensorId input : entry->inputs) --uses_left_.at(static_cast<std::size_t>(input));
  }
  tape_.clear();
  prune_backward();
  make_passes();
}

// --- resolving ----------------------------------------------------------------------------------

std::vector<TensorId> UnitGraph::Step::reads() const {
  std::vector<TensorId> all;
  if (kind != UnitStep::Kind::kCompute) return {source};
  for (const UnitCall& call : calls) all.insert(all.end(), call.reads.begin(), call.reads.end());
  return all;
}

std::vector<TensorId> UnitGraph::Step::writes() const {
  std::vector<TensorId> all;
  if (kind != UnitStep::Kind::kCompute) return {target};
  for (const UnitCall& call : calls) all.insert(all.end(), call.writes.begin(), call.writes.end());
  return all;
}

TensorId UnitGraph::root(TensorId tensor) const {
  while (at(tensor).same_as != kNoTensor) tensor = at(tensor).same_as;
  return tensor;
}

std::vector<UnitGraph::Step> UnitGraph::without_evaluation(const Steps& steps) {
  Steps kept;
  for (const Step& step : steps) {
    Step rest = step;
    std::erase_if(rest.calls, [](const UnitCall& call) { return call.of_evaluation; });
    if (rest.kind != UnitStep::Kind::kCompute || !rest.calls.empty()) kept.push_back(rest);
  }
  return kept;
}

// Drops the calls that no wanted result needs, from the end to the front. A tensor that a call
// writes still counts as needed before that call, because calls write parts of tensors.
void UnitGraph::prune_backward() {
  std::set<TensorId> needed;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const Role role = tensors_[t].role;
    const bool is_result =
        role == Role::kGradient || role == Role::kHiddenGradientOut || role == Role::kLosses;
    if (is_result) needed.insert(root(static_cast<TensorId>(t)));
  }
  backward_ = leading_to(std::move(needed), backward_);
}

// Makes the passes. The head's backward is one with its forward; the backward of other units is
// separate ops.
void UnitGraph::make_passes() {
  Steps backward = backward_;
  if (kind_ == UnitKind::kHead) {
    Steps whole = without_evaluation(forward_);
    const bool joins = sharing_.ranks == 1 && !whole.empty() && !backward.empty();
    if (joins) {
      auto& calls = whole.back().calls;
      calls.insert(calls.end(), backward.front().calls.begin(), backward.front().calls.end());
      backward.erase(backward.begin());
    }
    whole.insert(whole.end(), backward.begin(), backward.end());
    backward = std::move(whole);
  }
  of(Pass::kForward) = forward_;
  of(Pass::kBackward) = std::move(backward);
  place_saved();
  if (kind_ == UnitKind::kBlock) of(Pass::kRecompute) = needed_for_saved();
  place_between();
  place_scratch();
  for (UnitTensor& tensor : tensors_) {
    if (tensor.same_as == kNoTensor) continue;
    const UnitTensor& whole = at(root(tensor.same_as));
    tensor.role = whole.role;
    tensor.number = whole.number;
    tensor.offset = whole.offset;
  }
}

// Places the saved tensors: what the forward writes and the backward reads, in the order in which
// it is written. Tensors that an exchange has written are saved too, unless the backward exchanges
// them again before it reads them.
void UnitGraph::place_saved() {
  std::set<TensorId> wanted;
  std::set<TensorId> exchanged_again;
  for (const Step& step : backward_) {
    const bool is_exchange = step.kind != UnitStep::Kind::kCompute;
    for (const TensorId read : step.reads()) wanted.insert(root(read));
    if (is_exchange && !wanted.contains(root(step.target))) {
      exchanged_again.insert(root(step.target));
    }
  }
  if (kind_ == UnitKind::kHead && of(Pass::kBackward).size() == 1) return;
  for (const Step& step : forward_) {
    const bool is_exchange = step.kind != UnitStep::Kind::kCompute;
    if (is_exchange && (kind_ != UnitKind::kBlock || exchanged_again.contains(root(step.target)))) {
      continue;  // a head's backward is one with its forward
    }
    for (const TensorId written : step.writes()) {
      UnitTensor& tensor = at(root(written));
      if (tensor.role != Role::kWorkspace || !wanted.contains(root(written))) continue;
      tensor.role = Role::kSaved;
      tensor.offset = saved_bytes_;
      saved_bytes_ = round_up(saved_bytes_ + tensor.size_bytes(), kAlignment);
    }
  }
}

UnitGraph::Steps UnitGraph::needed_for_saved() const {
  std::set<TensorId> needed;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].role == Role::kSaved) needed.insert(static_cast<TensorId>(t));
  }
  return leading_to(std::move(needed), forward_);
}

// Returns the calls of `all` that write a needed tensor, or a tensor that such a call reads.
UnitGraph::Steps UnitGraph::leading_to(std::set<TensorId> needed, const Steps& all) const {
  const auto is_needed = [&](const std::vector<TensorId>& written) {
    return std::ranges::any_of(written, [&](TensorId t) { return needed.contains(root(t)); });
  };
  const auto need = [&](const std::vector<TensorId>& read) {
    for (const TensorId tensor : read) needed.insert(root(tensor));
  };
  Steps steps;
  for (auto step = all.rbegin(); step != all.rend(); ++step) {
    Step kept = *step;
    kept.calls.clear();
    for (auto call = step->calls.rbegin(); call != step->calls.rend(); ++call) {
      if (!is_needed(call->writes)) continue;
      need(call->reads);
      kept.calls.insert(kept.calls.begin(), *call);
    }
    const bool is_exchange = step->kind != UnitStep::Kind::kCompute;
    if (is_exchange && is_needed({step->target})) need({step->source});
    const bool stays = is_exchange ? is_needed({step->target}) : !kept.calls.empty();
    if (stays) steps.insert(steps.begin(), std::move(kept));
  }
  return steps;
}

// Places the tensors that an exchange or more than one step of a pass touches.
void UnitGraph::place_between() {
  for (const Steps& steps : passes_) {
    std::vector<std::int32_t> first_step(tensors_.size(), -1);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const Step& step = steps[s];
      const bool is_exchange = step.kind != UnitStep::Kind::kCompute;
      for (const auto& touched : {step.reads(), step.writes()}) {
        for (const TensorId one : touched) {
          const TensorId whole = root(one);
          UnitTensor& tensor = at(whole);
          if (tensor.role != Role::kWorkspace) continue;
          std::int32_t& first = first_step[static_cast<std::size_t>(whole)];
          if (first < 0) first = static_cast<std::int32_t>(s);
          if (!is_exchange && first == static_cast<std::int32_t>(s)) continue;
          tensor.role = Role::kBetween;
          tensor.number = static_cast<std::int32_t>(between_.size());
          between_.push_back({tensor.name, tensor.size_bytes()});
        }
      }
    }
  }
}

// Places scratch. The passes follow each other, so one packing serves all of them.
void UnitGraph::place_scratch() {
  std::vector<PackItem> items(tensors_.size());
  std::int64_t now = 0;
  for (const Steps& steps : passes_) {
    const std::int64_t begin = now;
    for (const Step& step : steps) {
      for (const UnitCall& call : step.calls) {
        for (const auto* touched : {&call.reads, &call.writes}) {
          for (const TensorId one : *touched) {
            const TensorId whole = root(one);
            if (at(whole).role != Role::kWorkspace) continue;
            PackItem& item = items[static_cast<std::size_t>(whole)];
            item.size_bytes = at(whole).size_bytes();
            const bool is_new = item.live.empty() || item.live.back().begin < begin;
            if (is_new) item.live.push_back({now, now + 1});
            item.live.back().end = now + 1;
          }
        }
        ++now;
      }
    }
  }
  const PackResult packed = pack_intervals(items, kAlignment);
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (items[t].live.empty()) continue;
    tensors_[t].offset = packed.offsets[t];
  }
  scratch_bytes_ = round_up(packed.packed_bytes, kAlignment);
}

// --- what comes of it ---------------------------------------------------------------------------

UnitAccess UnitGraph::exchanged(const Step& step, TensorId tensor) const {
  const UnitTensor& part = at(tensor);
  // An exchange into the unit's output writes the whole buffer.
  const bool is_whole = part.role == Role::kHiddenOut && step.source != step.target;
  return {part.role, part.number, part.offset, is_whole ? 0 : part.size_bytes()};
}

// Describes a step. A compute op touches whole buffers. It reads what this pass has written before
// it, and in the backward also what the forward has saved.
UnitStep UnitGraph::described(Pass pass, std::size_t index) const {
  const Steps& steps = of(pass);
  const Step& step = steps[index];
  UnitStep result{.kind = step.kind, .name = step.name, .begins_part = step.begins_part};
  if (has_parts_) result.groups.clear();
  if (step.kind != UnitStep::Kind::kCompute) {
    result.reads = {exchanged(step, step.source)};
    result.writes = {exchanged(step, step.target)};
    return result;
  }
  const auto add = [](std::vector<UnitAccess>& list, const UnitTensor& tensor) {
    const UnitAccess access{tensor.role, tensor.number};
    const bool is_always_there = tensor.role == Role::kWorkspace ||
                                 tensor.role == Role::kParameters ||
                                 tensor.role == Role::kConstants;
    if (is_always_there || std::ranges::find(list, access) != list.end()) return;
    list.push_back(access);
  };
  bool touches_saved = false;
  bool has_saved = pass == Pass::kBackward && kind_ == UnitKind::kBlock;
  for (std::size_t s = 0; s < index; ++s) {
    for (const TensorId written : steps[s].writes()) {
      has_saved = has_saved || at(written).role == Role::kSaved;
    }
  }
  for (const UnitCall& call : step.calls) {
    for (const TensorId read : call.reads) {
      const UnitTensor& tensor = at(read);
      if (tensor.role == Role::kParameters) add_number(result.groups, tensor.number);
      touches_saved = touches_saved || tensor.role == Role::kSaved;
      const UnitAccess access{tensor.role, tensor.number};
      const bool is_own = std::ranges::find(result.writes, access) != result.writes.end();
      if (!is_own && tensor.role != Role::kSaved) add(result.reads, tensor);
    }
    for (const TensorId written : call.writes) {
      touches_saved = touches_saved || at(written).role == Role::kSaved;
      add(result.writes, at(written));
    }
    if (call.scales_loss) result.reads.push_back({Role::kLossScale});
    result.flops += call.flops;
  }
  if (touches_saved && has_saved) result.reads.push_back({Role::kSaved});
  return result;
}

void UnitGraph::describe(UnitModel& unit) const {
  unit.kind = kind_;
  unit.saved_bytes = saved_bytes_;
  unit.between = between_;
  for (const UnitTensor& tensor : tensors_) {
    const bool is_of_others = tensor.role == Role::kGradient && tensor.number >= own_groups_;
    if (tensor.same_as != kNoTensor || (tensor.role != Role::kSaved && !is_of_others)) continue;
    unit.ranges.push_back(
        {tensor.role, tensor.number, tensor.name, tensor.offset, tensor.size_bytes()});
  }
  const auto list = [this](Pass pass) {
    std::vector<UnitStep> steps;
    for (std::size_t s = 0; s < of(pass).size(); ++s) steps.push_back(described(pass, s));
    return steps;
  };
  unit.forward = list(Pass::kForward);
  unit.recompute = list(Pass::kRecompute);
  unit.backward = list(Pass::kBackward);
  for (const UnitStep& step : unit.forward) unit.forward_flops += step.flops;
  for (const UnitStep& step : unit.backward) unit.backward_flops += step.flops;
  if (kind_ == UnitKind::kHead) unit.forward_flops = 0;
  for (const Steps* steps : {&forward_, &backward_}) {
    for (const Step& step : *steps) {
      for (const UnitCall& call : step.calls) unit.masked_flops += call.masked_flops;
    }
  }
}

std::vector<KernelCost> UnitGraph::kernel_costs(const Where& where) const {
  std::vector<KernelCost> costs;
  const Step& step = of(where.pass).at(static_cast<std::size_t>(where.step));
  for (const UnitCall& call : step.calls) {
    const auto bytes_of = [&](const std::vector<TensorId>& tensors) {
      std::set<TensorId> roots;
      for (const TensorId tensor : tensors) {
        if (tensor != kNoTensor) roots.insert(root(tensor));
      }
      double bytes = 0;
      for (const TensorId tensor : roots) {
        const Role role = at(tensor).role;
        const bool is_whole = role == Role::kParameters || role == Role::kGradient;
        bytes += static_cast<double>(at(tensor).size_bytes()) * (is_whole ? 1 : call.share);
      }
      return bytes;
    };
    const double written = bytes_of(call.writes);
    const double read = bytes_of(call.reads);
    const bool looks_up = kind_ == UnitKind::kEmbedding;
    costs.push_back({.flops = call.flops,
                     .bytes = written + (looks_up ? std::min(read, written) : read),
                     .is_attention = call.masked_flops > 0,
                     .logits = call.logits,
                     .chunk_sum_bytes = bytes_of({call.chunk_sum})});
  }
  return costs;
}

// Visits all calls, with a run whose views have shapes and no memory.
template <typename Visit>
void UnitGraph::visit_shapes(const KernelTable& kernels, const KernelContext& context,
                             GradientMode mode, Visit visit) const {
  const std::vector<std::byte*> between(between_.size(), not_empty());
  UnitMemory memory;
  memory.buffers.fill(not_empty());
  memory.of(Role::kLogits) = nullptr;  // only samplers want them
  memory.between = between;
  memory.gradient_mode = mode;
  const std::vector<GroupMemory> groups(
      tensors_.size(), {.parameters = not_empty(), .gradient = not_empty(), .gradient_mode = mode});
  memory.groups = groups;
  const UnitRun run(kernels, context, memory, tensors_, /*unit=*/0);  // shapes are the same
  for (const Steps& steps : passes_) {
    for (const Step& step : steps) {
      for (const UnitCall& call : step.calls) visit(call, run);
    }
  }
}

std::size_t UnitGraph::workspace_bytes(const KernelTable& kernels, int workers,
                                       bool accumulates) const {
  std::size_t bytes = 0;
  const auto count = [&](const UnitCall& call, const UnitRun& run) {
    if (call.workspace) bytes = std::max(bytes, call.workspace(run, workers));
  };
  visit_shapes(kernels, {}, GradientMode::kAssign, count);
  if (accumulates) visit_shapes(kernels, {}, GradientMode::kAccumulate, count);
  return scratch_bytes_ + bytes;
}

void UnitGraph::prepare(const KernelTable& kernels, const KernelContext& context) const {
  visit_shapes(kernels, context, GradientMode::kAssign,
               [](const UnitCall& call, const UnitRun& run) {
                 if (call.prepare) call.prepare(run);
               });
}

void UnitGraph::run(const Where& where, const KernelTable& kernels, const KernelContext& context,
                    const UnitMemory& memory) const {
  KernelContext inner = context;
  UnitMemory placed = memory;
  placed.of(Role::kWorkspace) = context.workspace.data();
  inner.workspace = context.workspace.subspan(scratch_bytes_);
  const UnitRun run(kernels, inner, placed, tensors_, where.unit);
  const Step& step = of(where.pass).at(static_cast<std::size_t>(where.step));
  for (const UnitCall& call : step.calls) call.run(run);
}

}  // namespace terrace
