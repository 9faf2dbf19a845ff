#include "runtime/model/config_rope.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "runtime/model/config_keys.h"
#include "runtime/model/families/family.h"
#include "tests/runtime/temporary_directory.h"

// How rotary embeddings are read from a config.json. The attention factors are those that
// transformers 5.24.0 gives.
namespace terrace {
namespace {

constexpr RopeDefaults kUsual = {.theta = 1e4, .positions = 64, .rotary_width = 4};
constexpr RopeDefaults kPhi3 = {.theta = 1e4,
                                .positions = 64,
                                .rotary_width = 4,
                                .original_positions = 4096,
                                .only_longrope = true,
                                .may_be_partial = true};

RopeOptions read(const std::string& json, const RopeDefaults& defaults = kUsual) {
  return read_rope(ConfigReader(json, "config.json"), defaults);
}

// Reads a config.json with a rope_parameters that has `inside`.
RopeOptions read_parameters(const std::string& inside, const std::string& beside = "") {
  return read("{" + beside + R"("rope_parameters": {)" + inside + "}}");
}

RopeOptions read_full(const std::string& json) {
  return read_rope_of_layers(ConfigReader(json, "config.json"), "full_attention",
                             {.theta = 1e6, .positions = 64, .rotary_width = 4});
}

RopeOptions read_sliding(const std::string& json) {
  return read_rope_of_layers(ConfigReader(json, "config.json"), "sliding_attention",
                             {.theta = 1e4, .positions = 64, .rotary_width = 4});
}

TEST(ConfigRope, DynamicTakesTheModelsPositions) {
  EXPECT_EQ(
      read(R"({"rope_theta": 1e3, "rope_scaling": {"type": "dynamic", "factor": 3}})"),
      (RopeOptions{.type = RopeType::kDynamic, .theta = 1e3, .factor = 3.0, .positions = 64}));
}

TEST(ConfigRope, Llama3TakesTheModelsPositionsWhereItNamesNone) {
  const std::string keys =
      R"("rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4)";
  EXPECT_EQ(read_parameters(keys).original_positions, 64);
  EXPECT_EQ(read_parameters(keys + R"(, "original_max_position_embeddings": 32)"),
            (RopeOptions{.type = RopeType::kLlama3, .factor = 8.0, .original_positions = 32}));
}

TEST(ConfigRope, PositionsBesideTheObjectWin) {
  const std::string beside = R"("original_max_position_embeddings": 16, )";
  const std::string original = R"("original_max_position_embeddings": 48, )";
  for (const char* keys :
       {R"("rope_type": "yarn", "factor": 4)",
        R"("rope_type": "longrope", "short_factor": [1, 2], "long_factor": [3, 4])",
        R"("rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4)"}) {
    EXPECT_EQ(read_parameters(keys).original_positions, 64) << keys;
    EXPECT_EQ(read_parameters(original + keys).original_positions, 48) << keys;
    EXPECT_EQ(read_parameters(keys, beside).original_positions, 16) << keys;
    EXPECT_EQ(read_parameters(original + keys, beside).original_positions, 16) << keys;
  }
  EXPECT_EQ(read_parameters(R"("rope_type": "default")", beside), RopeOptions{});
}

TEST(ConfigRope, YarnHasDefaults) {
  EXPECT_EQ(read_parameters(R"("rope_type": "yarn", "factor": 4.0, "rope_theta": 1e3,
                               "original_max_position_embeddings": 16)"),
            (RopeOptions{.type = RopeType::kYarn,
                         .theta = 1e3,
                         .factor = 4.0,
                         .original_positions = 16,
                         .attention_factor = 1.138629436111989}));
}

// DeepSeek-R1-0528-Qwen3-8B has this key. No class of transformers reads it.
TEST(ConfigRope, YarnIgnoresAttnFactorAsTransformersDoes) {
  const std::string yarn =
      R"("rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16)";
  const std::string keys = yarn + R"(, "attn_factor": 0.8782488562869419)";
  EXPECT_EQ(read_parameters(keys), read_parameters(yarn));
  check_config_keys("{\"rope_scaling\": {" + keys + "}}", find_family("qwen3")->keys,
                    "config.json");
}

