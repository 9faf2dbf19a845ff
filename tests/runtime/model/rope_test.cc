#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "runtime/model/decoder_options.h"
#include "runtime/model/rope_rows.h"
#include "runtime/model/rope_table.h"

// The frequencies and tables of rotary embeddings against numbers that LlamaRotaryEmbedding of
// transformers 5.24.0 gave.
namespace terrace {
namespace {

constexpr std::int64_t kWidth = 16;
// A unit in the last place of 1: transformers' pow, cos and sin are exact to one such unit, ours to
// half a unit.
constexpr double kUnit = std::numeric_limits<float>::epsilon();

struct KnownRope {
  const char* what;
  RopeOptions options;
  std::int64_t length;
  std::vector<float> frequencies;
  std::vector<float> last_row = {};  // cosines, then sines; empty: not kept
};

const std::vector<double> kShort = {1.0, 1.1, 1.3, 1.5, 1.9, 2.3, 2.7, 3.1};
const std::vector<double> kLong = {1.1, 2.0, 3.0, 4.0, 9.0, 11.0, 12.5, 14.0};

RopeOptions longrope(double attention_factor) {
  return {.type = RopeType::kLongRope,
          .theta = 1e3,
          .original_positions = 12,
          .short_factors = kShort,
          .long_factors = kLong,
          .attention_factor = attention_factor};
}

RopeOptions dynamic() {
  return {.type = RopeType::kDynamic, .theta = 1e3, .factor = 3.3, .positions = 10};
}

RopeOptions yarn(std::int64_t original_positions, double attention_factor) {
  return {.type = RopeType::kYarn,
          .theta = 1e3,
          .factor = 4.0,
          .original_positions = original_positions,
          .attention_factor = attention_factor};
}

RopeOptions untruncated(RopeOptions options, double beta_fast, double beta_slow) {
  options.truncates = false;
  options.beta_fast = beta_fast;
  options.beta_slow = beta_slow;
  return options;
}

std::vector<KnownRope> known_scaled_ropes() {
  return {
      {"default",
       {},
       48,
       {1.0F, 0.316227764F, 0.100000001F, 0.0316227786F, 0.00999999978F, 0.00316227786F,
        0.00100000005F, 0.000316227786F},
       {-0.992335439F, -0.663538277F, -0.0123883775F, 0.0844251662F, 0.891568303F, 0.988975286F,
        0.998895705F, 0.999889553F, 0.123573124F, 0.748142362F, -0.999923289F, 0.996429801F,
        0.452886283F, 0.148080468F, 0.0469827019F, 0.0148621583F}},
      {"linear",
       {.type = RopeType::kLinear, .theta = 5e5, .factor = 3.0},
       48,
       {0.333333343F, 0.0646409169F, 0.0125353439F, 0.00243088836F, 0.000471404492F,
        9.14160628e-05F, 1.77276524e-05F, 3.43779516e-06F}},
      {"llama3",
       {.type = RopeType::kLlama3, .theta = 1e3, .factor = 8.0, .original_positions = 32},
       48,
       {1.0F, 0.193871081F, 0.0222284924F, 0.00937367696F, 0.00395284733F, 0.00166690187F,
        0.000702926656F, 0.000296421727F}},
      {"dynamic_as_made",
       dynamic(),
       10,
       {1.0F, 0.421696514F, 0.177827939F, 0.0749894157F, 0.0316227786F, 0.0133352149F,
        0.00562341325F, 0.00237137382F},
       {-0.91113025F, -0.793853819F, -0.0296507962F, 0.780766428F, 0.959772646F, 0.992806613F,
        0.998719573F, 0.999772251F, 0.412118495F, -0.60810864F, 0.999560297F, 0.624822974F,
        0.280778348F, 0.11972902F, 0.0505891182F, 0.0213407446F}},
      {"dynamic_beyond",
       dynamic(),
       37,
       {1.0F, 0.303881139F, 0.0923437551F, 0.0280615278F, 0.00852736831F, 0.00259130658F,
        0.000787449244F, 0.000239290966F},
       {-0.127963692F, -0.0558241457F, -0.983341753F, 0.531678617F, 0.953248918F, 0.995651901F,
        0.999598205F, 0.999962926F, -0.991778851F, -0.998440623F, -0.181766421F, 0.84694618F,
        0.302186221F, 0.0931517929F, 0.028344376F, 0.00861436874F}},
  };
}

std::vector<KnownRope> known_ropes_with_factors() {
  return {
      {"yarn",
       yarn(32, 1.138629436111989),
       48,
       {1.0F, 0.263560325F, 0.0444569848F, 0.0187473539F, 0.00790569466F, 0.00333380373F,
        0.00140585331F, 0.000592843455F},
       {-1.12990236F, 1.1204294F, -0.564459443F, 0.724490762F, 1.06092858F, 1.12468052F,
        1.13614476F, 1.13818753F, 0.140703991F, -0.202768102F, 0.988869309F, 0.878402054F,
        0.413409621F, 0.177681327F, 0.0751803294F, 0.0317222588F}},
      {"yarn_untruncated",
       untruncated(yarn(48, 1.2758267339957976), 6.0, 0.5),
       48,
       {1.0F, 0.342542082F, 0.0981043056F, 0.0218269303F, 0.00790569466F, 0.00333380373F,
        0.00140585331F, 0.000592843455F},
       {-1.26604807F, -1.17928767F, -0.129257247F, 0.661335945F, 1.18876338F, 1.26019704F,
        1.27304256F, 1.2753315F, 0.157657892F, -0.486841112F, -1.26926208F, 1.09104002F,
        0.463222742F, 0.199090734F, 0.0842390582F, 0.035544578F}},
      {"yarn_of_no_ramp",
       untruncated(yarn(48, 0.8), 2.0, 2.0),
       48,
       {1.0F, 0.421696514F, 0.0444569848F, 0.0187473539F, 0.00790569466F, 0.00333380373F,
        0.00140585331F, 0.000592843455F}},
      {"longrope_short",
       longrope(1.2936992208031892),
       12,
       {1.0F, 0.383360475F, 0.136790738F, 0.049992945F, 0.016643567F, 0.00579791935F,
        0.00208274578F, 0.000764959259F},
       {0.00572552206F, -0.615030468F, 0.0854489058F, 1.10296273F, 1.27207863F, 1.29106915F,
        1.29335976F, 1.29365349F, -1.29368663F, -1.13815427F, 1.29087424F, 0.6761145F, 0.235528573F,
        0.082452476F, 0.0296363216F, 0.0108857704F}},
      {"longrope_long",
       longrope(1.2936992208031892),
       13,
       {0.909090877F, 0.210848257F, 0.059275981F, 0.0187473539F, 0.00351364189F, 0.00121229223F,
        0.000449873041F, 0.000169383842F},
       {-0.111745179F, -1.05932927F, 0.979985178F, 1.26109958F, 1.29254949F, 1.29356241F,
        1.29368043F, 1.29369652F, -1.28886414F, 0.742616475F, 0.844563067F, 0.288592517F,
        0.0545309931F, 0.0188194346F, 0.00698397122F, 0.00262957928F}},
  };
}

std::vector<KnownRope> known_ropes() {
  std::vector<KnownRope> all = known_scaled_ropes();
  for (const KnownRope& rope : known_ropes_with_factors()) all.push_back(rope);
  return all;
}

class RopeTable : public testing::TestWithParam<KnownRope> {};

TEST_P(RopeTable, HasTheFrequenciesOfTransformers) {
  const auto& [what, options, length, frequencies, last_row] = GetParam();
  const std::vector<float> ours = rope_frequencies(options, length, kWidth);
  ASSERT_EQ(ours.size(), frequencies.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_NEAR(ours[i] / frequencies[i], 1.0, kUnit) << i;
  }
}

TEST_P(RopeTable, HasTheRowsOfTransformers) {
  const auto& [what, options, length, frequencies, last_row] = GetParam();
  std::vector<float> table(static_cast<std::size_t>(length * kWidth));
  fill_rope_table(options, length, kWidth, table);
  const auto* const row = table.data() + (length - 1) * kWidth;
  for (std::size_t i = 0; i < last_row.size(); ++i) {
    const double angle = static_cast<double>(length - 1) * frequencies[i % (kWidth / 2)];
    EXPECT_NEAR(row[i], last_row[i], (angle + 1.0) * options.attention_factor * kUnit) << i;
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(kWidth); ++i) {
    EXPECT_EQ(table[i], i < kWidth / 2 ? static_cast<float>(options.attention_factor) : 0.0F) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Known, RopeTable, testing::ValuesIn(known_ropes()),
                         [](const auto& each) { return std::string(each.param.what); });

TEST(RopeFrequencies, OfPublishedLlama3) {
  RopeOptions options;
  options.type = RopeType::kLlama3;
  options.theta = 5e5;
  options.factor = 8.0;
  const std::vector<float> frequencies = rope_frequencies(options, 1, 128);
  ASSERT_EQ(frequencies.size(), 64U);
  const std::vector<std::pair<std::size_t, double>> exact = {{0, 1.0},
                                                             {1, 8.146172339e-01},
                                                             {28, 3.211445995e-03},
                                                             {29, 2.166570764e-03},
                                                             {30, 1.371893568e-03},
                                                             {31, 8.567514129e-04},
                                                             {32, 5.248461610e-04},
                                                             {33, 3.126937504e-04},
                                                             {34, 1.785078128e-04},
                                                             {35, 9.556212354e-05},
                                                             {63, 3.068925989e-07}};
  // The wanted numbers are exact. A blend in fp32 subtracts two numbers that are nearly equal.
  for (const auto& [i, value] : exact) EXPECT_NEAR(frequencies[i] / value, 1.0, 2e-6) << i;
}

TEST(RopeFrequencies, DependOnTheLengthOfSomeTypesOnly) {
  EXPECT_TRUE(depends_on_length(dynamic()));
  EXPECT_TRUE(depends_on_length(longrope(1.0)));
  EXPECT_NE(rope_frequencies(dynamic(), 11, kWidth), rope_frequencies(dynamic(), 10, kWidth));
  EXPECT_EQ(rope_frequencies(dynamic(), 1, kWidth), rope_frequencies(dynamic(), 10, kWidth));
  for (const KnownRope& known : known_ropes()) {
    if (depends_on_length(known.options)) continue;
    EXPECT_EQ(rope_frequencies(known.options, 1, kWidth),
              rope_frequencies(known.options, 1 << 20, kWidth))
        << known.what;
  }
}

// Ranks compare descriptions, so every field that changes a table must change them.
TEST(RopeOptions, DifferAndAreDescribedByEachField) {
  const std::vector<RopeOptions> all = {
      {},
      {.type = RopeType::kLinear},
      {.type = RopeType::kDynamic},
      {.type = RopeType::kLlama3},
      {.type = RopeType::kYarn},
      {.type = RopeType::kLongRope},
      {.theta = 5e5},
      {.factor = 2.0},
      {.low_freq_factor = 2.0},
      {.high_freq_factor = 2.0},
      {.beta_fast = 2.0},
      {.beta_slow = 2.0},
      {.truncates = false},
      {.original_positions = 2},
      {.positions = 2},
      {.short_factors = {2.0}},
      {.long_factors = {2.0}},
      {.attention_factor = 2.0},
  };
  const auto described = [](const RopeOptions& rope) {
    DecoderOptions decoder;
    decoder.ropes = {rope};
    return describe(decoder);
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < all.size(); ++j) {
      EXPECT_EQ(all[i] == all[j], i == j) << i << " " << j;
      EXPECT_EQ(described(all[i]) == described(all[j]), i == j) << i << " " << j;
    }
  }
}

// Returns the tables of documents one after the other, each made for its own length.
std::vector<float> rows_of_documents(const RopeOptions& options,
                                     const std::vector<std::int64_t>& lengths) {
  std::vector<float> rows;
  for (const std::int64_t length : lengths) {
    std::vector<float> table(static_cast<std::size_t>(length * kWidth));
    fill_rope_table(options, length, kWidth, table);
    rows.insert(rows.end(), table.begin(), table.end());
  }
  return rows;
}

TEST(RopeRows, HaveTheAnglesOfTheirOwnDocument) {
  const RopeOptions usual = {.type = RopeType::kDefault};
  RopeRows rows({dynamic(), usual, longrope(1.2)}, kWidth);
  // The lengths are short, long, another long one, one as before, and a short one that is longer
  // than the first.
  for (const std::vector<std::int64_t>& documents :
       {std::vector<std::int64_t>{3, 20, 31, 20, 9}, {10, 11, 12, 13, 1}, {40}}) {
    std::vector<std::int32_t> lengths;
    for (const std::int64_t length : documents) {
      lengths.insert(lengths.end(), static_cast<std::size_t>(length),
                     static_cast<std::int32_t>(length));
    }
    std::vector<float> found(3 * lengths.size() * kWidth);
    rows.fill(lengths, std::as_writable_bytes(std::span(found)));
    std::vector<float> wanted;
    for (const RopeOptions& options : {dynamic(), usual, longrope(1.2)}) {
      const std::vector<float> some = rows_of_documents(options, documents);
      wanted.insert(wanted.end(), some.begin(), some.end());
    }
    EXPECT_EQ(found, wanted);
  }
}

TEST(RopeRows, AreNeededOnlyWhereLengthsDiffer) {
  DecoderOptions model;
  model.head_width = kWidth;
  for (const auto& [options, longest] :
       {std::pair(dynamic(), 10), {longrope(1.0), 12}, {RopeOptions(), 1 << 20}}) {
    model.ropes = {RopeOptions(), options};
    EXPECT_EQ(row_angles(model, longest), 0);
    const bool differ = depends_on_length(options);
    EXPECT_EQ(row_angles(model, longest + 1), differ ? 2 * kWidth : 0);
  }
}

}  // namespace
}  // namespace terrace
