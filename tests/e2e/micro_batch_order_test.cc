#include <gtest/gtest.h>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

// With accumulation over A micro-batches, the micro-batch-major order fetches the parameters for
// each of them, in the forward and in the backward. The layer-major order fetches them once in
// each: about a factor of A less.
TEST(MicroBatchOrder, LayerMajorMovesAThirdOfTheParameterBytes) {
  const TinyTraining training(8, 64);
  const Arguments micro_batches = {"--gradient-accumulation-steps", "4"};
  const Arguments steps = {"--max-steps", "3"};
  const auto with_order = [&](const std::string& order) {
    return micro_batches + Arguments{"--place-parameters",  "host", "--place-gradients", "host",
                                     "--place-optimizer",   "host", "--recompute",       "full",
                                     "--micro-batch-order", order};
  };
  // The budget has room for the unit that computes and for the one that is fetched beside it.
  const std::string least = training.least_device_memory(with_order("layer-major"));
  training.train("plain", micro_batches + steps);
  for (const std::string order : {"layer-major", "micro-batch-major"}) {
    training.train(order, with_order(order) + steps + Arguments{"--device-memory", least});
    training.expect_same(order, "plain", "final");
  }
  const double layer_major = sum_of(training.rows("layer-major"), "parameter_upload_bytes");
  const double micro_batch_major =
      sum_of(training.rows("micro-batch-major"), "parameter_upload_bytes");
  EXPECT_GT(layer_major, 0);
  EXPECT_LE(3 * layer_major, micro_batch_major);
}

}  // namespace
}  // namespace terrace
