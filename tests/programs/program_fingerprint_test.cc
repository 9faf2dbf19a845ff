#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/programs/compile_case.h"
#include "tests/programs/program_text.h"

// Compiled programs must be the same as when their fingerprints were kept. docs/testing.md says how
// to look at a difference, and what to do if it is intended.
namespace terrace {
namespace {

// The number of parts that run beside each other.
constexpr int kParts = 8;

// Returns the kept lines by name of case.
std::map<std::string, std::string> kept_lines() {
  std::map<std::string, std::string> lines;
  std::ifstream file(TERRACE_FINGERPRINTS);
  for (std::string line; std::getline(file, line);) lines[line.substr(0, line.find(' '))] = line;
  return lines;
}

class ProgramFingerprints : public testing::TestWithParam<int> {};

TEST_P(ProgramFingerprints, AreThoseThatAreKept) {
  const std::vector<std::string> names = case_names();
  const std::map<std::string, std::string> kept = kept_lines();
  std::vector<std::string> different;
  int compared = 0;
  for (std::size_t i = static_cast<std::size_t>(GetParam()); i < names.size(); i += kParts) {
    const auto line = kept.find(names[i]);
    ++compared;
    if (line == kept.end() || line->second != fingerprint_line(names[i], case_text(names[i]))) {
      different.push_back(names[i]);
    }
  }
  if (different.empty()) return;
  ADD_FAILURE() << fmt::format(
      "{} of these {} programs are not as they were. The first: {}\n"
      "To see what is different from a commit: tools/compare_programs.sh COMMIT {}\n"
      "If it is meant: tools/compare_programs.sh --keep",
      different.size(), compared, different.front(), different.front());
}

INSTANTIATE_TEST_SUITE_P(Parts, ProgramFingerprints, testing::Range(0, kParts));

// The programs that are kept could all run.
TEST(ProgramCases, AreRightPrograms) {
  const auto check = [](int cases, ProgramCase (*draw)(int)) {
    for (int number = 0; number < cases; ++number) {
      const ProgramCase drawn = draw(number);
      const std::vector<std::string> problems = problems_of(compile_case(drawn));
      EXPECT_TRUE(problems.empty())
          << fmt::format("{} {}: {}", drawn.name, fmt::join(drawn.trainable, " "),
                         problems.empty() ? std::string() : problems.front());
    }
  };
  check(kProgramCases, program_case);
  check(kFrozenCases, frozen_case);
  check(kIslandCases, island_case);
  check(kNoiseCases, noise_case);
  check(kCodedCases, coded_case);
  check(kRecordedCases, recorded_case);
}

// The orders from outside interleave micro-batches and use units twice, and do so often.
TEST(ProgramCases, RecordOrdersOfTheirOwn) {
  int interleaved = 0;
  int repeated = 0;
  for (int number = 0; number < kRecordedCases; ++number) {
    const ProgramCase drawn = recorded_case(number);
    int changes = 0;
    std::map<std::pair<int, int>, int> forwards;
    for (std::size_t i = 0; i < drawn.tasks.size(); ++i) {
      const CaseTask& task = drawn.tasks[i];
      if (i > 0 && drawn.tasks[i - 1].micro_batch != task.micro_batch) ++changes;
      if (!task.is_backward) ++forwards[{task.unit, task.micro_batch}];
    }
    if (changes >= drawn.micro_batches) ++interleaved;
    if (std::ranges::any_of(forwards, [](const auto& uses) { return uses.second > 1; })) ++repeated;
  }
  EXPECT_GE(interleaved, 40);
  EXPECT_GE(repeated, 60);
}

// The drawn cases contain every kind of op, lane and tier, and contain it often.
TEST(ProgramCases, BringWhatTheyAreFor) {
  std::map<std::string, int> cases_with;
  const auto count = [&](const ProgramCase& drawn) {
    const std::string text = case_text(drawn.name);
    for (const std::string& word : all_words()) {
      if (text.find(word) != std::string::npos) ++cases_with[word];
    }
  };
  for (int number = 0; number < kProgramCases; ++number) count(program_case(number));
  for (int number = 0; number < kIslandCases; ++number) count(island_case(number));
  for (int number = 0; number < kNoiseCases; ++number) count(noise_case(number));
  for (int number = 0; number < kCodedCases; ++number) count(coded_case(number));
  for (const std::string& word : all_words()) EXPECT_GE(cases_with[word], 80) << word;
}

TEST(ProgramFingerprintFile, HasTheCasesAndNoOthers) {
  std::vector<std::string> in_file;
  for (const auto& [name, line] : kept_lines()) in_file.push_back(name);
  std::vector<std::string> names = case_names();
  std::ranges::sort(names);
  EXPECT_EQ(in_file, names) << "tools/compare_programs.sh --keep writes the file anew";
}

}  // namespace
}  // namespace terrace
