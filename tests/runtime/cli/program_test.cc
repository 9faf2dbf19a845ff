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

// Runs the program in a shell with these arguments.
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

TEST(Program, CommandsOfOtherProgramsGetAHintByMeaning) {
  const std::vector<std::pair<std::string, std::string>> hints = {
      {"generate", "here it is terrace sample"},
      {"infer", "here it is terrace sample"},
      {"finetune", "here it is terrace train"},
      {"fine_tune", "here it is terrace train"},
      {"sft", "here it is terrace train"},
      {"info", "here it is terrace inspect"},
      {"version", "terrace --version"},
      {"eval", "no command evaluates only"},
      {"serve", "there is no server"},
      {"convert", "terrace export writes a checkpoint"},
      {"quantize", "--base-quantization nf4"},
      {"upload", "nothing is uploaded"},
      {"resume", "--resume auto"},
      {"--model", "the command comes first"}};
  for (const auto& [command, hint] : hints) {
    const Outcome outcome = run_program(command);
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_THAT(outcome.errors, testing::HasSubstr("unknown command '" + command + "'"));
    EXPECT_THAT(outcome.errors, testing::HasSubstr(hint));
  }
  EXPECT_THAT(run_program("plans").errors, testing::HasSubstr("did you mean plan?"));
  EXPECT_THAT(run_program("abcdefgh").errors, testing::Not(testing::HasSubstr("did you mean")));
}

