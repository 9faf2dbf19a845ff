#include "runtime/model/adapter_modules.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "runtime/model/parameter_layout.h"
#include "runtime/model/trainable.h"

namespace terrace {
namespace {

std::string stored_name_of(const ModelConfig& config, ParameterKind kind) {
  const ParameterName& name = config.names.at(static_cast<std::size_t>(kind));
  return name.stored.empty() ? name.name : name.stored;
}

std::string module_of_tensor(const std::string& stored_name) {
  return stored_name.substr(0, stored_name.rfind('.'));
}

// Adds a module and the modules that it is in: "a.b.c", "a.b", "a".
void add_with_outer(std::string module, std::set<std::string>& modules) {
  while (modules.insert(module).second && module.find('.') != std::string::npos) {
    module.resize(module.rfind('.'));
  }
}

}  // namespace

std::vector<std::string> stored_names_of(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const UnitLayout& unit : parameter_layout(config)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      const bool is_new = std::ranges::find(names, tensor.stored_name) == names.end();
      if (!is_adapter(tensor.kind) && is_new) names.push_back(tensor.stored_name);
    }
  }
  return names;
}

std::set<std::string> whole_tensors(const ModelConfig& config) {
  std::set<std::string> tensors;
  for (const std::string& name : stored_names_of(config)) {
    if (config.adapter.trains_whole(name)) tensors.insert(name);
  }
  return tensors;
}

std::vector<std::string> modules_of(const ModelConfig& config,
                                    const std::set<std::string>& tensors) {
  std::set<std::string> all;
  for (const std::string& name : stored_names_of(config)) {
    add_with_outer(module_of_tensor(name), all);
  }
  add_with_outer(module_of_tensor(stored_head_name(config)), all);
  std::set<std::string> chosen;
  for (const std::string& name : tensors) chosen.insert(module_of_tensor(name));
  if (config.tied && tensors.contains(stored_embedding_name(config))) {
    chosen.insert(module_of_tensor(stored_head_name(config)));
  }
  std::set<std::string> names;
  for (const std::string& module : chosen) {
    const std::string last = module.substr(module.rfind('.') + 1);
    const bool are_all_meant = std::ranges::all_of(all, [&](const std::string& other) {
      return !other.ends_with(last) || chosen.contains(other);
    });
    names.insert(are_all_meant ? last : module);
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> modules_that_match(const ModelConfig& config,
                                            const std::vector<std::string>& patterns,
                                            OptionNames name_of_option) {
  if (patterns.empty()) return {};
  const ModelConfig chosen = with_trainable(config, patterns, name_of_option);
  std::set<std::string> tensors;
  std::set<std::string> left_out;  // tensors that do not match
  for (const std::string& name : stored_names_of(chosen)) {
    if (is_trainable(chosen, name)) {
      tensors.insert(name);
    } else {
      left_out.insert(name);
    }
  }
  for (const std::string& name : tensors) {
    // In the module or in a module inside it.
    const std::string begin = module_of_tensor(name) + ".";
    const auto other = left_out.lower_bound(begin);
    if (other == left_out.end() || !other->starts_with(begin)) continue;
    throw ConfigError(
        fmt::format("{} matches {} but not {}: beside an adapter, modules train whole, and both "
                    "tensors belong to one",
                    name_of_option(Option::kTrainable), name, *other),
        "give patterns that match both tensors, or neither");
  }
  return modules_of(config, tensors);
}

bool has_whole_tied_head(const ModelConfig& config) {
  return config.tied && config.adapter.trains_whole(stored_embedding_name(config));
}

std::string stored_embedding_name(const ModelConfig& config) {
  return stored_name_of(config, ParameterKind::kTokenEmbedding);
}

std::string stored_head_name(const ModelConfig& config) {
  return stored_name_of(config, ParameterKind::kHeadWeight);
}

}  // namespace terrace