TEST(ConfigRope, YarnReadsAllParameters) {
  EXPECT_EQ(read_parameters(R"("rope_type": "yarn", "factor": 4.0, "beta_fast": 6.0,
                               "beta_slow": 0.5, "truncate": false, "mscale": 2.5,
                               "mscale_all_dim": 0.4, "original_max_position_embeddings": 48)"),
            (RopeOptions{.type = RopeType::kYarn,
                         .factor = 4.0,
                         .beta_fast = 6.0,
                         .beta_slow = 0.5,
                         .truncates = false,
                         .original_positions = 48,
                         .attention_factor = 1.2758267339957976}));
}

TEST(ConfigRope, YarnTakesNullAndZeroAsPythonDoes) {
  const RopeOptions options =
      read_parameters(R"("rope_type": "yarn", "factor": null, "beta_fast": 0, "beta_slow": null,
                         "mscale": 0, "mscale_all_dim": 2.0, "truncate": null,
                         "attention_factor": null, "original_max_position_embeddings": 16)");
  EXPECT_EQ(options, (RopeOptions{.type = RopeType::kYarn,
                                  .factor = 4.0,
                                  .truncates = false,
                                  .original_positions = 16,
                                  .attention_factor = 1.138629436111989}));
}

struct KnownFactor {
  const char* keys;
  double wanted;
};

class YarnAttentionFactor : public testing::TestWithParam<KnownFactor> {};

TEST_P(YarnAttentionFactor, IsGivenOrInferred) {
  EXPECT_DOUBLE_EQ(
      read_parameters(std::string(R"("rope_type": "yarn", )") + GetParam().keys).attention_factor,
      GetParam().wanted);
}

INSTANTIATE_TEST_SUITE_P(
    Each, YarnAttentionFactor,
    testing::Values(KnownFactor{R"("factor": 4, "attention_factor": 0.8, "mscale": 2,
                                   "mscale_all_dim": 3)",
                                0.8},
                    KnownFactor{R"("factor": 4, "attention_factor": 0)", 0.0},
                    KnownFactor{R"("factor": 4, "mscale": 2.0)", 1.138629436111989},
                    KnownFactor{R"("factor": 4, "mscale_all_dim": 2.0)", 1.138629436111989},
                    KnownFactor{R"("factor": 0.5)", 1.0},
                    KnownFactor{R"("factor": 0.5, "mscale": 2, "mscale_all_dim": 3)", 1.0}));

class LongRopeAttentionFactor : public testing::TestWithParam<KnownFactor> {};

TEST_P(LongRopeAttentionFactor, IsGivenOrInferred) {
  const RopeOptions options = read_parameters(
      std::string(R"("rope_type": "longrope", "short_factor": [1, 1.5], "long_factor": [3, 4.5],
                     "original_max_position_embeddings": 12)") +
      GetParam().keys);
  EXPECT_EQ(options.short_factors, (std::vector{1.0, 1.5}));
  EXPECT_EQ(options.long_factors, (std::vector{3.0, 4.5}));
  EXPECT_EQ(options.original_positions, 12);
  EXPECT_DOUBLE_EQ(options.attention_factor, GetParam().wanted);
}

INSTANTIATE_TEST_SUITE_P(Each, LongRopeAttentionFactor,
                         testing::Values(KnownFactor{"", 1.2936992208031892},
                                         KnownFactor{R"(, "factor": 2)", 1.1309035969750605},
                                         KnownFactor{R"(, "factor": 0.5)", 1.0},
                                         KnownFactor{R"(, "factor": 2, "attention_factor": 0.7)",
                                                     0.7},
                                         KnownFactor{R"(, "attention_factor": 0)", 0.0}));

