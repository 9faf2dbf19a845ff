#include "tests/golden/golden_families.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/golden/golden_case.h"

namespace terrace {

std::string family_of(const std::string& name) {
  std::ifstream stream(golden_case_directory(name) + "/config.json");
  return nlohmann::json::parse(stream).at("model_type").get<std::string>();
}

std::vector<std::string> cases_that_hold() {
  std::vector<std::string> names = golden_case_names();
  std::erase_if(names, [](const std::string& name) {
    return !has_name(kFamilies, family_of(name)) || has_name(kCasesNotBuilt, name);
  });
  return names;
}

}  // namespace terrace
