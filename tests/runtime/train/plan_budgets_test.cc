#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string_view>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "runtime/config/train_config.h"
#include "runtime/plan/least_budget.h"
#include "runtime/train/trainer.h"
#include "tests/runtime/temporary_directory.h"
#include "tests/sanitized.h"

// Makes dry runs of random steps with random budgets. Any budget that is larger than an accepted
// one must be accepted. The least budget that a refusal names must be accepted, and a clearly
// smaller one refused, with a reason.
namespace terrace {
namespace {

#ifdef TERRACE_EVERY_SHAPE
constexpr unsigned kShapes = 300;
#else
constexpr unsigned kShapes = kSanitized ? 2 : 12;
#endif
constexpr std::array<int, 10> kPercents = {60, 90, 103, 112, 127, 150, 170, 200, 250, 400};

class HeardConsole final : public TrainConsole {
 public:
  void opened(const std::string& /*run_dir*/) override {}
  void say(const std::string& text) override { said += text; }
  void step(const StepProgress&) override {}
  void begin_phase(const std::string&) override {}
  void advance_phase(double) override {}
  void end_phase() override {}

  std::string said;
};

struct Budgets {
  std::size_t device = 0;  // 0: the step has no device
  std::size_t host = 0;
};

// A random step, given by flags that people might use.
class DrawnStep {
 public:
  explicit DrawnStep(unsigned seed) : random_(seed) {
    write_model();
    draw_flags();
  }

  bool has_device() const { return has_device_; }
  std::string text() const { return fmt::format("{}", fmt::join(flags_, " ")); }

  // Returns the reason why the step is refused, or an empty text if it is accepted.
  std::string refusal(const Budgets& budgets) const { return run(budgets, {}).refusal; }

  // Returns the least budgets that a dry run names when the given budgets are too small.
  Budgets least() const {
    const Outcome outcome = run({1 * kKiB, 1 * kKiB}, {"--json"});
    Budgets least;
    const nlohmann::json document = nlohmann::json::parse(outcome.said);
    for (const auto& row : document.at("results")) {
      if (row.at("name") == "host") least.host = row.at("least_bytes");
      if (row.at("name") == "device") least.device = row.at("least_bytes");
    }
    return least;
  }

 private:
  struct Outcome {
    std::string said;
    std::string refusal;
  };

  bool one_in(unsigned n) { return random_() % n == 0; }
  std::string any(const std::vector<std::string>& names) {
    return names.at(random_() % names.size());
  }
  unsigned between(unsigned least, unsigned most) {
    return least + static_cast<unsigned>(random_() % (most - least + 1));
  }
  void add(const std::string& flag, const std::string& value) {
    flags_.push_back(flag);
    flags_.push_back(value);
  }

  void write_model() {
    const unsigned heads = between(1, 4);
    const unsigned width = heads * between(2, 12) * 2;
    blocks_ = between(1, 8);
    const nlohmann::json config = {{"model_type", "gpt2"},
                                   {"architectures", {"GPT2LMHeadModel"}},
                                   {"vocab_size", between(257, 900)},
                                   {"tie_word_embeddings", one_in(2)},
                                   {"n_embd", width},
                                   {"n_layer", blocks_},
                                   {"n_head", heads},
                                   {"n_positions", 128}};
    directory_.write("config.json", config.dump());
  }

  void draw_flags() {
    const std::string text = directory_.write("text.txt", std::string(8000, 'a'));
    flags_ = {"--model", directory_.path(""), "--init", "random", "--data", text};
    add("--tokenizer", "bytes");
    add("--data-format", "text");
    add("--validation-fraction", any({"0", "0", "0.2"}));
    add("--max-steps", "2");
    add("--threads", "2");
    add("--run-dir", directory_.path("run"));
    add("--sequence-length", std::to_string(between(5, 64)));
    add("--micro-batch-size", std::to_string(between(1, 4)));
    add("--gradient-accumulation-steps", any({"1", "2", "3", "8"}));
    add("--precision", any({"bf16", "fp32"}));
    if (one_in(2)) add("--max-grad-norm", "0");
    if (one_in(3)) add("--recompute", any({"none", "full"}));
    if (one_in(3)) add("--lookahead", any({"1", "2", "6"}));
    const bool has_drive = !one_in(3);
    if (has_drive) add("--nvme", directory_.path(""));
    has_device_ = !one_in(3);
    for (const char* const state : {"parameters", "gradients", "optimizer", "activations"}) {
      if (!one_in(4)) continue;
      const std::string flag = fmt::format("--place-{}", state);
      if (has_drive) {
        add(flag, any({"host", "nvme"}));
      } else if (has_device_) {
        add(flag, "host");
      }
    }
    draw_ranks();
  }

