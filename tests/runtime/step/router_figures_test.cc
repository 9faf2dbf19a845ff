#include "runtime/step/router_figures.h"

#include <gtest/gtest.h>

#include <vector>

namespace terrace {
namespace {

// The sums of a layer with two experts: chosen rows, probabilities, squares, rows.
using Layer = std::vector<double>;

std::vector<double> folded(const std::vector<Layer>& layers) {
  std::vector<double> all;
  for (const Layer& layer : layers) all.insert(all.end(), layer.begin(), layer.end());
  std::vector<double> result(8);
  fold_router_sums(all, result);
  return result;
}

TEST(RouterFigures, AddLayersAndFindTheBusiestExpert) {
  EXPECT_EQ(folded({{3, 1, 2.5, 1.5, 8, 4}, {4, 0, 3, 1, 2, 4}}),
            (std::vector<double>{7, 1, 5.5, 2.5, 10, 8, 3, 1}));
  EXPECT_EQ(folded({}), std::vector<double>(8, 0.0));
}

// The order of layers, and how stages cut them, must not change a bit.
TEST(RouterFigures, DoNotDependOnTheOrderOfSums) {
  const Layer a = {3, 1, 0.1, 3.9, 0.3, 4}, b = {2, 2, 1e-9, 4, 1e5 / 3, 4},
              c = {4, 0, 2.0 / 3, 10.0 / 3, 0.7, 4};
  RouterFigureSum whole(3, 8), cut(3, 8);
  whole.begin();
  whole.add_stage(folded({a, b, c}));
  whole.end_micro_batch();
  cut.begin();
  cut.add_stage(folded({c}));
  cut.add_stage(folded({b, a}));
  cut.end_micro_batch();
  EXPECT_EQ(whole.figures(), cut.figures());
  EXPECT_EQ(folded({a, b, c}), folded({c, a, b}));
}

TEST(RouterFigures, AreMeansOverMicroBatches) {
  RouterFigureSum sum(1, 8);
  for (int step = 0; step < 2; ++step) {  // each step begins anew
    sum.begin();
    const std::vector<double> first = {4, 0, 3, 1, 8, 4};
    sum.add_layers(first);
    sum.end_micro_batch();
    sum.add_stage(folded({{1, 1, 1, 1, 1, 2}}));
    sum.end_micro_batch();
    const RouterFigures figures = sum.figures();
    EXPECT_EQ(figures.balance_loss, (2 * 1 * 0.75 + 2 * (0.25 + 0.25)) / 2);
    EXPECT_EQ(figures.z_loss, (2 + 0.5) / 2);
    EXPECT_EQ(figures.experts_touched, 1.5);
    EXPECT_EQ(figures.expert_share_max, 1);
  }
}

TEST(RouterFigures, OfAMicroBatchOfPaddingAreZero) {
  RouterFigureSum sum(1, 8);
  sum.begin();
  sum.add_stage(folded({{0, 0, 0, 0, 0, 0}}));
  sum.end_micro_batch();
  EXPECT_EQ(sum.figures(), RouterFigures());
}

}  // namespace
}  // namespace terrace
