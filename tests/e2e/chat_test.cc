#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/e2e/tiny_training.h"

// Conversations with a model that was taught them, through a pipe.
namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

constexpr const char* kFirstAnswer = "low";
constexpr const char* kSecondAnswer = "still low";

std::string chat_model_config() {
  Json config = Json::parse(llama_config(2, 64));
  config["max_position_embeddings"] = 300;
  return config.dump();
}

Json message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

// Returns conversations of one turn and of two. The answers say which turn it is.
std::string taught_conversations() {
  std::string lines;
  for (const int turns : {1, 2, 2}) {
    for (const char* question : {"ebb?", "tide?"}) {
      Json messages = {message("user", question), message("assistant", kFirstAnswer)};
      if (turns == 2) {
        messages.push_back(message("user", question));
        messages.push_back(message("assistant", kSecondAnswer));
      }
      lines += Json{{"messages", messages}}.dump() + "\n";
    }
  }
  return lines;
}

// A model of bytes that was taught two turns with the template chatml.
class Chat : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    training = std::make_unique<TinyTraining>(chat_model_config());
    training->directory().write("chats.jsonl", taught_conversations());
    taught = training->train(
        "run", on("chats.jsonl") + Arguments{"--max-steps", "150", "--learning-rate", "5e-3"});
  }
  static void TearDownTestSuite() { training.reset(); }

  // Returns flags that train on conversations.
  static Arguments on(const std::string& file) {
    return {"--data",
            training->path(file),
            "--validation-data",
            training->path(file),
            "--chat-template",
            "chatml",
            "--sequence-length",
            "160"};
  }

  // Chats with a model. The user types `input`.
  static Outcome chat(const std::string& input, const Arguments& more = {},
                      const std::string& model = "run/final") {
    const std::string file = training->directory().write("input", input);
    const Arguments launcher = {"sh", "-c", "exec \"$@\" < \"$0\"", file};
    const Arguments arguments =
        Arguments{"chat", training->path(model), "--temperature", "0"} + more;
    return ProgramRun(arguments, {}, launcher).wait();
  }

  static std::unique_ptr<TinyTraining> training;
  static Outcome taught;
};

std::unique_ptr<TinyTraining> Chat::training;
Outcome Chat::taught;

TEST_F(Chat, IsWhatARunOnConversationsNamesAtItsEnd) {
  EXPECT_THAT(taught.output, HasSubstr(" chat " + training->path("run/final") + "\ncurves: "));
  EXPECT_THAT(taught.output, Not(HasSubstr(" sample --model")));
}

TEST_F(Chat, AnswersInTurnAndForgetsAtReset) {
  const Outcome two = chat("ebb?\n\nebb?\n");
  EXPECT_EQ(two.code, 0) << two;
  EXPECT_EQ(two.output, "low\nstill low\n") << two;
  EXPECT_EQ(two.errors, "");
  const Outcome reset = chat("tide?\n/reset\ntide?\r\ntide?");
  EXPECT_EQ(reset.output, "low\nlow\nstill low\n") << reset;
  // The kept keys and values of the first turn change nothing: sampling computes the whole prompt.
  const Outcome sampled =
      run_program({"sample", "--model", training->path("run/final"), "--temperature", "0",
                   "--answer-only", "--stop", "<|im_end|>", "--prompt",
                   "<|im_start|>user\nebb?<|im_end|>\n<|im_start|>assistant\nlow<|im_end|>\n"
                   "<|im_start|>user\nebb?<|im_end|>\n<|im_start|>assistant\n"});
  EXPECT_EQ(sampled.output, "still low\n") << sampled;
}

TEST_F(Chat, EndsAtExit) {
  const Outcome outcome = chat("/exit\nebb?\n");
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_EQ(outcome.output, "");
}

TEST_F(Chat, DoesNotSendUnknownCommands) {
  const Outcome outcome = chat("/forget all\nebb?\n/help\n");
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_EQ(outcome.output, "low\n");
  EXPECT_THAT(outcome.errors, HasSubstr("unknown command /forget: it was not sent"));
  EXPECT_THAT(outcome.errors, HasSubstr("/save FILE"));
}

TEST_F(Chat, SavesConversationsThatTrainingReads) {
  const std::string saved = training->directory().write("saved.jsonl", "{\"text\": \"a line\"}");
  const Outcome outcome =
      chat("/save " + saved + "\nebb?\n/save " + saved + "\nebb?\n/system Be brief.\n/save " +
           saved + "\n/save\n/save /nowhere/x\n");
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("the conversation has no answer yet"));
  EXPECT_THAT(outcome.errors, HasSubstr("name the file, /save FILE"));
  EXPECT_THAT(outcome.errors, HasSubstr("/nowhere/x"));
  std::istringstream lines(training->directory().read("saved.jsonl"));
  std::vector<Json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  ASSERT_EQ(rows.size(), 3U);
  const Json one = {message("user", "ebb?"), message("assistant", kFirstAnswer)};
  EXPECT_EQ(rows[1], (Json{{"messages", one}}));
  EXPECT_EQ(rows[2], (Json{{"messages",
                            {message("system", "Be brief."), one[0], one[1], one[0],
                             message("assistant", kSecondAnswer)}}}));
  training->directory().write("again.jsonl", rows[1].dump() + "\n" + rows[2].dump() + "\n");
  const Outcome again = training->train("again", on("again.jsonl") + Arguments{"--max-steps", "1"});
  EXPECT_THAT(again.output, HasSubstr("documents: 2 in "));
}

