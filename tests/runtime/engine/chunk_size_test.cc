#include <gtest/gtest.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/step/verify_ranks.h"

// The chunks of plans for many data-parallel ranks.
namespace terrace {
namespace {

constexpr std::int64_t kMi = 1024 * 1024;

ModelRuntimeOptions options_of(std::int32_t data_ranks, std::int32_t stages = 1) {
  ModelRuntimeOptions options;
  options.model = load_model_config("llama-1b");
  options.batch = {1, 512};
  options.placement.unified = false;
  options.placement.micro_batches = 2;
  options.zero_stage = 3;
  options.evaluates = false;
  options.ranks.shape = {.data = data_ranks, .tensor = 1, .pipeline = stages};
  return options;
}

std::int64_t chunk_of(const ModelRuntimeOptions& options) {
  return plan_model(options).model.chunk_elements;
}

std::size_t collectives_of(const ModelRuntimeOptions& options) {
  const Program program = plan_model(options).training.program;
  return static_cast<std::size_t>(std::ranges::count(program.ops, Lane::kCollective, &Op::lane));
}

TEST(ChunkSize, GrowsWithTheRanksThatDivideAChunk) {
  EXPECT_EQ(chunk_of(options_of(1)), 16 * kMi);
  EXPECT_EQ(chunk_of(options_of(64)), 16 * kMi);
  EXPECT_EQ(chunk_of(options_of(128)), 32 * kMi);
  EXPECT_EQ(chunk_of(options_of(512)), 128 * kMi);
  EXPECT_EQ(chunk_of(options_of(4096)), 256 * kMi);
  EXPECT_LT(collectives_of(options_of(512)), collectives_of(options_of(64)) / 2);
}

// A stage does not know whether larger chunks fit the others.
TEST(ChunkSize, IsTheUsualOneInPipelines) { EXPECT_EQ(chunk_of(options_of(128, 2)), 16 * kMi); }

TEST(ChunkSize, IsTheSameOnAllRanks) {
  ModelRuntimeOptions options = options_of(512);
  std::vector<Program> programs;
  for (const int data_rank : {0, 511}) {
    options.ranks.position.data = data_rank;
    programs.push_back(plan_model(options).training.program);
  }
  EXPECT_TRUE(verify_ranks(programs).empty());
  EXPECT_EQ(rank_fingerprint(programs.front()), rank_fingerprint(programs.back()));
}

bool fits_in(ModelRuntimeOptions options, std::size_t device_bytes, std::size_t host_bytes) {
  options.budgets = {device_bytes, host_bytes, std::nullopt};
  options.placement.explains_refusal = false;
  try {
    plan_model(options);
    return true;
  } catch (const OutOfMemory&) {
    return false;
  }
}

// A trial has the usual chunks. So this compares what fits with the chunks of either size.
TEST(ChunkSize, LetsFitWhatFitsWithTheUsualOne) {
  int refused = 0;
  int accepted = 0;
  for (std::size_t device = 500 * kMiB; device < 9 * kGiB; device += 380 * kMiB) {
    for (const std::size_t host : {50 * kMiB, 400 * kMiB, 8 * kGiB}) {
      ModelRuntimeOptions options = options_of(512);
      const bool fits = fits_in(options, device, host);
      options.placement.is_trial = true;
      const bool fits_usual = fits_in(options, device, host);
      EXPECT_TRUE(fits || !fits_usual) << device << " " << host;
      ++(fits ? accepted : refused);
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace terrace
