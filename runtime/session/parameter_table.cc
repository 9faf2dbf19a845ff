#include "runtime/session/parameter_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "optim/update_rules.h"
#include "runtime/session/scalar_range.h"
#include "runtime/session/session_error.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

// A larger number of elements, which no address space has room for, is a mistake and must not
// overflow.
constexpr std::int64_t kElementsMax = std::int64_t{1} << 46;

[[noreturn]] void refuse_argument(const std::string& what, const std::string& remedy) {
  throw SessionError(SessionProblem::kArgument, what, remedy);
}

std::string key_of(const Hyperparameter& parameter) {
  std::string key(parameter.flag);
  std::ranges::replace(key, '-', '_');
  return key;
}

std::string keys_of(const UpdateRule& rule) {
  std::vector<std::string> keys;
  for (const Hyperparameter& parameter : rule.hyperparameters) keys.push_back(key_of(parameter));
  return fmt::format("{}", fmt::join(keys, ", "));
}

const UpdateRule& rule_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const UpdateRule* rule : update_rules_for_trainers()) {
    if (rule->name == name) return *rule;
    names.push_back(rule->name);
  }
  refuse_argument(fmt::format("there is no update rule '{}'", name),
                  fmt::format("name one of {}", fmt::join(names, ", ")));
}

void set_hyperparameter(const UpdateRule& rule, const NamedValue& named, RuleOptions& options) {
  const auto& [name, value] = named;
  const auto found = std::ranges::find_if(
      rule.hyperparameters,
      [&](const Hyperparameter& parameter) { return key_of(parameter) == name; });
  if (found == rule.hyperparameters.end()) {
    refuse_argument(fmt::format("{} has no hyperparameter '{}'", rule.name, name),
                    fmt::format("its hyperparameters are {}", keys_of(rule)));
  }
  const auto narrow = static_cast<float>(value);
  const bool is_fraction = found->range == Hyperparameter::Range::kFraction;
  const bool is_good =
      std::isfinite(narrow) && (is_fraction ? narrow >= 0 && narrow < 1 : narrow > 0);
  if (!is_good) {
    refuse_argument(
        fmt::format("{} of {} is {}", name, rule.name, value),
        is_fraction ? "it must be at least 0 and less than 1" : "it must be more than 0");
  }
  options.values.at(static_cast<std::size_t>(found - rule.hyperparameters.begin())) = value;
}

std::size_t size_of_memory(const SessionTensor& tensor) {
  return static_cast<std::size_t>(tensor.elements) * size_of(tensor.dtype);
}

void check_shape(const SessionTensor& tensor) {
  if (tensor.elements < 1 || tensor.elements > kElementsMax) {
    refuse_argument(fmt::format("tensor {} has {} elements", tensor.name, tensor.elements),
                    "leave out a tensor without elements");
  }
  std::int64_t product = 1;
  for (const std::int64_t size : tensor.shape) {
    const bool is_good = size >= 1 && size <= tensor.elements / product;
    product = is_good ? product * size : 0;
    if (product == 0) break;
  }
  if (product != tensor.elements) {
    refuse_argument(fmt::format("the shape [{}] of tensor {} does not have {} elements",
                                fmt::join(tensor.shape, ", "), tensor.name, tensor.elements),
                    "give the shape of the buffer");
  }
}

void check_memory(const SessionTensor& tensor) {
  if (tensor.data == nullptr) {
    refuse_argument(fmt::format("tensor {} has no memory", tensor.name),
                    "set parameter.data to the address of its values");
  }
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % size_of(tensor.dtype) != 0) {
    refuse_argument(fmt::format("the memory of tensor {} is not aligned", tensor.name),
                    fmt::format("its address must be a multiple of {}", size_of(tensor.dtype)));
  }
}

}  // namespace

