#include "tests/e2e/readme_commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "tests/e2e/checkout_paths.h"
#include "tests/e2e/program_run.h"
#include "tests/e2e/tiny_training.h"

// Commands of README and of the pages in docs/, typed by a reader in the root of a checkout.
namespace terrace {
namespace {

namespace fs = std::filesystem;

std::string text_of_file(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

bool is_mpirun(const std::string& command) { return command.starts_with("mpirun "); }

// The scripts in tools/ build the program, and are tried by themselves.
bool is_tool(const std::string& command) { return command.starts_with("./tools/"); }

bool is_training(const std::string& command) {
  return command.find("build/release/terrace train ") != std::string::npos;
}

fs::path docs_path() { return fs::path(readme_path()).parent_path() / "docs"; }

// The pages that a reader follows from the first command to the last, in an empty checkout.
enum class Followed { kReadme, kRunning };

// Returns a page's commands, except the commands in tools/, and except mpirun if there is none.
std::vector<std::string> commands_to_follow(Followed page) {
  const bool is_readme = page == Followed::kReadme;
  const fs::path path = is_readme ? fs::path(readme_path()) : docs_path() / "running.md";
  std::vector<std::string> commands;
  for (const std::string& command : commands_of(text_of_file(path))) {
    if (is_tool(command)) continue;
    const bool is_known = command.starts_with("build/release/terrace ") ||
                          command.starts_with("mkdir ") || command.starts_with("printf ") ||
                          is_mpirun(command);
    EXPECT_TRUE(is_known) << "a command of " << path << " that no test runs: " << command;
    if (is_mpirun(command) && !has_mpirun()) continue;
    commands.push_back(command);
  }
  EXPECT_GE(std::ranges::count_if(commands, is_training), is_readme ? 1 : has_mpirun() ? 7 : 6);
  return commands;
}

// Commands of docs/*.md that cannot be run here, by how they begin, and why.
constexpr std::pair<std::string_view, std::string_view> kNotRun[] = {
    {"terrace bench io|copy|", "a synopsis"},
    {"terrace bench copy|kernel|step --device cuda", "a synopsis for a GPU"},
    {"terrace bench overlap --tokens N", "takes 16 GB of memory and a quarter of an hour"},
    {"terrace profile here.toml", "remembers its measurement in the user's cache"},
    {"terrace train --model qwen", "its data are prepared by Python; tests/python has that"},
    {"mpirun -n 2 --hostfile", "needs two machines"},
    {"terrace train --model DIR --data chats.jsonl --run-dir run", "needs two machines"},
};

// Names that stand for a reader's own files, and what stands for them here.
constexpr std::pair<std::string_view, std::string_view> kReadersOwn[] = {
    {"BASE ADAPTER DIR", "model \"$(ls -d runs/model-*/final | tail -n 1)\" merged"},
    {" DIR", " model"},
    {"/usr/include", "text.txt"},
    {"/mnt/drive", "drive"},
    {"/var/lib/node_exporter/", ""},
};

bool is_of_the_program(const std::string& command) {
  return command.starts_with("terrace ") || command.starts_with("build/release/terrace ") ||
         is_mpirun(command);
}

bool can_run(const std::string& command) {
  if (is_mpirun(command) && !has_mpirun()) return false;
  if (command.find("...") != std::string::npos) return false;  // the reader completes it
  return std::ranges::none_of(
      kNotRun, [&](const auto& not_run) { return command.starts_with(not_run.first); });
}

// Returns the commands of the program on a page of docs/ that can be run.
std::vector<std::string> commands_of_page(const fs::path& page) {
  std::vector<std::string> commands = commands_of(text_of_file(page));
  std::erase_if(commands, [](const std::string& command) {
    return !is_of_the_program(command) || !can_run(command);
  });
  for (std::string& command : commands) {
    for (const auto& [theirs, ours] : kReadersOwn) {
      const std::size_t at = command.find(theirs);
      if (at != std::string::npos) command.replace(at, theirs.size(), ours);
    }
  }
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
    const std::vector<std::string> shell = {
        "bash", "-c", "cd \"$0\" && PATH=$PWD/build/release:$PATH && eval \"$1\"",
        directory_.path(), command};
    words.insert(words.end(), shell.begin(), shell.end());
    return ProgramRun(Command{words}).wait();
  }

  // Makes what the pages of docs/ take for granted: a model of 32 blocks, a run, texts, and a
  // tokenizer.
  void make_readers_files() const {
    auto config = nlohmann::json::parse(llama_config(32, 64, false));
    config["max_position_embeddings"] = 512;
    directory_.write("shape/config.json", config.dump());
    directory_.write("text.txt", generated_text(100'000, 7));
    directory_.write("qwen/tokenizer.json", small_tokenizer());
    directory_.write("turns.jsonl", "{\"text\": \"a red boat\"}\n");
    for (const char* const name : {"text/a.txt", "more.txt", "notes.txt"}) {
      directory_.write(name, "a red boat\n");
    }
    fs::create_directories(directory_.path("drive"));
    const Outcome made =
        run("terrace train --model shape --init random --data text.txt --sequence-length 64 "
            "--max-steps 1 --run-dir made && cp -r made/final model && cp -r model llama && mkdir "
            "runs && for run in a b runs/first runs/second; do cp -r made $run; done");
    EXPECT_EQ(made.code, 0) << made;
    directory_.write("llama/chat_template.jinja",
                     "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}"
                     "{% if add_generation_prompt %}<assistant>{% endif %}");
    std::string chats;
    for (int i = 0; i < 8; ++i) {
      chats += R"({"messages": [{"role": "user", "content": "boat?"}, )"
               R"({"role": "assistant", "content": "red"}]})"
               "\n";
    }
    directory_.write("chats.jsonl", chats);
  }

 private:
  TemporaryDirectory directory_;
};

// The pages, by name without .md, which have commands that can be run.
class DocsPage : public testing::TestWithParam<const char*> {};

TEST_P(DocsPage, CommandsWorkAsTheyAreWritten) {
  const Checkout checkout;
  checkout.make_readers_files();
  const auto commands = commands_of_page(docs_path() / (std::string(GetParam()) + ".md"));
  EXPECT_FALSE(commands.empty());
  for (const std::string& command : commands) {
    if (command.find("OLD.json") != std::string::npos) {
      checkout.run("terrace bench io --small --json --nvme drive >OLD.json");
    }
    const Outcome outcome = checkout.run(command);
    EXPECT_EQ(outcome.code, 0) << command << '\n' << outcome;
  }
}

constexpr const char* kPages[] = {"adding", "benchmarks", "conversations", "data",
                                  "diff",   "launching",  "plan",          "questions",
                                  "report", "sampling",   "tokenizers",    "tuning"};
INSTANTIATE_TEST_SUITE_P(Pages, DocsPage, testing::ValuesIn(kPages),
                         [](const auto& page) { return std::string(page.param); });

TEST(Docs, EveryPageWithCommandsIsTried) {
  for (const auto& entry : fs::directory_iterator(docs_path())) {
    if (entry.path().extension() != ".md" || commands_of_page(entry.path()).empty()) continue;
    if (entry.path().filename() == "running.md") continue;  // followed, above
    EXPECT_EQ(std::ranges::count(kPages, entry.path().stem().string()), 1) << entry.path();
  }
}

TEST(Readme, CommandsAreReadAsTheyAreWritten) {
  EXPECT_THAT(commands_of("Text\n    of a paragraph\n\n    one \\\n        two\n    three\n\n"
                          "- item\n\n    four\nend\n"),
              testing::ElementsAre("one \\\n    two", "three", "four"));
}

class FollowedPage : public testing::TestWithParam<Followed> {};

TEST_P(FollowedPage, EveryCommandWorksAsItIsWritten) {
  const Checkout checkout;
  for (const std::string& command : commands_to_follow(GetParam())) {
    const Outcome outcome = checkout.run(command);
    EXPECT_EQ(outcome.code, 0) << command << '\n' << outcome;
  }
}

INSTANTIATE_TEST_SUITE_P(Pages, FollowedPage,
                         testing::Values(Followed::kReadme, Followed::kRunning),
                         [](const auto& page) {
                           return page.param == Followed::kReadme ? "readme" : "running";
                         });

// The budgets that a step needs depend on both.
TEST(Running, EveryTrainingFitsWithOtherInstructionsAndThreads) {
  const Checkout checkout;
  std::vector<std::string> commands = commands_to_follow(Followed::kRunning);
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
