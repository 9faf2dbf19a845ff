#include "tests/e2e/readme_commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/e2e/checkout_paths.h"
#include "tests/e2e/program_run.h"

// README's commands, typed by a reader in the root of a checkout.
namespace terrace {
namespace {

namespace fs = std::filesystem;

bool is_mpirun(const std::string& command) { return command.starts_with("mpirun "); }

// The scripts in tools/ build the program, and are tried by themselves.
bool is_tool(const std::string& command) { return command.starts_with("./tools/"); }

bool is_training(const std::string& command) {
  return command.find("build/release/terrace train ") != std::string::npos;
}

// Returns the commands of README without those of tools/, and without mpirun where there is none.
std::vector<std::string> readme_commands() {
  std::ifstream file(readme_path());
  EXPECT_TRUE(file);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> commands;
  for (const std::string& command : commands_of(text)) {
    if (is_tool(command)) continue;
    const bool is_known = command.starts_with("build/release/terrace ") ||
                          command.starts_with("mkdir ") || command.starts_with("printf ") ||
                          is_mpirun(command);
    EXPECT_TRUE(is_known) << "a command of README that no test runs: " << command;
    if (is_mpirun(command) && !has_mpirun()) continue;
    commands.push_back(command);
  }
  EXPECT_GE(std::ranges::count_if(commands, is_training), has_mpirun() ? 5 : 4);
  return commands;
}

// A directory that looks like a checkout in which the program was built.
class Checkout {
 public:
  Checkout() {
    fs::create_directories(directory_.path("build/release"));
    fs::create_symlink(program_path(), directory_.path("build/release/terrace"));
  }

  // Has a shell run the command, with `settings` of the environment and nothing that lets root
  // start MPI jobs.
  Outcome run(const std::string& command, const std::vector<std::string>& settings = {}) const {
    std::vector<std::string> words = {"env", "-u", "OMPI_ALLOW_RUN_AS_ROOT", "-u",
                                      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"};
    words.insert(words.end(), settings.begin(), settings.end());
    const std::vector<std::string> shell = {"bash", "-c", "cd \"$0\" && eval \"$1\"",
                                            directory_.path(), command};
    words.insert(words.end(), shell.begin(), shell.end());
    return ProgramRun(Command{words}).wait();
  }

 private:
  TemporaryDirectory directory_;
};

TEST(Readme, CommandsAreReadAsTheyAreWritten) {
  EXPECT_THAT(commands_of("Text\n    of a paragraph\n\n    one \\\n        two\n    three\n\n"
                          "- item\n\n    four\nend\n"),
              testing::ElementsAre("one \\\n    two", "three", "four"));
}

TEST(Readme, EveryCommandWorksAsItIsWritten) {
  const Checkout checkout;
  for (const std::string& command : readme_commands()) {
    const Outcome outcome = checkout.run(command);
    EXPECT_EQ(outcome.code, 0) << command << '\n' << outcome;
  }
}

// The budgets that a step needs depend on both.
TEST(Readme, EveryTrainingFitsWithOtherInstructionsAndThreads) {
  const Checkout checkout;
  std::vector<std::string> commands = readme_commands();
  std::erase_if(commands, [](const std::string& command) { return command.starts_with("mkdir "); });
  ASSERT_FALSE(commands.empty());
  // They write the configuration, the weights and the data that later ones go on with.
  std::string before = "mkdir -p runs/drive && " + commands.at(0) + " && " + commands.at(1);
  for (const std::string& command : commands) {
    if (command.starts_with("printf ")) before += " && " + command;
  }
  const Outcome first = checkout.run(before);
  ASSERT_EQ(first.code, 0) << first;
  std::erase_if(commands, [](const std::string& command) { return !is_training(command); });
  for (const std::string& command : commands) {
    for (const std::string isa : {"AVX512_CORE_BF16", "AVX512_CORE", "AVX2"}) {
      const Outcome outcome = checkout.run(command + " --dry-run", {"DNNL_MAX_CPU_ISA=" + isa});
      EXPECT_EQ(outcome.code, 0) << isa << ": " << command << '\n' << outcome;
    }
    for (const std::string threads : {"1", "2", "8", "64", "128"}) {
      const Outcome outcome = checkout.run(command + " --dry-run --threads " + threads);
      EXPECT_EQ(outcome.code, 0) << threads << " threads: " << command << '\n' << outcome;
    }
  }
}

}  // namespace
}  // namespace terrace