std::int32_t ParameterTable::add_group(std::string_view rule, std::span<const NamedValue> values,
                                       double weight_decay) {
  SessionGroup group;
  group.rule = &rule_named(rule);
  group.options = standard_options(*group.rule);
  for (const NamedValue& value : values) set_hyperparameter(*group.rule, value, group.options);
  group.options.weight_decay = weight_decay;
  if (!fits_float(weight_decay)) {
    refuse_argument(fmt::format("the weight decay is {}", weight_decay),
                    "it must be at least 0 and fit fp32");
  }
  groups_.push_back(group);
  return static_cast<std::int32_t>(groups_.size() - 1);
}

void ParameterTable::check_name(const std::string& name) const {
  if (name.empty()) refuse_argument("a tensor has no name", "give it a name: saved state uses it");
  if (valid_utf8_prefix(name) != name.size()) {
    refuse_argument("the name of a tensor is not UTF-8", "name it in UTF-8");
  }
  if (name == "__metadata__") {
    refuse_argument("a tensor is named __metadata__, a name that safetensors files reserve",
                    "give it another name");
  }
  if (by_name_.contains(name)) {
    refuse_argument(fmt::format("two tensors are named {}", name), "give each a different name");
  }
}

std::int32_t ParameterTable::add_tensor(SessionTensor tensor) {
  check_name(tensor.name);
  if (tensor.group < 0 || static_cast<std::size_t>(tensor.group) >= groups_.size()) {
    refuse_argument(fmt::format("there is no group {}", tensor.group), "add the group first");
  }
  check_shape(tensor);
  check_memory(tensor);

  const auto after = std::ranges::upper_bound(by_address_, tensor.data, {},
                                              [&](std::int32_t i) { return tensors_[i].data; });
  const auto number = static_cast<std::int32_t>(tensors_.size());
  const auto overlaps = [&](std::int32_t other) {
    const SessionTensor& there = tensors_[static_cast<std::size_t>(other)];
    return there.data < tensor.data + size_of_memory(tensor) &&
           tensor.data < there.data + size_of_memory(there);
  };
  if (after != by_address_.begin() && overlaps(*(after - 1))) {
    const SessionTensor& there = tensors_[static_cast<std::size_t>(*(after - 1))];
    if (there.data == tensor.data && there.dtype == tensor.dtype &&
        there.elements == tensor.elements && there.group == tensor.group &&
        there.is_frozen == tensor.is_frozen && there.place == tensor.place) {
      return by_name_[tensor.name] = *(after - 1);
    }
    refuse_argument(fmt::format("tensors {} and {} share memory", there.name, tensor.name),
                    "tied tensors must have the same memory, type, size, group and stream");
  }
  if (after != by_address_.end() && overlaps(*after)) {
    refuse_argument(fmt::format("tensors {} and {} share memory",
                                tensors_[static_cast<std::size_t>(*after)].name, tensor.name),
                    "tied tensors must have the same memory, type, size, group and stream");
  }
  by_address_.insert(after, number);
  by_name_[tensor.name] = number;
  tensors_.push_back(std::move(tensor));
  return number;
}

const SessionTensor& ParameterTable::tensor(std::int32_t number) const {
  if (number < 0 || static_cast<std::size_t>(number) >= tensors_.size()) {
    refuse_argument(fmt::format("there is no tensor {}", number),
                    fmt::format("the session has {} tensors, counted from 0", tensors_.size()));
  }
  return tensors_[static_cast<std::size_t>(number)];
}

const SessionGroup& ParameterTable::group_of(const SessionTensor& tensor) const {
  return groups_[static_cast<std::size_t>(tensor.group)];
}

StateFormat state_format_of(const SessionTensor& tensor, const SessionGroup& group) {
  return {.master = tensor.dtype == DType::kF32 ? MasterForm::kParameter : MasterForm::kFp32,
          .slot_form = SlotForm::kFp32,
          .slot_count = group.rule->slots.size()};
}

}  // namespace terrace
