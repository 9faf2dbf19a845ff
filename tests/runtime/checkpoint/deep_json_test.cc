#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "runtime/checkpoint/adapter_config.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_index.h"
#include "runtime/checkpoint/safetensors_header.h"
#include "runtime/data/json_document.h"
#include "runtime/model/model_config.h"
#include "tests/runtime/temporary_directory.h"

// Files whose JSON is nested so deeply that walking through it would need more stack than there is.
namespace terrace {
namespace {

// Returns an object with the key, whose value is many nested lists.
std::string deep(const std::string& key) {
  constexpr std::size_t kLevels = 1'000'000;
  return R"({"type": 1, ")" + key + "\": " + std::string(kLevels, '[') + std::string(kLevels, ']') +
         "}";
}

TEST(DeepJson, IsRefusedByItsReaders) {
  const std::string within = "lists and objects are nested more than 256 deep";
  TERRACE_EXPECT_THROW_WITH(parse_json_document(deep("input_ids"), "f:1", 9), CorruptData, within);
  TERRACE_EXPECT_THROW_WITH(parse_model_config(deep("x"), "c"), ConfigError, within);
  TERRACE_EXPECT_THROW_WITH(parse_model_config(deep("x"), "c", {"type"}), ConfigError, within);
  TERRACE_EXPECT_THROW_WITH(parse_safetensors_header(deep("x"), 0, "s"), CorruptData, "too deeply");
  TERRACE_EXPECT_THROW_WITH(parse_adapter_config(deep("x"), "a"), ConfigError,
                            "a is not a JSON object");
  const TemporaryDirectory directory;
  directory.write("model.safetensors.index.json", "{\"weight_map\": " + deep("x") + "}");
  TERRACE_EXPECT_THROW_WITH(read_hf_index(directory.path()), CorruptData, "not an index");
  directory.write("manifest.json", R"({"schema": "terrace.checkpoint/1", "x": )" + deep("x") + "}");
  TERRACE_EXPECT_THROW_WITH(Checkpoint(directory.path()), CorruptData, "not a manifest");
}

}  // namespace
}  // namespace terrace