TEST(ConfigRope, SuAndYarnNameLongRopeInPhi3) {
  const std::string lists = R"("short_factor": [1, 2], "long_factor": [3, 4])";
  for (const char* name : {"longrope", "su", "yarn"}) {
    const std::string scaling = std::string(R"("rope_scaling": {"type": ")") + name + R"(", )" +
                                R"("original_max_position_embeddings": 48, )" + lists + "}";
    const RopeOptions inner_only = read("{" + scaling + "}", kPhi3);
    EXPECT_EQ(inner_only.type, RopeType::kLongRope) << name;
    EXPECT_EQ(inner_only.original_positions, 4096) << name;
    EXPECT_EQ(inner_only.attention_factor, 1.0) << name;
    const RopeOptions both =
        read(R"({"original_max_position_embeddings": 12, )" + scaling + "}", kPhi3);
    EXPECT_EQ(both.original_positions, 12) << name;
    EXPECT_DOUBLE_EQ(both.attention_factor, 1.2936992208031892) << name;
  }
  EXPECT_NO_THROW(read(R"({"partial_rotary_factor": 0.5})", kPhi3));
  EXPECT_NO_THROW(read(R"({"rope_parameters": {"partial_rotary_factor": 0.5}})", kPhi3));
  TERRACE_EXPECT_THROW_WITH(read(R"({"rope_scaling": {"type": "linear", "factor": 2}})", kPhi3),
                            ConfigError, "linear");
}

struct RefusedRope {
  const char* what;
  const char* keys;
  const char* named;
};

class RefusedRopes : public testing::TestWithParam<RefusedRope> {};

TEST_P(RefusedRopes, AreRefusedByName) {
  TERRACE_EXPECT_THROW_WITH(read_parameters(GetParam().keys), ConfigError, "rope_parameters");
  TERRACE_EXPECT_THROW_WITH(read_parameters(GetParam().keys), ConfigError, GetParam().named);
}

INSTANTIATE_TEST_SUITE_P(
    Each, RefusedRopes,
    testing::Values(
        RefusedRope{"type", R"("rope_type": "proportional")", "proportional"},
        RefusedRope{"su", R"("rope_type": "su", "short_factor": [1, 1], "long_factor": [1, 1])",
                    "su"},
        RefusedRope{"linear", R"("rope_type": "linear")", "factor"},
        RefusedRope{"dynamic", R"("rope_type": "dynamic")", "factor"},
        RefusedRope{"yarn", R"("rope_type": "yarn")", "factor"},
        RefusedRope{"no_type", R"("factor": 2)", "factor"},
        RefusedRope{"no_type_of_lists", R"("short_factor": [1, 1])", "short_factor"},
        RefusedRope{"no_list", R"("rope_type": "longrope", "short_factor": [1, 1])", "long_factor"},
        RefusedRope{"short_list",
                    R"("rope_type": "longrope", "short_factor": [1, 1], "long_factor": [1])",
                    "2 numbers above 0"},
        RefusedRope{"zero_in_list",
                    R"("rope_type": "longrope", "short_factor": [1, 0], "long_factor": [1, 1])",
                    "short_factor"},
        RefusedRope{"negative", R"("rope_type": "yarn", "factor": 2, "attention_factor": -1)",
                    "attention_factor"},
        RefusedRope{"theta_without_logarithm",
                    R"("rope_type": "yarn", "factor": 2, "rope_theta": 1)", "rope_theta other"},
        RefusedRope{"one_position",
                    R"("rope_type": "longrope", "short_factor": [1, 1], "long_factor": [1, 1],
                       "original_max_position_embeddings": 1)",
                    "not finite"},
        RefusedRope{"partial", R"("partial_rotary_factor": 0.5)", "partial_rotary_factor"},
        RefusedRope{"by_layer", R"("full_attention": {"rope_theta": 1})", "full_attention"}),
    [](const auto& each) { return std::string(each.param.what); });

TEST(ConfigRope, DynamicNeedsMoreThanOnePair) {
  TERRACE_EXPECT_THROW_WITH(read(R"({"rope_scaling": {"type": "dynamic", "factor": 2}})",
                                 {.positions = 64, .rotary_width = 2}),
                            ConfigError, "more than 2 rotated elements");
}

