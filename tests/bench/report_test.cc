#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "bench/bench_report.h"
#include "bench/figure_text.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;

BenchResult made_up_result(const std::string& name, const std::vector<double>& values) {
  return {.name = name,
          .value = Samples(values),
          .limit = Samples(std::vector<double>(values.size(), 4)),
          .limit_is = "a copy, 1 thread",
          .details = {{"alone", "s", Samples({0.5, 0.25})}, number_detail("threads", "threads", 2)},
          .notes = {{"fastest", "the store, \"512 KiB\""}}};
}

class BenchReportTest : public testing::Test {
 protected:
  BenchReport report() const { return {.run = run_, .options = options_, .results = results_}; }
  json document() const { return json::parse(bench_json(report())); }
  std::string saved(const std::string& name) const {
    return directory_.write(name, bench_json(report()));
  }

  TemporaryDirectory directory_;
  BenchRun run_ = {.bench = "io", .arguments = {}, .drives = {}, .cut = {}};
  BenchOptions options_;
  std::vector<BenchResult> results_ = {made_up_result("store_read", {1, 2, 3})};
};

TEST_F(BenchReportTest, DetailsAreNumbersWithUnitsAndAllSamples) {
  const json result = document().at("results").at(0);
  EXPECT_EQ(result.at("value_samples"), json({1, 2, 3}));
  EXPECT_EQ(result.at("limit_samples"), json({4, 4, 4}));
  EXPECT_EQ(result.at("details").at("alone"),
            json({{"value", 0.375}, {"unit", "s"}, {"samples", {0.5, 0.25}}}));
  EXPECT_EQ(result.at("details").at("threads"), json({{"value", 2.0}, {"unit", "threads"}}));
  EXPECT_EQ(result.at("notes").at("fastest"), "the store, \"512 KiB\"");
  EXPECT_EQ(result.at("spread"), 3);
  EXPECT_EQ(result.at("unsteady"), true);
}

// One of the two details would vanish.
TEST_F(BenchReportTest, DetailsOfOneNameAreABug) {
  results_[0].details.push_back(number_detail("alone", "s", 1));
  EXPECT_DEATH(bench_json(report()), "contains");
}

TEST_F(BenchReportTest, SaysWhatTheDriveIsAndWhatIsMissing) {
  EXPECT_EQ(document().at("complete"), true);
  EXPECT_FALSE(document().contains("drives"));
  DrivePlace place;
  place.file_system = "ext4";
  place.model = "Fast 1";
  place.free_bytes = 5;
  run_.drives = {place};
  run_.cut = {.by = "the time limit of 3 s", .missing = {"store_write"}};
  const json cut = document();
  EXPECT_EQ(cut.at("complete"), false);
  EXPECT_EQ(cut.at("cut_short").at("missing"), json({"store_write"}));
  EXPECT_EQ(cut.at("drives").at(0).at("model"), "Fast 1");
  EXPECT_EQ(cut.at("drives").at(0).at("file_system"), "ext4");
  EXPECT_EQ(cut.at("drives").at(0).at("free_bytes"), 5);
  EXPECT_THAT(bench_table(report()), HasSubstr("by the time limit of 3 s. Not measured: store_"));
}

TEST_F(BenchReportTest, TablesHaveAHundredColumns) {
  results_.push_back(made_up_result(std::string(70, 'n'), {1e-12, 1e9, 12345.678}));
  results_.back().limit_is = "words that go on and on, " + std::string(60, 'x') + " and on and on";
  results_.back().unit = BenchUnit::kBytesPerElement;
  run_.cut = {.by = "signal 2", .missing = std::vector<std::string>(9, std::string(40, 'm'))};
  BenchReport all = report();
  all.comparison =
      compare_figures(figures_of(run_, options_, results_), figures_of(run_, options_, results_));
  std::istringstream lines(bench_table(all));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
}

TEST_F(BenchReportTest, UnsteadyRatiosAreMarkedInTheTable) {
  EXPECT_THAT(bench_table(report()), HasSubstr("0.500*"));
  EXPECT_THAT(bench_table(report()),
              HasSubstr("* samples differ by a factor of 3.000: measure again"));
  results_ = {made_up_result("store_read", {2, 3})};
  EXPECT_THAT(bench_table(report()), testing::Not(HasSubstr("*")));
}

TEST_F(BenchReportTest, OneRoundIsNotCalledSteady) {
  results_ = {made_up_result("store_read", {2})};
  const json result = document().at("results").at(0);
  EXPECT_EQ(result.at("unsteady"), true);
  EXPECT_TRUE(result.at("spread").is_null());
  EXPECT_THAT(bench_table(report()),
              HasSubstr("one round does not show whether the result is steady"));
}

