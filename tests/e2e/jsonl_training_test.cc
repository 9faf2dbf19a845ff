#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/e2e/tiny_training.h"

// Training on prompts and completions, by the program itself.
namespace terrace {
namespace {

using testing::HasSubstr;

// Returns lines of a conversation's turns: words, and the same words backwards.
std::string turns(std::size_t count, unsigned seed) {
  constexpr const char* kWords[] = {"red", "blue", "small", "big", "cat", "dog", "runs", "sleeps"};
  std::mt19937 random(seed);
  std::string lines;
  for (std::size_t i = 0; i < count; ++i) {
    std::string forward;
    std::string backward;
    for (std::size_t word = 0; word < 1 + random() % 5; ++word) {
      const std::string next = kWords[random() % 8];
      forward += next + ' ';
      backward.insert(0, next + ' ');
    }
    lines += nlohmann::json{{"prompt", forward + "? "}, {"completion", backward + ".\n"}}.dump();
    lines += '\n';
  }
  return lines;
}

class JsonlTraining : public testing::Test {
 protected:
  JsonlTraining() {
    training_.directory().write("turns.jsonl", turns(120, 1));
    training_.directory().write("held.jsonl", turns(30, 2));
  }

  // Returns flags that train on the turns instead of the text. A later flag wins over an earlier
  // one.
  Arguments on_turns(const Arguments& more = {}) const {
    return Arguments{"--data",
                     training_.path("turns.jsonl"),
                     "--validation-data",
                     training_.path("held.jsonl"),
                     "--sequence-length",
                     "48",
                     "--precision",
                     "fp32"} +
           more;
  }

