#include "runtime/step/gradient_recipe.h"

namespace terrace {

GradientRecipe gradient_recipe(SumPlace sum, Tier home, Tier compute) {
  using enum RecipeStep;
  if (sum == SumPlace::kReducedParts) return {kNormPartials, kToHome};
  GradientRecipe recipe = {kSumOverTensorRanks, kNoisePartials, kRound, kSumOverDataRanks};
  if (sum == SumPlace::kHost || home == compute) {
    recipe.insert(recipe.end(), {kNormPartials, kToHome});
  } else if (home == Tier::kHost) {
    recipe.insert(recipe.end(), {kToHome, kNormPartials});
  } else {
    recipe.insert(recipe.end(), {kToHost, kNormPartials, kToHome});
  }
  return recipe;
}

}  // namespace terrace
