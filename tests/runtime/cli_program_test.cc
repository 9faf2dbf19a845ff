#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

struct Outcome {
  int code = -1;
  std::string output;
  std::string errors;
};

// Runs the program by a shell, with what follows its name.
Outcome run_program(const std::string& arguments, const std::string& environment = "") {
  const TemporaryDirectory directory;
  const std::string command = environment + " '" TERRACE_PROGRAM "' " + arguments + " >" +
                              directory.path("out") + " 2>" + directory.path("err") + " </dev/null";
  const int status = std::system(command.c_str());
  Outcome outcome;
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  outcome.output = directory.read("out");
  outcome.errors = directory.read("err");
  return outcome;
}

TEST(Program, VersionAndHelp) {
  const Outcome version = run_program("--version");
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.output, testing::ContainsRegex("^terrace [0-9]+\\.[0-9]+\\.[0-9]+\n$"));
  const Outcome help = run_program("--help");
  EXPECT_EQ(help.code, 0);
  for (const char* command : {"train", "plan", "bench", "doctor", "sample", "export", "inspect"}) {
    EXPECT_THAT(help.output, testing::HasSubstr("\n  " + std::string(command) + " ")) << command;
  }
}

TEST(Program, UsageErrorsExitWithTwo) {
  const Outcome nothing = run_program("");
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.errors, testing::HasSubstr("Usage:"));
  const Outcome unknown = run_program("trian");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.errors, testing::HasSubstr("terrace: error: unknown command 'trian'"));
  EXPECT_THAT(unknown.errors, testing::HasSubstr("did you mean train?"));
  const Outcome flag = run_program("train --modle nano");
  EXPECT_EQ(flag.code, 2);
  EXPECT_THAT(flag.errors, testing::HasSubstr("did you mean --model?"));
  EXPECT_EQ(flag.output, "");
}

TEST(Program, CommandsOfTheInterfaceThatAreNotBuiltSaySo) {
  for (const std::string command : {"plan", "bench", "export", "inspect"}) {
    const Outcome outcome = run_program(command + " --json");
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_THAT(outcome.errors, testing::HasSubstr("terrace " + command + " is not built yet"));
  }
}

TEST(Program, MoreRanksOfALauncherAreRefused) {
  const Outcome outcome =
      run_program("train --model nano --data /dev/null --max-steps 1", "OMPI_COMM_WORLD_SIZE=2");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, testing::HasSubstr("2 ranks: more than one rank is not built yet"));
}

TEST(Program, DataThatIsNotThereExitsWithTwo) {
  const TemporaryDirectory directory;
  const Outcome outcome =
      run_program("train --model nano --max-steps 1 --data " + directory.path("none") +
                  " --run-dir " + directory.path("run"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, testing::HasSubstr(directory.path("none")));
}

TEST(Program, TrainHelpIsGrouped) {
  const Outcome help = run_program("train --help");
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, testing::HasSubstr("\nDevice and tiers:\n"));
  EXPECT_THAT(help.output, testing::HasSubstr("--place-optimizer"));
}

TEST(Program, DoctorTellsEveryPart) {
  const TemporaryDirectory directory;
  const Outcome text = run_program("doctor --nvme " + directory.path());
  ASSERT_EQ(text.code, 0) << text.errors;
  const Outcome outcome = run_program("doctor --json --nvme " + directory.path());
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  const auto document = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(document.at("schema"), "terrace.doctor/1");
  EXPECT_TRUE(document.at("version").is_string());
  EXPECT_GT(document.at("host").at("memory_bytes").get<std::size_t>(), 0U);
  std::vector<std::string> names;
  for (const auto& result : document.at("results")) {
    names.push_back(result.at("name"));
    const std::string status = result.at("status");
    EXPECT_TRUE(status == "ok" || status == "warn") << status;
    EXPECT_EQ(result.at("remedy").get<std::string>().empty(), status == "ok") << names.back();
    EXPECT_FALSE(result.at("value").get<std::string>().empty()) << names.back();
    EXPECT_THAT(text.output, testing::HasSubstr(names.back()));
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"cpu", "cpu_features", "cores", "memory", "huge_pages",
                                            "memlock", "numa", "io_uring", "direct_io",
                                            "free_space", "libraries", "gpu"}));
  // The file that was tried out is gone.
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Program, DoctorRefusesADirectoryThatIsNotThere) {
  const TemporaryDirectory directory;
  const Outcome outcome = run_program("doctor --nvme " + directory.path("none"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, testing::HasSubstr("--nvme"));
}

TEST(Program, SampleRefusesWhatItCannotUse) {
  const TemporaryDirectory directory;
  EXPECT_EQ(run_program("sample --prompt x").code, 2);
  EXPECT_EQ(run_program("sample --model nano --prompt x").code, 2);
  EXPECT_EQ(run_program("sample --prompt '' --model " + directory.path()).code, 2);
  EXPECT_EQ(run_program("sample --prompt x --temperature -1 --model " + directory.path()).code, 2);
  const Outcome help = run_program("sample --help");
  EXPECT_EQ(help.code, 0);
  for (const char* flag : {"--model", "--prompt", "--max-new-tokens", "--temperature", "--seed"}) {
    EXPECT_THAT(help.output, testing::HasSubstr(flag));
  }
}

}  // namespace
}  // namespace terrace