  TinyTraining training_;
};

const Arguments kSteps = {"--max-steps", "8"};

TEST_F(JsonlTraining, LearnsAndSaysWhatItTrainsOn) {
  const Outcome outcome = training_.train("run", on_turns({"--max-steps", "30"}));
  EXPECT_THAT(outcome.output, HasSubstr("documents: 120 in "));
  EXPECT_THAT(outcome.output, HasSubstr("% of the tokens are trained on"));
  EXPECT_THAT(outcome.output, HasSubstr("the first sample begins:\n  not trained on  \""));
  EXPECT_THAT(outcome.output, HasSubstr("\n  trained on      \""));
  const auto rows = training_.rows("run");
  EXPECT_LT(rows.back().columns.at("loss"), rows.front().columns.at("loss") - 0.5);
  const auto run = nlohmann::json::parse(training_.directory().read("run/run.json"));
  EXPECT_EQ(run.at("data").at("documents"), 120);
  EXPECT_EQ(run.at("data").at("packing"), "documents");
  EXPECT_GT(run.at("data").at("trained_share"), 0.3);
  EXPECT_LT(run.at("data").at("trained_share"), 0.7);
}

TEST_F(JsonlTraining, TakesTheTokenizerOfTheModelOrTheOneThatIsNamed) {
  training_.train("bytes", on_turns(kSteps));
  training_.directory().write("other/tokenizer.json", small_tokenizer());
  const std::string tokenizer = training_.path("other/tokenizer.json");
  const Outcome named =
      training_.train("named", on_turns(kSteps) + Arguments{"--tokenizer", tokenizer});
  EXPECT_THAT(named.output, HasSubstr("the first sample begins:\n  not trained on  \""));
  EXPECT_NE(training_.rows("named"), training_.rows("bytes"));
  EXPECT_EQ(training_.directory().read("named/final/tokenizer.json"), small_tokenizer());

  training_.directory().write("model/tokenizer.json", small_tokenizer());
  training_.train("auto", on_turns(kSteps));
  EXPECT_EQ(training_.rows("auto"), training_.rows("named"));
  EXPECT_EQ(training_.directory().read("auto/final/tokenizer.json"), small_tokenizer());
  training_.train("still_bytes", on_turns(kSteps) + Arguments{"--tokenizer", "bytes"});
  EXPECT_EQ(training_.rows("still_bytes"), training_.rows("bytes"));

  // Text that is only validated on has the same ids.
  const std::string held = training_.directory().write("held.txt", generated_text(5'000, 3));
  training_.train("mixed",
                  kSteps + Arguments{"--data", training_.path("turns.jsonl"), "--sequence-length",
                                     "48", "--precision", "fp32", "--validation-data", held});
  EXPECT_EQ(training_.rows("mixed"), training_.rows("auto"));
  training_.directory().write("model/tokenizer.json", "{}");
  EXPECT_EQ(run_program(training_.command("damaged", on_turns(kSteps))).code, 5);
}

TEST_F(JsonlTraining, GoesOnWhereItStopped) {
  training_.train("whole", on_turns(kSteps));
  training_.train("run", on_turns(kSteps) + Arguments{"--stop-after-step", "3"});
  training_.train("run", on_turns(kSteps) + Arguments{"--resume", "auto"});
  training_.expect_same("run", "whole", "final");
  const Outcome other = run_program(training_.command(
      "run", on_turns(kSteps) + Arguments{"--resume", "auto", "--packing", "none"}));
  EXPECT_EQ(other.code, 2) << other;
}

TEST_F(JsonlTraining, RanksTrainAsOne) {
  const Arguments four = kSteps + Arguments{"--gradient-accumulation-steps", "4"};
  const Arguments two = kSteps + Arguments{"--gradient-accumulation-steps", "2"};
  training_.train("one", on_turns(four));
  training_.train("stages",
                  on_turns(four) + Arguments{"--local-ranks", "2", "--pipeline-parallel", "2"});
  training_.expect_same("stages", "one", "final");
  training_.train("data", on_turns(two) + Arguments{"--local-ranks", "2", "--zero-stage", "3"});
  training_.train("tensor",
                  on_turns(four) + Arguments{"--local-ranks", "2", "--tensor-parallel", "2"});
  // These are the bounds of local_ranks_test.cc and tensor_ranks_test.cc.
  expect_near(training_.rows("data"), training_.rows("one"), 1e-4);
  expect_near(training_.rows("tensor"), training_.rows("one"), 1e-3);
  training_.train("recomputed", on_turns(four) + Arguments{"--recompute", "full",
                                                           "--micro-batch-order", "layer-major"});
  training_.expect_same("recomputed", "one", "final");
}

// One process tokenizes, and the other reads what that one has written.
TEST_F(JsonlTraining, ProcessesTrainAsThreads) {
  if (!has_mpirun()) GTEST_SKIP() << "this build has no MPI";
  training_.train("threads", on_turns(kSteps) + Arguments{"--local-ranks", "2"});
  ProgramRun run(training_.command("processes", on_turns(kSteps)), {}, mpirun(2));
  const Outcome outcome = run.wait();
  ASSERT_EQ(outcome.code, 0) << outcome;
  training_.expect_same("processes", "threads", "final");
}

// With this learning rate updates change no parameter.
TEST_F(JsonlTraining, PackingDoesNotChangeTheLossOfTheDocuments) {
  const Arguments still = {"--max-steps", "1", "--learning-rate", "1e-30", "--eval-samples", "0"};
  const auto loss = [&](const std::string& packing) {
    training_.train(packing, on_turns(still) + Arguments{"--packing", packing});
    return training_.rows(packing).back().columns.at("validation_loss");
  };
  const double documents = loss("documents");
  EXPECT_NEAR(documents / loss("none"), 1, 1e-6);              // sums of another order
  EXPECT_GT(std::abs(documents / loss("windows") - 1), 1e-5);  // windows see other documents
}

TEST_F(JsonlTraining, ADryRunHasTheCounts) {
  const Outcome outcome =
      run_program(training_.command("dry", on_turns({"--max-steps", "1", "--dry-run", "--json"})));
  ASSERT_EQ(outcome.code, 0) << outcome;
  const auto results = nlohmann::json::parse(outcome.output).at("results");
  const auto data = std::ranges::find_if(
      results, [](const nlohmann::json& result) { return result.at("name") == "data"; });
  ASSERT_NE(data, results.end());
  EXPECT_EQ(data->at("documents"), 120);
}

TEST_F(JsonlTraining, BadLinesAreNamed) {
  struct Bad {
    const char* line;
    int code;
    const char* says;
  };
  for (const auto& [line, code, says] : std::initializer_list<Bad>{
           {"{\"text\": \"cut", 5, "bad.jsonl:2: not a JSON object"},
           {"{\"text\": \"\xff\"}", 5, "bad.jsonl:2: byte 0xff at offset 27"},
           {"{\"messages\": []}", 2, "bad.jsonl:2: key \"messages\" has no message"},
           {"{\"body\": \"x\"}", 2, "bad.jsonl:2: has neither \"messages\" nor \"text\""},
           {"{\"input_ids\": [256]}", 2, "bad.jsonl:2: key \"input_ids\" has 256 at 0"},
       }) {
    training_.directory().write("bad.jsonl", "{\"text\": \"good\"}\n" + std::string(line) + "\n");
    for (const char* ranks : {"1", "2"}) {
      const Outcome outcome =
          run_program(training_.command("refused", {"--data", training_.path("bad.jsonl"),
                                                    "--max-steps", "1", "--local-ranks", ranks}));
      EXPECT_EQ(outcome.code, code) << outcome;
      EXPECT_THAT(outcome.errors, HasSubstr(says));
    }
    EXPECT_FALSE(training_.directory().has("refused"));
  }
}

TEST_F(JsonlTraining, MasksOfOneKindAreRefused) {
  training_.directory().write("empty.jsonl", R"({"prompt": "", "completion": "abc"})");
  const Outcome outcome = run_program(
      training_.command("refused", {"--data", training_.path("empty.jsonl"), "--max-steps", "1"}));
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("every token of the data is trained on"));
  EXPECT_THAT(outcome.errors, HasSubstr("--loss-on all"));
}

// dynamic and longrope rotate longer documents differently. Only a document's own length counts,
// not the documents or the padding around it.
TEST(JsonlDocuments, HaveOneLossHoweverTheyArePacked) {
  std::string lines;
  for (int i = 0; i < 16; ++i) {
    nlohmann::json ids = nlohmann::json::array();
    for (int j = 0; j < 9; ++j) ids.push_back((i * 37 + j * j * 11) % 250);
    lines += nlohmann::json{{"input_ids", ids}}.dump() + "\n";
  }
  nlohmann::json config = nlohmann::json::parse(llama_config(1, 32));
  config["max_position_embeddings"] = 16;
  for (const char* scaling : {R"({"rope_type":"dynamic","factor":4.0})",
                              R"({"rope_type":"longrope","original_max_position_embeddings":16,
            "short_factor":[1,1,1,1],"long_factor":[8,8,8,8]})"}) {
    config["rope_scaling"] = nlohmann::json::parse(scaling);
    const auto head_width =
        config["hidden_size"].get<int>() / config["num_attention_heads"].get<int>();
    ASSERT_EQ(config.value("head_dim", head_width), 8) << config;
    const TinyTraining training(config.dump());
    training.directory().write("documents.jsonl", lines);
    const auto loss_of = [&](const char* packing, const char* length, const char* sequences) {
      const std::string run = std::string(packing) + length;
      training.train(run, {"--data", training.path("documents.jsonl"), "--packing", packing,
                           "--sequence-length", length, "--micro-batch-size", sequences,
                           "--gradient-accumulation-steps", "1", "--max-steps", "1",
                           "--validation-fraction", "0", "--precision", "fp32"});
      return training.rows(run).at(0).columns.at("loss");
    };
    const double alone = loss_of("none", "8", "16");
    EXPECT_NEAR(loss_of("documents", "64", "2"), alone, 1e-9);
    EXPECT_NEAR(loss_of("none", "64", "16"), alone, 1e-9);
  }
}

}  // namespace
}  // namespace terrace
