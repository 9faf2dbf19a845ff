#include "runtime/plan/footprints.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "tests/runtime/step/step_fixture.h"

namespace terrace {
namespace {

TierBudgets with_host(std::size_t bytes) {
  TierBudgets budgets;
  budgets.at(static_cast<std::size_t>(Tier::kHost)) = bytes;
  return budgets;
}

// A question about a policy with everything on the host. It counts how often the policy is made.
class Question {
 public:
  explicit Question(const StepModel& model) : model_(model) {}

  bool fits(Footprints& footprints, std::size_t bytes) {
    return footprints.fit({model_, {}, policy_}, with_host(bytes), kTiers);
  }
  std::size_t live(Footprints& footprints) {
    return footprints.live_bytes({model_, {}, policy_}).at(static_cast<std::size_t>(Tier::kHost));
  }
  std::size_t packed(Footprints& footprints) {
    return footprints.packed_bytes({model_, {}, policy_}, Tier::kHost);
  }
  std::size_t needed(Footprints& footprints) {
    return footprints.needed_on_host({model_, {}, policy_});
  }
  int made() const { return made_; }

 private:
  struct Policy {
    Question& question;
    StepPolicy operator()() const {
      ++question.made_;
      return uniform_policy(question.model_,
                            {Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost, false});
    }
  };

  const StepModel& model_;
  int made_ = 0;
  Policy policy_{*this};
};

TEST(Footprints, FitEveryBudgetFromTheLeastOn) {
  const StepModel model = small_step_model(4, false);
  Footprints footprints;
  Question question(model);
  const std::size_t live = question.live(footprints);
  ASSERT_FALSE(question.fits(footprints, live - 1));
  std::size_t least = live;
  while (!question.fits(footprints, least)) least += 4 * kKiB;
  EXPECT_LE(question.packed(footprints), least);
  EXPECT_LE(question.needed(footprints), live);
  // Budgets may be asked for in any order, and also of an object that knows nothing yet.
  for (const std::size_t more : {3 * live, live, least, 2 * live, least + 1}) {
    Footprints fresh;
    Question again(model);
    EXPECT_EQ(question.fits(footprints, more), more >= least);
    EXPECT_EQ(again.fits(fresh, more), more >= least);
  }
}

TEST(Footprints, AreMadeOnce) {
  const StepModel model = small_step_model(4, false);
  Footprints footprints;
  Question question(model);
  const std::size_t live = question.live(footprints);
  EXPECT_EQ(question.made(), 1);
  EXPECT_TRUE(question.fits(footprints, 2 * live));
  EXPECT_EQ(question.made(), 1);
  footprints.forget_step();
  EXPECT_TRUE(question.fits(footprints, 3 * live));
  EXPECT_FALSE(question.fits(footprints, live / 2));
  EXPECT_EQ(question.made(), 1);  // known without packing again
}

}  // namespace
}  // namespace terrace
