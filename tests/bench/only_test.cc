#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "bench/bench_list.h"
#include "bench/bench_only.h"
#include "bench/bench_record.h"

namespace terrace {
namespace {

using testing::HasSubstr;

BenchOptions only(std::vector<std::string> patterns) {
  BenchOptions options;
  options.only = std::move(patterns);
  return options;
}

const Bench& bench_named(std::string_view name) {
  return *std::ranges::find(benches(), name, &Bench::name);
}

std::string refusal(std::string_view bench, const BenchOptions& options) {
  try {
    check_only(bench_named(bench), options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(BenchOnly, NamesAndPatternsPickResults) {
  EXPECT_TRUE(is_wanted(BenchOptions(), "store_read"));
  const BenchOptions some = only({"store_read", "*_wide"});
  EXPECT_TRUE(is_wanted(some, "store_read"));
  EXPECT_TRUE(is_wanted(some, "store_write_wide"));
  EXPECT_FALSE(is_wanted(some, "store_read_cpu"));
  EXPECT_EQ(wanted_of(some, {"store_read", "store_write", "store_mixed_wide"}),
            (std::vector<std::string>{"store_read", "store_mixed_wide"}));
  EXPECT_FALSE(any_is_wanted(some, {"memcpy"}));
}

TEST(BenchOnly, ANameThatMatchesNothingIsRefusedWithAllNames) {
  const std::string text = refusal("copy", only({"memcpy", "uplaod"}));
  EXPECT_THAT(text, HasSubstr("--only uplaod: no result has this name"));
  EXPECT_THAT(text, HasSubstr("memcpy, upload, download, upload_and_download"));
  EXPECT_EQ(refusal("copy", only({"up*"})), "");
  EXPECT_THAT(refusal("collective", only({"thread_all_reduse*"})),
              HasSubstr("thread_all_reduce_fp32_1mib"));
}

// The part is nano, which a hurried benchmark begins with.
TEST(BenchOnly, WithATimeLimitResultsOfTheFirstSmallPartCount) {
  BenchOptions options = only({"nano_*"});
  EXPECT_THAT(refusal("step", options), HasSubstr("no result has this name"));
  options.time_limit_s = 20;
  EXPECT_EQ(refusal("step", options), "");
}

TEST(BenchOnly, EveryBenchmarkHasNamesThatAreUnique) {
  for (const Bench& bench : benches()) {
    for (const bool small : {true, false}) {
      BenchOptions options;
      options.threads = 2;
      options.small = small;
      const std::vector<std::string> names = bench.names(options);
      EXPECT_FALSE(names.empty()) << bench.name;
      EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size())
          << bench.name;
    }
  }
}

TEST(BenchOnly, ARecordKeepsWhatIsWanted) {
  BenchRecord record({}, {"b*"});
  record.expect({"a", "b1", "b2"});
  for (const char* const name : {"a", "b1"}) {
    BenchResult result;
    result.name = name;
    result.value = result.limit = Samples({1});
    record.put(std::move(result));
  }
  ASSERT_EQ(record.results().size(), 1U);
  EXPECT_EQ(record.results()[0].name, "b1");
  EXPECT_EQ(record.missing(), (std::vector<std::string>{"b2"}));
}

}  // namespace
}  // namespace terrace