TEST(Program, DataThatIsNotThereExitsWithTwo) {
  const TemporaryDirectory directory;
  const Outcome outcome =
      run_program("train --model nano --max-steps 1 --data " + directory.path("none") +
                  " --run-dir " + directory.path("run"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, testing::HasSubstr(directory.path("none")));
}

// Writes a text of some kilobytes into the directory; returns its path.
std::string write_text(const TemporaryDirectory& directory) {
  std::string text;
  for (int line = 0; line < 200; ++line) text += "line " + std::to_string(line) + " of the text\n";
  return directory.write("text.txt", text);
}

TEST(Program, TrainsAndContinuesAText) {
  const TemporaryDirectory directory;
  const Outcome training = run_program(
      "train --model nano --max-steps 2 --sequence-length 32 --threads 1 --progress on "
      "--data " +
      write_text(directory) + " --run-dir " + directory.path("run"));
  ASSERT_EQ(training.code, 0) << training.errors;
  EXPECT_THAT(training.output, testing::Not(testing::HasSubstr("\r")));
  EXPECT_THAT(training.output, testing::HasSubstr("progress: step 2/2"));
  EXPECT_THAT(directory.read("run/config.toml"), testing::HasSubstr("sequence_length = 32\n"));
  const std::string sample = "sample --prompt 'line ' --max-new-tokens 5 --temperature 0 --model " +
                             directory.path("run/final");
  const Outcome text = run_program(sample);
  EXPECT_EQ(text.code, 0) << text.errors;
  EXPECT_EQ(text.output.size(), std::string("line 12345\n").size());
  EXPECT_THAT(text.output, testing::StartsWith("line "));
  EXPECT_EQ(run_program(sample).output, text.output);
}

TEST(Program, SampleChoosesAndStopsAsItsFlagsSay) {
  const TemporaryDirectory directory;
  const Outcome training = run_program(
      "train --model nano --max-steps 40 --learning-rate 3e-3 --threads 1 "
      "--sequence-length 32 --micro-batch-size 4 --data " +
      write_text(directory) + " --run-dir " + directory.path("run"));
  ASSERT_EQ(training.code, 0) << training.errors;
  const std::string model = " --model " + directory.path("run/final");
  const std::string drawn = "sample --prompt 'line ' --max-new-tokens 40 --seed 3" + model;
  const Outcome whole = run_program(drawn + " --threads 1");
  ASSERT_EQ(whole.code, 0) << whole.errors;
  EXPECT_EQ(run_program(drawn + " --threads 2").output, whole.output);
  const std::string prompt = directory.write("prompt.txt", "line ");
  const std::string of_file = "sample --max-new-tokens 40 --seed 3" + model + " --prompt-file ";
  EXPECT_EQ(run_program(of_file + prompt).output, whole.output);
  // If only one token may be drawn, by number or by likelihood, it is the likeliest one.
  const std::string likeliest = run_program(drawn + " --temperature 0").output;
  EXPECT_NE(likeliest, whole.output);
  EXPECT_EQ(run_program(drawn + " --top-k 1").output, likeliest);
  EXPECT_EQ(run_program(drawn + " --top-p 1e-9").output, likeliest);

  const std::string stopping =
      drawn + " --temperature 0 --stop never --stop '" + likeliest.substr(15, 2) + "'";
  const std::string until = likeliest.substr(0, likeliest.find(likeliest.substr(15, 2), 5));
  EXPECT_EQ(run_program(stopping).output, until + "\n");
  const Outcome told = run_program(stopping + " --json");
  ASSERT_EQ(told.code, 0) << told.errors;
  const auto document = nlohmann::json::parse(told.output);
  EXPECT_EQ(document["schema"], "terrace.sample/1");
  const auto result = document["results"][0];
  EXPECT_EQ(result["end"], "stop_text");
  EXPECT_EQ(result["prompt"], "line ");
  EXPECT_EQ(result["text"], until.substr(5));
  EXPECT_EQ(result["prompt_tokens"], 5);
}

// Runs a training that does not end by itself, sends it a signal after its first step, and returns
// its exit code.
int code_after_signal(const TemporaryDirectory& directory, const std::string& signal) {
  const std::string run = directory.path("run-" + signal);
  // The process that starts the tests may ignore a signal, as nohup does, and then the program
  // would ignore it too.
  const std::string command = "env --default-signal '" TERRACE_PROGRAM
                              "' train --model nano --max-steps 1_000_000_000 --sequence-length 32 "
                              "--threads 1 --data " +
                              write_text(directory) + " --run-dir " + run +
                              " >/dev/null 2>&1 & "
                              "until [ -s " +
                              run +
                              "/metrics.jsonl ]; do kill -0 $! || break; sleep 0.05; done; "
                              "kill -" +
                              signal + " $!; wait $!";
  const std::string script = directory.write("run.sh", command);
  const int status = std::system(("bash " + script).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Program, SavesOnSignalsThatAskForIt) {
  const TemporaryDirectory directory;
  for (const std::string signal : {"USR1", "TERM", "HUP"}) {
    EXPECT_EQ(code_after_signal(directory, signal), 75) << signal;
    std::string saved;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path("run-" + signal))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("checkpoint-")) saved = entry.path().string();
    }
    EXPECT_EQ(run_program("sample --prompt x --max-new-tokens 3 --model '" + saved + "'").code, 0)
        << signal;
  }
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
  EXPECT_THAT(names, testing::IsSupersetOf(
                         {"cpu", "cpu_features", "cores", "threads", "memory", "huge_pages",
                          "memlock", "numa", "io_uring", "peer_memory", "libraries", "gpu",
                          "directory", "direct_io", "file_system", "free_space", "drive_speed"}));
  // The file that was used to try out the drive is gone.
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Program, DoctorRefusesADirectoryThatIsNotThere) {
  const TemporaryDirectory directory;
  const Outcome outcome = run_program("doctor --nvme " + directory.path("none"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, testing::HasSubstr("--nvme"));
}

TEST(Program, TokenizeTakesPathsBetweenFlags) {
  const Outcome help = run_program("tokenize --help");
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, testing::HasSubstr("Usage: terrace tokenize PATH... [OPTIONS]"));
  EXPECT_THAT(help.output, testing::HasSubstr("continue after an interruption"));

  const TemporaryDirectory directory;
  const std::string output = " --output " + directory.path("out") + " ";
  const Outcome outcome =
      run_program("tokenize " + directory.write("a", "ab") + " --tokenizer bytes " +
                  directory.write("b", "c") + output + directory.write("d", "d"));
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_EQ(directory.read("out"), std::string("a\0b\0c\0d\0", 8));
  EXPECT_THAT(outcome.output, testing::HasSubstr("4 tokens of 3 documents"));

  const Outcome no_path = run_program("tokenize --tokenizer bytes" + output);
  EXPECT_EQ(no_path.code, 2);
  EXPECT_THAT(no_path.errors, testing::HasSubstr("PATH is missing"));
  const Outcome unknown = run_program("tokenize --tokenizr bytes" + output + directory.path("a"));
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.errors, testing::HasSubstr("did you mean --tokenizer?"));
}

