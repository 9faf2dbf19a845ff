#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <string>

#include "tests/tidy/source_tree.h"

// TierRuntime trains units that its caller describes. It knows the form of a description from the
// model's folder, but no decoder (docs/embedding-cpp.md).
namespace terrace::tidy {
namespace {

// Returns the files of the tree that a source reads, by its own includes and by theirs.
std::set<std::string> read_by(const std::string& source) {
  static const std::regex kInclude("(^|\n)#include \"([^\"]+)\"");
  std::map<std::string, std::string> texts;
  for (SourceFile& file : read_source_tree()) texts[file.path] = std::move(file.text);
  std::set<std::string> found;
  std::vector<std::string> next = {source};
  while (!next.empty()) {
    const std::string path = next.back();
    next.pop_back();
    const auto text = texts.find(path);
    if (text == texts.end() || !found.insert(path).second) continue;
    for (std::sregex_iterator match(text->second.begin(), text->second.end(), kInclude), end;
         match != end; ++match) {
      next.push_back((*match)[2]);
    }
  }
  return found;
}

const std::set<std::string> kDescriptions = {
    "runtime/model/op_role.h",      "runtime/model/option_names.h",  "runtime/model/state_field.h",
    "runtime/model/step_compute.h", "runtime/model/unit_elements.h", "runtime/model/unit_memory.h",
    "runtime/model/unit_model.h"};

TEST(TierRuntimeIncludes, NoModelNoDataAndNoConfiguration) {
  for (const char* source : {"tier_runtime.cc", "tier_plan.cc", "unit_check.cc", "unit_state.cc",
                             "step_bodies.cc", "home_access.cc", "update_checksums.cc"}) {
    const std::set<std::string> found = read_by(std::string("runtime/engine/") + source);
    EXPECT_GT(found.size(), 5U) << source;
    for (const std::string& path : found) {
      const bool is_above = path.starts_with("runtime/config/") ||
                            path.starts_with("runtime/data/") ||
                            path.starts_with("runtime/tokenizer/") ||
                            path.starts_with("runtime/jinja/") || path.starts_with("runtime/chat/");
      const bool is_model = path.starts_with("runtime/model/") && !kDescriptions.contains(path);
      EXPECT_FALSE(is_above || is_model) << source << " reads " << path;
    }
  }
}

TEST(TierRuntimeIncludes, TheEngineKnowsAModel) {
  EXPECT_TRUE(read_by("runtime/engine/model_runtime.cc").contains("runtime/model/model_config.h"));
}

}  // namespace
}  // namespace terrace::tidy