// A rate that was measured in rounds replaces one that was tried once.
TEST_F(BenchReportTest, ShowsTheMatrixOfBlockSizesAndDepths) {
  results_[0].matrix = {{"bare loop", 1 << 20, 8, 2.5, 0},
                        {"bare loop", 1 << 20, 32, 3, 0},
                        {"bare loop", 1 << 20, 32, 4, 5},
                        {"store", 1 << 19, 8, 1, 5}};
  const json matrix = document().at("results").at(0).at("matrix");
  ASSERT_EQ(matrix.size(), 4U);
  EXPECT_EQ(matrix[0], json({{"tool", "bare loop"},
                             {"block_bytes", 1 << 20},
                             {"depth", 8},
                             {"gb_per_s", 2.5},
                             {"iops", 2.5e9 / (1 << 20)},
                             {"rounds", 0}}));
  const std::string table = bench_table(report());
  EXPECT_THAT(table, HasSubstr("bare loop, GB/s by block size and queue depth (': tried once)\n"
                               "         depth        8        32 \n"
                               "      1.00 MiB    2.500'    4.000 \n"));
  EXPECT_THAT(table, HasSubstr("store, GB/s by block size and queue depth\n"
                               "         depth        8 \n"
                               "       512 KiB    1.000 \n"));
}

TEST_F(BenchReportTest, CsvQuotesWhatHasCommas) {
  const std::string csv = bench_csv(report());
  EXPECT_THAT(csv, testing::StartsWith("benchmark,name,value,unit,limit,ratio,"));
  EXPECT_THAT(csv, HasSubstr("\nio,store_read,2,GB/s,4,0.5,1,3,4,4,3,true,\"a copy, 1 thread\"\n"));
}

TEST_F(BenchReportTest, DocumentsAreComparedByName) {
  results_ = {made_up_result("same", {1, 2, 3}), made_up_result("faster", {10, 11, 12}),
              made_up_result("once", {1}), made_up_result("gone", {1, 2})};
  results_.push_back(made_up_result("quicker", {10, 11}));
  results_.back().unit = BenchUnit::kSeconds;
  const BenchFigures before = read_bench_figures(saved("old.json"), "io");
  results_ = {made_up_result("same", {2, 3, 4}), made_up_result("faster", {20, 21, 22}),
              made_up_result("once", {9, 9}), made_up_result("new", {1, 2})};
  results_.push_back(made_up_result("quicker", {20, 21}));
  results_.back().unit = BenchUnit::kSeconds;
  const BenchComparison comparison = compare_figures(before, figures_of(run_, options_, results_));
  EXPECT_EQ(comparison.setting_before, comparison.setting_now);
  std::map<std::string, BenchVerdict> verdicts;
  for (const ComparedFigure& figure : comparison.figures) verdicts[figure.name] = figure.verdict;
  EXPECT_THAT(verdicts,
              testing::UnorderedElementsAre(testing::Pair("same", BenchVerdict::kSame),
                                            testing::Pair("faster", BenchVerdict::kBetter),
                                            testing::Pair("quicker", BenchVerdict::kWorse),
                                            testing::Pair("once", BenchVerdict::kOneSample),
                                            testing::Pair("gone", BenchVerdict::kOnlyBefore),
                                            testing::Pair("new", BenchVerdict::kOnlyNow)));
  EXPECT_DOUBLE_EQ(comparison.figures[1].ratio.value(), 21.0 / 11);
  EXPECT_EQ(comparison.figures[1].spread, 2);
}

TEST_F(BenchReportTest, OtherDocumentsAreRefusedByName) {
  const auto refusal = [&](const std::string& path) {
    try {
      read_bench_figures(path, "copy");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(refusal(saved("io.json")), HasSubstr("it belongs to bench io, not to bench copy"));
  EXPECT_THAT(refusal(directory_.write("doctor.json", R"({"schema": "terrace.doctor/1"})")),
              HasSubstr("its schema is 'terrace.doctor/1', not 'terrace.bench/1'"));
  EXPECT_THAT(refusal(directory_.write("text", "text")), HasSubstr("not a JSON document"));
  EXPECT_THAT(refusal(directory_.path("none")), HasSubstr("it cannot be read"));
  EXPECT_THAT(refusal(directory_.write("half.json",
                                       R"({"schema": "terrace.bench/1", "benchmark": "copy"})")),
              HasSubstr("results"));
}

TEST(FigureText, UnitsFitTheFigures) {
  EXPECT_EQ(figure_text(2.5, "GB/s"), "2.500 GB/s");
  EXPECT_EQ(figure_text(0.0025, "GB/s"), "2.500 MB/s");
  EXPECT_EQ(figure_text(2500, "GB/s"), "2.500 TB/s");
  EXPECT_EQ(figure_text(0.02, "s"), "20.00 ms");
  EXPECT_EQ(figure_text(90, "s"), "90.00 s");
  EXPECT_EQ(figure_text(3 << 20, "bytes"), "3.000 MiB");
  EXPECT_EQ(figure_text(0, "GB/s"), "0.000 KB/s");
  EXPECT_EQ(figure_text(0.5, "of a step"), "0.500 of a step");
  EXPECT_EQ(figure_text(0.5, ""), "0.500");
  for (int unit = 0; unit <= static_cast<int>(BenchUnit::kTeraflopsPerSecond); ++unit) {
    EXPECT_LE(shown_unit(1, name_of(static_cast<BenchUnit>(unit))).name.size(), 9U) << unit;
  }
}

TEST(SnakeName, KeepsLettersAndDigits) {
  EXPECT_EQ(snake_name("fio-3.33, 1.00 MiB, depth 8"), "fio_3_33_1_00_mib_depth_8");
  EXPECT_EQ(snake_name("  (a) "), "a");
}

}  // namespace
}  // namespace terrace