// The width is refused before a list of that size is made.
TEST(ConfigRope, RefusesWidthsThatNoHeadHas) {
  TERRACE_EXPECT_THROW_WITH(read(R"({"rope_scaling": {"type": "linear", "factor": 2}})",
                                 {.positions = 64, .rotary_width = 900'000'000'000}),
                            ConfigError, "900000000000 elements");
}

TEST(RopeOfLayers, OlderFilesHaveAThetaForEachType) {
  const std::string json = R"({"rope_theta": 5e3, "rope_local_base_freq": 100,
                               "rope_scaling": {"rope_type": "linear", "factor": 4}})";
  EXPECT_EQ(read_full(json), (RopeOptions{.type = RopeType::kLinear, .theta = 5e3, .factor = 4.0}));
  EXPECT_EQ(read_sliding(json), (RopeOptions{.theta = 100.0}));
}

TEST(RopeOfLayers, NewerFilesHaveAnObjectForEachType) {
  const std::string json =
      R"({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4},
                              "sliding_attention": {"rope_type": "default", "rope_theta": 100}}})";
  EXPECT_EQ(read_full(json), (RopeOptions{.type = RopeType::kLinear, .theta = 1e6, .factor = 4.0}));
  EXPECT_EQ(read_sliding(json), (RopeOptions{.theta = 100.0}));
}

TEST(RopeOfLayers, AbsentOnesAreTheFamilys) {
  for (const char* json :
       {"{}", R"({"rope_parameters": {}})",
        R"({"rope_parameters": {"full_attention": null, "sliding_attention": {}}})"}) {
    EXPECT_EQ(read_full(json), (RopeOptions{.theta = 1e6})) << json;
    EXPECT_EQ(read_sliding(json), (RopeOptions{.theta = 1e4})) << json;
  }
}

// rope_scaling replaces keys, and thetas inside objects win over those beside them.
TEST(RopeOfLayers, BothFormsAtOnce) {
  const std::string both =
      R"({"rope_theta": 7, "rope_local_base_freq": 8,
          "rope_parameters": {
              "full_attention": {"rope_type": "linear", "factor": 4, "rope_theta": 3},
              "sliding_attention": {"rope_theta": 5}}, )";
  const std::string scaling = R"("rope_scaling": {"factor": 2})";
  EXPECT_EQ(read_full(both + scaling + "}"),
            (RopeOptions{.type = RopeType::kLinear, .theta = 3.0, .factor = 2.0}));
  EXPECT_EQ(read_sliding(both + scaling + "}"), (RopeOptions{.theta = 5.0}));
  const std::string with_theta = R"("rope_scaling": {"factor": 2, "rope_theta": 9})";
  EXPECT_EQ(read_full(both + with_theta + "}").theta, 9.0);
  EXPECT_EQ(read_sliding(both + with_theta + "}").theta, 5.0);
}

struct RefusedLayers {
  const char* what;
  const char* json;
  const char* named;
};

class RefusedRopesOfLayers : public testing::TestWithParam<RefusedLayers> {};

// transformers ignores each of these without a word.
TEST_P(RefusedRopesOfLayers, AreRefusedByName) {
  TERRACE_EXPECT_THROW_WITH(read_full(GetParam().json), ConfigError, GetParam().named);
}

INSTANTIATE_TEST_SUITE_P(
    Each, RefusedRopesOfLayers,
    testing::Values(
        RefusedLayers{"flat", R"({"rope_parameters": {"rope_type": "linear", "factor": 4}})",
                      "rope_parameters: key factor"},
        RefusedLayers{"flat_theta", R"({"rope_parameters": {"rope_theta": 5}})",
                      "rope_parameters: key rope_theta"},
        RefusedLayers{"older_name", R"({"rope_scaling": {"type": "linear", "factor": 4}})",
                      "rope_scaling: key type"},
        RefusedLayers{"truncate", R"({"rope_parameters": {"full_attention":
                                  {"rope_type": "yarn", "factor": 4, "truncate": false}}})",
                      "truncate"},
        RefusedLayers{"outer_positions", R"({"original_max_position_embeddings": 16,
                                             "rope_scaling": {"rope_type": "yarn", "factor": 4}})",
                      "original_max_position_embeddings"},
        RefusedLayers{"partial", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor"}),
    [](const auto& each) { return std::string(each.param.what); });

}  // namespace
}  // namespace terrace
