#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/bytes.h"
#include "base/error.h"
#include "runtime/engine/model_runtime.h"
#include "tests/sanitized.h"

// Plans steps of nano with random homes and random budgets. A step that fits must not be refused
// when it has more memory, and a refusal must say which memory is short.
namespace terrace {
namespace {

ModelRuntimeOptions draw_step(std::mt19937& random) {
  const auto one_in = [&random](unsigned n) { return random() % n == 0; };
  ModelRuntimeOptions options;
  options.model = load_model_config("nano");
  options.batch = {1 + static_cast<std::int64_t>(random() % 8),
                   std::int64_t{32} << static_cast<int>(random() % 3)};
  options.threads = 2;
  options.evaluates = one_in(2);
  if (one_in(2)) options.optimizer.max_grad_norm = 0;
  PlacementRequest& request = options.placement;
  request.micro_batches = std::int32_t{1} << static_cast<int>(random() % 5);
  request.unified = false;
  request.has_nvme = !one_in(3);
  if (one_in(3)) request.recompute = one_in(2);
  if (one_in(2)) request.lookahead = static_cast<std::int32_t>(random() % 4);
  const auto maybe_a_tier = [&]() -> std::optional<Tier> {
    if (!one_in(3)) return std::nullopt;
    return kTiers.at(random() % (request.has_nvme ? kTierCount : kTierCount - 1));
  };
  for (std::optional<Tier>& home : request.homes.values) home = maybe_a_tier();
  return options;
}

// Returns a random budget of at least 0.3 MiB. Small budgets are more frequent.
std::size_t draw_budget(std::mt19937& random) {
  const double part = static_cast<double>(random() % 1000) / 1000;
  return static_cast<std::size_t>((0.3 + 15 * part * part) * static_cast<double>(kMiB));
}

// Returns the reason why a step does not fit, or an empty text if it fits.
std::string refusal_of(ModelRuntimeOptions options, const TierBudgets& budgets) {
  options.budgets = budgets;
  try {
    plan_model(options);
    return "";
  } catch (const OutOfMemory& error) {
    return error.what();
  }
}

TEST(MoreMemory, NeverMakesAStepThatFitsOneThatIsRefused) {
  int fitted = 0;
  int refused = 0;
  constexpr int kSteps = kSanitized ? 4 : 40;
  constexpr int kOfEach = kSanitized ? 2 : 40;
  for (unsigned seed = 0; seed < kSteps; ++seed) {
    std::mt19937 random(seed);
    const ModelRuntimeOptions options = draw_step(random);
    for (int drawn = 0; drawn < 8; ++drawn) {
      TierBudgets budgets = {draw_budget(random), draw_budget(random), std::nullopt};
      const std::string refusal = refusal_of(options, budgets);
      if (!refusal.empty()) {
        ++refused;
        EXPECT_THAT(refusal, testing::HasSubstr(" needs ")) << "seed " << seed;
        continue;
      }
      ++fitted;
      ModelRuntimeOptions toggled = options;
      toggled.evaluates = !options.evaluates;
      EXPECT_EQ(refusal_of(toggled, budgets), "")
          << fmt::format("seed {}: evaluation makes the difference", seed);
      for (int raised = 0; raised < 3; ++raised) {
        TierBudgets more = budgets;
        std::size_t& one = *more.at(random() % 2);
        one += one / 64 * (random() % 100);
        EXPECT_EQ(refusal_of(options, more), "")
            << fmt::format("seed {}: fits {} on the device and {} on the host", seed,
                           format_size(*budgets[0]), format_size(*budgets[1]));
      }
    }
  }
  EXPECT_GT(fitted, kOfEach);
  EXPECT_GT(refused, kOfEach);
}

}  // namespace
}  // namespace terrace