TEST_F(Chat, TheSystemTextIsPartOfTheConversation) {
  const Outcome with = chat("ebb?\n/save " + training->path("with.jsonl") + "\n/system\n/save " +
                                training->path("without.jsonl") + "\n",
                            {"--system", "Be brief."});
  EXPECT_EQ(with.code, 0) << with;
  EXPECT_THAT(training->directory().read("with.jsonl"), HasSubstr("Be brief."));
  EXPECT_THAT(training->directory().read("without.jsonl"), Not(HasSubstr("system")));
}

TEST_F(Chat, SaysWhenTheConversationIsTooLong) {
  const Outcome outcome = chat(std::string(290, 'x') + "\nebb?\n");
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_EQ(outcome.output, "low\n") << "the long question is not part of the conversation";
  EXPECT_THAT(outcome.errors, HasSubstr("has only 300 positions"));
  EXPECT_THAT(outcome.errors, HasSubstr("/reset forgets the conversation"));
  const Outcome cut = chat("ebb?\n", {"--max-new-tokens", "2"});
  EXPECT_EQ(cut.output, "lo\n");
  EXPECT_THAT(cut.errors, HasSubstr("cut off after 2 tokens (--max-new-tokens)"));
}

TEST_F(Chat, NeedsATemplate) {
  training->train("plain", {"--max-steps", "1"});
  const Outcome refused = chat("ebb?\n", {}, "plain/final");
  EXPECT_EQ(refused.code, 2) << refused;
  EXPECT_THAT(refused.errors, HasSubstr(training->path("plain/final") + ": no chat template"));
  EXPECT_THAT(refused.errors, HasSubstr("--chat-template chatml"));
  EXPECT_EQ(chat("/exit\n", {"--chat-template", "chatml"}, "plain/final").code, 0);
  const Outcome absent = chat("", {}, "absent");
  EXPECT_EQ(absent.code, 2) << absent;
  EXPECT_THAT(absent.errors, HasSubstr(training->path("absent")));
  EXPECT_EQ(chat("", {"--chat-template", "nothing-of-this-name"}).code, 2);
}

TEST_F(Chat, TakesTheTemplateOfACheckpointsRun) {
  training->train("saved",
                  on("chats.jsonl") + Arguments{"--max-steps", "2", "--stop-after-step", "1",
                                                "--model", training->path("run/final"), "--init",
                                                "weights", "--learning-rate", "1e-9"});
  const Outcome outcome = chat("ebb?\nebb?\n", {}, "saved/checkpoint-1");
  EXPECT_EQ(outcome.output, "low\nstill low\n") << outcome;
}

// An adapter's directory has the template that it was trained with. Its base has none.
TEST_F(Chat, TakesAdapters) {
  training->train("base", {"--max-steps", "1"});
  const std::string base = training->path("base/final");
  training->train("adapter",
                  on("chats.jsonl") + Arguments{"--max-steps", "4", "--model", base, "--init",
                                                "weights", "--lora-rank", "4"});
  const auto files = training->files("adapter", "final");
  EXPECT_EQ(files.count("chat_template.jinja"), 1U);
  EXPECT_EQ(files.size(), 3U);
  const Arguments few = {"--max-new-tokens", "9"};
  const Outcome alone = chat("ebb?\n", few, "adapter/final");
  EXPECT_EQ(alone.code, 0) << alone;
  const Outcome over =
      chat("ebb?\n", few + Arguments{"--adapter", training->path("adapter/final")}, "base/final");
  EXPECT_EQ(over.code, 0) << over;
  EXPECT_EQ(over.output, alone.output);
  const Outcome wrong = chat("ebb?\n", {"--adapter", base}, "base/final");
  EXPECT_EQ(wrong.code, 2) << wrong;
  EXPECT_THAT(wrong.errors, HasSubstr("--adapter " + base + ": not an adapter"));
  const Arguments sample = {"sample", "--prompt", "ebb", "--temperature", "0", "--model"};
  const Outcome sampled = run_program(sample + Arguments{training->path("adapter/final")});
  EXPECT_EQ(sampled.code, 0) << sampled;
  EXPECT_EQ(
      run_program(sample + Arguments{base, "--adapter", training->path("adapter/final")}).output,
      sampled.output);
}

