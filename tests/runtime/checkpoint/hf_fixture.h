#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "runtime/model/parameter_init.h"
#include "runtime/model/parameter_layout.h"

namespace terrace {

// Keeps warnings.
class ListLog final : public Log {
 public:
  void info(std::string_view) override {}
  void warning(std::string_view line) override { warnings.emplace_back(line); }

  std::vector<std::string> warnings;
};

// The values that an export of a model starts from: element i of a tensor is init_parameter's.
inline constexpr auto kFetchRandom = [](const UnitLayout& /*unit*/, const ParameterTensor& tensor,
                                        std::int64_t begin, std::span<float> out) {
  ParameterTensor normal = tensor;
  normal.init = Init::kNormal;
  normal.init_deviation = 1.0F;
  init_parameter(normal, 1, begin, out);
};

}  // namespace terrace