TEST(Program, TokenizeKeepsItsInput) {
  const TemporaryDirectory directory;
  const std::string text = directory.write("h.txt", "text");
  const Outcome itself = run_program("tokenize --tokenizer bytes --output " + text + " " + text);
  EXPECT_EQ(itself.code, 2);
  EXPECT_THAT(itself.errors, testing::HasSubstr("would overwrite the input " + text));
  EXPECT_EQ(directory.read("h.txt"), "text");
  const std::string tokenizer = directory.write("tokenizer.json", "{}");
  const Outcome replaces = run_program("tokenize --tokenizer " + directory.path() + " --output " +
                                       tokenizer + " " + text);
  EXPECT_EQ(replaces.code, 2);
  EXPECT_THAT(replaces.errors, testing::HasSubstr("would overwrite the input " + tokenizer));

  const std::string of_directory = "tokenize --tokenizer bytes --output " +
                                   directory.path("d/o.u16") + " " + directory.path("d");
  directory.write("d/a", "ab");
  for (int run = 0; run < 2; ++run) {
    EXPECT_EQ(run_program(of_directory).code, 0);
    EXPECT_EQ(directory.read("d/o.u16"), std::string("a\0b\0", 4));
  }
}

TEST(Program, SampleRefusesWhatItCannotUse) {
  const TemporaryDirectory directory;
  EXPECT_EQ(run_program("sample --prompt x").code, 2);
  EXPECT_EQ(run_program("sample --model nano --prompt x").code, 2);
  EXPECT_EQ(run_program("sample --prompt '' --model " + directory.path()).code, 2);
  for (const char* flag :
       {"--temperature -1", "--top-k -1", "--top-k x", "--top-p 0", "--top-p 1.5", "--stop ''",
        "--threads 0", "--max-new-tokens 0", "--prompt-file x", "--seed -1", "--top-n 3"}) {
    const Outcome outcome =
        run_program("sample --prompt x " + std::string(flag) + " --model " + directory.path());
    EXPECT_EQ(outcome.code, 2) << flag;
    const std::string name = std::string(flag).substr(0, std::string(flag).find(' '));
    EXPECT_THAT(outcome.errors, testing::HasSubstr(name));
  }
  const std::string from_file = "sample --model " + directory.path() + " --prompt-file ";
  EXPECT_THAT(run_program(from_file + directory.path("none")).errors,
              testing::HasSubstr("cannot be read"));
  EXPECT_THAT(run_program(from_file + "-").errors, testing::HasSubstr("--prompt-file -: is empty"));
  EXPECT_THAT(run_program(from_file + directory.write("empty", "")).errors,
              testing::HasSubstr("is empty"));
  const Outcome help = run_program("sample --help");
  EXPECT_EQ(help.code, 0);
  for (const char* flag :
       {"\nModel:\n", "\nText:\n", "\nChoice:\n", "\nMachine:\n", "\nOutput:\n", "--model",
        "--prompt", "--prompt-file", "--max-new-tokens", "--stop", "--temperature", "--top-k",
        "--top-p", "--seed", "--threads", "--json"}) {
    EXPECT_THAT(help.output, testing::HasSubstr(flag));
  }
}

}  // namespace
}  // namespace terrace