// --sample-prompts: a run shows the answers of the model that it trains.
TEST_F(Chat, ARunAnswersPromptsAtEachEvaluation) {
  constexpr const char* kPrompt = "<|im_start|>user\ntide?<|im_end|>\n<|im_start|>assistant\n";
  const std::string prompts = training->directory().write(
      "prompts.jsonl", Json{{"prompt", kPrompt}}.dump() + "\n\n" +
                           Json{{"messages", {message("user", "ebb?")}}}.dump() + "\n");
  const Arguments four =
      on("chats.jsonl") + Arguments{"--model",         training->path("run/final"),
                                    "--init",          "weights",
                                    "--learning-rate", "1e-9",
                                    "--max-steps",     "4",
                                    "--eval-every",    "2"};
  training->train("silent", four);
  const Arguments asked = four + Arguments{"--sample-prompts", prompts};
  const Outcome outcome = training->train("asked", asked);
  EXPECT_THAT(outcome.output, HasSubstr("sample after step 2: \"ebb?\" -> \"low\"\n"));
  EXPECT_EQ(training->rows("asked"), training->rows("silent"));
  const std::string samples = training->directory().read("asked/samples.jsonl");
  std::istringstream lines(samples);
  std::vector<Json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0]["step"], 2);
  EXPECT_EQ(rows[0]["prompt"], kPrompt);
  EXPECT_THAT(rows[0]["text"].get<std::string>(), testing::StartsWith("low<|im_end|>"));
  EXPECT_EQ(rows[3], (Json{{"step", 4}, {"prompt", "ebb?"}, {"text", kFirstAnswer}}));

  training->train("parts", asked + Arguments{"--stop-after-step", "3"});
  training->train("parts", asked + Arguments{"--resume", "auto"});
  EXPECT_EQ(training->directory().read("parts/samples.jsonl"), samples);
  // An adapter answers together with its base.
  training->train("adapted", asked + Arguments{"--lora-rank", "2"} + training->nvme() +
                                 Arguments{"--place-parameters", "nvme"});
  EXPECT_THAT(training->directory().read("adapted/samples.jsonl"), HasSubstr("\"low\"}"));
}

TEST_F(Chat, PromptsThatCannotBeAnsweredAreRefused) {
  const auto refused = [](const std::string& file, const Arguments& more = {}) {
    const Outcome outcome = run_program(training->command(
        "refused", Arguments{"--max-steps", "1", "--sample-prompts", file} + more));
    EXPECT_NE(outcome.code, 0) << outcome;
    return outcome;
  };
  const std::string text = training->directory().write("prompts.txt", "the tide\n");
  EXPECT_THAT(refused(training->path("none")).errors, HasSubstr("not a file"));
  EXPECT_THAT(refused(training->directory().write("empty", "\n")).errors, HasSubstr("no prompts"));
  EXPECT_THAT(refused(training->directory().write("long", std::string(301, 'x'))).errors,
              HasSubstr("long:1: the prompt has 301 tokens"));
  EXPECT_EQ(refused(training->directory().write("bad", "{\"prompt\": ")).code, 5);
  EXPECT_THAT(refused(training->directory().write("other", "{\"text\": \"x\"}")).errors,
              HasSubstr("\"prompt\""));
  EXPECT_THAT(refused(text, {"--local-ranks", "2"}).errors,
              HasSubstr("--sample-prompts with 2 ranks"));
  // The least budget that training needs has no room for the prompts.
  const std::string before = "raise --host-memory to ";
  const Outcome none =
      run_program(training->command("refused", {"--max-steps", "1", "--host-memory", "4KiB"}));
  const std::size_t at = none.errors.find(before);
  ASSERT_NE(at, std::string::npos) << none;
  std::string least = none.errors.substr(at + before.size());
  least.resize(least.find(" or more"));
  std::erase(least, ' ');
  const Outcome small = refused(text, {"--host-memory", least});
  EXPECT_EQ(small.code, 3) << small;
  EXPECT_THAT(small.errors, HasSubstr("--sample-prompts needs"));
  EXPECT_FALSE(std::filesystem::exists(training->path("refused")));
}

// The first Ctrl-C stops the answer. The conversation goes on.
TEST_F(Chat, AnInterruptStopsAnAnswer) {
  training->train("untaught", {"--max-steps", "1"});
  const std::string saved = training->path("interrupted.jsonl");
  const std::string file = training->directory().write("long_input", "ebb?\n/save " + saved + "\n");
  const Arguments launcher = {"sh", "-c", "exec \"$@\" < \"$0\"", file};
  Json config = Json::parse(training->directory().read("untaught/final/config.json"));
  config["max_position_embeddings"] = 200'000;  // so that the answer takes long
  training->directory().write("untaught/final/config.json", config.dump());
  ProgramRun run({"chat", training->path("untaught/final"), "--chat-template", "chatml",
                  "--max-new-tokens", "100000"},
                 {}, launcher);
  ASSERT_TRUE(run.wait_until([&] { return run.output().size() > 20; }));
  run.send(SIGINT);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 0) << outcome;
  const Json conversation = Json::parse(training->directory().read("interrupted.jsonl"));
  EXPECT_EQ(conversation["messages"].size(), 2U);
  EXPECT_THAT(outcome.errors, Not(HasSubstr("cut off")));
}

}  // namespace
}  // namespace terrace