  void draw_ranks() {
    if (one_in(2)) return;
    const unsigned stages = std::min(between(1, 3), blocks_);
    const unsigned ranks = stages * between(1, 3);
    if (ranks == 1) return;
    add("--local-ranks", std::to_string(ranks));
    add("--pipeline-parallel", std::to_string(stages));
    add("--zero-stage", any({"0", "1", "2", "3"}));
  }

  Outcome run(const Budgets& budgets, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = flags_;
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {"--dry-run", "--host-memory", std::to_string(budgets.host)});
    if (has_device_) {
      arguments.insert(arguments.end(), {"--device-memory", std::to_string(budgets.device)});
    }
    TrainCommand command;
    command.options = parse_train_options(arguments);
    HeardConsole console;
    SilentLog log;
    StopRequest stop;
    Outcome outcome;
    try {
      train(command, stop, console, log);
    } catch (const OutOfMemory& error) {
      outcome.refusal = fmt::format("{}", error.what());
    }
    outcome.said = console.said;
    return outcome;
  }

  const TemporaryDirectory directory_;
  std::mt19937 random_;
  unsigned blocks_ = 1;
  bool has_device_ = false;
  std::vector<std::string> flags_;
};

std::string text_of(const Budgets& budgets) {
  return fmt::format("device {}, host {}", budgets.device, budgets.host);
}

void expect_a_reason(const std::string& refusal) {
  EXPECT_THAT(refusal, testing::ContainsRegex("does not fit: .*needs "));
}

// Expects that once the step is accepted, it stays accepted while one budget grows and the other is
// unchanged.
void expect_monotone(const DrawnStep& step, const Budgets& least, std::size_t Budgets::* grows) {
  int accepted_at = 0;
  for (const int percent : kPercents) {
    Budgets budgets = least;
    budgets.*grows = least.*grows / 100 * static_cast<std::size_t>(percent);
    const std::string refusal = step.refusal(budgets);
    if (refusal.empty()) {
      if (accepted_at == 0) accepted_at = percent;
      continue;
    }
    expect_a_reason(refusal);
    EXPECT_EQ(accepted_at, 0) << fmt::format("{} is refused at {} % ({}): {}", step.text(), percent,
                                             text_of(budgets), refusal);
  }
  EXPECT_GT(accepted_at, 0) << step.text();
}

// Expects a refusal if the budget of one tier is clearly smaller and the other is unchanged.
void expect_least(const DrawnStep& step, const Budgets& least, std::size_t Budgets::* tier) {
  Budgets less = least;
  less.*tier = clearly_less(least.*tier);
  if (less.*tier == 0) return;
  EXPECT_NE(step.refusal(less), "") << step.text() << ": " << text_of(less);
}

// Returns the budget that a refusal names, as in "raise --host-memory to 1.5 MiB or more".
std::optional<std::size_t> named_least(const std::string& refusal) {
  constexpr std::string_view kBefore = "raise --host-memory to ";
  const std::size_t before = refusal.find(kBefore);
  if (before == std::string::npos) return std::nullopt;
  const std::size_t begin = before + kBefore.size();
  const std::size_t end = refusal.find(" or more", begin);
  if (end == std::string::npos) return std::nullopt;
  return parse_size(refusal.substr(begin, end - begin));
}

// Expects that a refusal which is due only to a lack of host memory names the budget that suffices.
void expect_named(const DrawnStep& step, const Budgets& least) {
  Budgets budgets = least;
  budgets.host = 1 * kKiB;
  const std::string refusal = step.refusal(budgets);
  const std::optional<std::size_t> named = named_least(refusal);
  ASSERT_TRUE(named.has_value()) << step.text() << refusal;
  budgets.host = *named;
  EXPECT_EQ(step.refusal(budgets), "") << step.text() << ": named " << text_of(budgets);
  budgets.host = clearly_less(budgets.host);
  if (budgets.host == 0) return;
  EXPECT_NE(step.refusal(budgets), "") << step.text() << ": less than named " << text_of(budgets);
}

class PlanBudgets : public testing::TestWithParam<unsigned> {};

TEST_P(PlanBudgets, AreMonotoneAndTheLeastIsNamed) {
  const DrawnStep step(GetParam());
  const Budgets least = step.least();
  ASSERT_GT(least.host, 0U) << step.text();
  EXPECT_EQ(step.refusal(least), "") << step.text() << ": " << text_of(least);
  expect_least(step, least, &Budgets::host);
  expect_monotone(step, least, &Budgets::host);
  expect_named(step, least);
  if (!step.has_device()) return;
  expect_least(step, least, &Budgets::device);
  expect_monotone(step, least, &Budgets::device);
}

INSTANTIATE_TEST_SUITE_P(Drawn, PlanBudgets, testing::Range(0U, kShapes));

}  // namespace
}  // namespace terrace
