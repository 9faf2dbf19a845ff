#include "runtime/train/gradient_errors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <span>
#include <vector>

#include "tests/runtime/engine/resumed_ranks.h"

// The errors of coded gradients as they are read out of their homes and put back.
namespace terrace {
namespace {

using Bytes = std::vector<std::byte>;

ModelRuntimeOptions coded_options(std::size_t placed, const TemporaryDirectory& drive) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, false), DType::kF32);
  options.placement.micro_batches = 2;
  options.chunk_elements = 8 * kBlockElements;
  options.wire = {.gradients = WireForm::kInt4, .keeps_errors = true};
  placements()[placed].set(options);
  if (options.placement.has_nvme) options.nvme.directories = {{drive.path(), std::nullopt}};
  return options;
}

std::byte byte_of(std::int32_t rank, std::size_t at) {
  return static_cast<std::byte>((at * 31 + at / 4096 + static_cast<std::size_t>(rank) * 17) & 0xff);
}

Bytes all_errors(ModelRuntime& engine) {
  Bytes bytes(engine.state().errors_bytes());
  engine.state().read_errors(0, bytes);
  return bytes;
}

void fill_pattern(ModelRuntime& engine, std::int32_t rank) {
  std::size_t next = 0;
  engine.state().write_errors([&](std::size_t first, std::span<std::byte> part) {
    EXPECT_EQ(first, next);
    next += part.size();
    for (std::size_t i = 0; i < part.size(); ++i) part[i] = byte_of(rank, first + i);
  });
  EXPECT_EQ(next, engine.state().errors_bytes());
}

class GradientErrorsInHomes : public testing::TestWithParam<std::size_t> {};

TEST_P(GradientErrorsInHomes, AreReadAsTheyWereWritten) {
  const TemporaryDirectory drive;
  on_ranks(coded_options(GetParam(), drive), MeshShape{.data = 2}, 1,
           [](ModelRuntime& engine, const ModelRuntimeOptions&, Communicator& world) {
             engine.fill_state(RandomState(1));
             const Bytes empty = all_errors(engine);
             EXPECT_GT(empty.size(), 100'000U);
             EXPECT_EQ(std::ranges::count(empty, std::byte{0}), std::ssize(empty));
             fill_pattern(engine, world.rank());
             // Ranges that begin and end anywhere, over the ends of chunks and groups.
             constexpr std::size_t kPart = 12'345;
             for (std::size_t at = 0; at < empty.size(); at += kPart) {
               Bytes part(std::min(kPart, empty.size() - at));
               engine.state().read_errors(at, part);
               for (std::size_t i = 0; i < part.size(); ++i) {
                 ASSERT_EQ(part[i], byte_of(world.rank(), at + i)) << at + i;
               }
             }
             engine.fill_state(RandomState(1));
             EXPECT_EQ(all_errors(engine), empty) << "a new state has lost nothing yet";
           });
}

// The first rank reads the errors of all ranks, whose pipeline stages have errors of two sizes.
TEST_P(GradientErrorsInHomes, OfAllRanksAreReadByTheFirst) {
  const TemporaryDirectory drive;
  on_ranks(coded_options(GetParam(), drive), MeshShape{.data = 2, .pipeline = 2}, 1,
           [](ModelRuntime& engine, const ModelRuntimeOptions& own, Communicator& world) {
             const TierPlan plan = plan_model(own);
             engine.fill_state(RandomState(1));
             fill_pattern(engine, world.rank());
             const std::optional<GradientErrors> errors = gradient_errors_of(plan.model);
             ASSERT_TRUE(errors.has_value());
             EXPECT_EQ(errors->bytes_of_rank(world.rank()), engine.state().errors_bytes());
             EXPECT_NE(errors->bytes_of_rank(0), errors->bytes_of_rank(2));
             RankedState state(engine.state(), plan.model, &world);
             if (world.rank() != 0) return state.serve_reads();
             std::vector<float> parameters(64);
             for (std::int32_t rank = 0; rank < errors->ranks(); ++rank) {
               const std::uint64_t half = errors->bytes_of_rank(rank) / 2 + 3;
               Bytes bytes(errors->bytes_of_rank(rank));
               state.read_errors(rank, 0, std::span(bytes).first(half));
               state.read(StateField::kMaster, 1, 0, parameters);
               state.read_errors(rank, half, std::span(bytes).subspan(half));
               for (std::size_t i = 0; i < bytes.size(); ++i) {
                 ASSERT_EQ(bytes[i], byte_of(rank, i)) << rank << " at " << i;
               }
             }
             state.end_reads();
           });
}

// A step leaves errors. With them a run goes on to the bit, and without them it does not.
TEST_P(GradientErrorsInHomes, LetATrainingGoOn) {
  const TemporaryDirectory drive;
  const ModelRuntimeOptions options = coded_options(GetParam(), drive);
  std::vector<float> state;
  std::vector<Bytes> errors(2);
  std::vector<Curve> curves;
  on_ranks(options, MeshShape{.data = 2}, 1,
           [&](ModelRuntime& engine, const ModelRuntimeOptions& own, Communicator& world) {
             engine.fill_state(RandomState(1));
             TrainedRun run;
             train_steps(engine, own, 1, kSteps, run);
             errors[static_cast<std::size_t>(world.rank())] = all_errors(engine);
             const std::vector<float> now = read_state(engine, own, world);
             TrainedRun rest;
             train_steps(engine, own, kSteps + 1, kSteps + 4, rest);
             if (world.rank() != 0) return;
             state = now;
             curves.push_back(rest.curve);
           });
  for (const Bytes& bytes : errors) {
    EXPECT_LT(std::ranges::count(bytes, std::byte{0}), std::ssize(bytes)) << "codes lose something";
  }
  EXPECT_NE(errors[0], errors[1]) << "each rank has errors of its own";
  for (const bool has_errors : {true, false}) {
    on_ranks(options, MeshShape{.data = 2}, 1,
             [&](ModelRuntime& engine, const ModelRuntimeOptions& own, Communicator& world) {
               engine.fill_state(ReadState(state, options));
               const Bytes& bytes = errors[static_cast<std::size_t>(world.rank())];
               if (has_errors) {
                 engine.state().write_errors([&](std::size_t first, std::span<std::byte> part) {
                   std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(first), part.size(),
                               part.begin());
                 });
               }
               TrainedRun rest;
               train_steps(engine, own, kSteps + 1, kSteps + 4, rest);
               if (world.rank() == 0) curves.push_back(rest.curve);
             });
  }
  EXPECT_EQ(curves[1], curves[0]);
  EXPECT_NE(curves[2], curves[0]);
}

INSTANTIATE_TEST_SUITE_P(Placements, GradientErrorsInHomes, testing::Values(0, 1, 2, 3, 4),
                         [](const auto& instance) { return placements()[instance.param].name; });

ModelRuntimeOptions plain_options() {
  return tiny_options(tiny_model("llama", true, false), DType::kF32);
}

std::optional<GradientErrors> errors_on(const ModelRuntimeOptions& options, const MeshShape& shape,
                                        std::int32_t stage) {
  std::mutex mutex;
  std::optional<GradientErrors> first;
  on_ranks(options, shape, stage,
           [&](ModelRuntime&, const ModelRuntimeOptions& own, Communicator& world) {
             const std::optional<GradientErrors> errors = gradient_errors_of(plan_model(own).model);
             if (world.rank() == 0) {
               const std::lock_guard lock(mutex);
               first = errors;
             }
           });
  return first;
}

// A run goes on with errors only where every byte of them belongs to the same element.
TEST(GradientErrorsOfAMesh, TellMeshesAndChunksApart) {
  const TemporaryDirectory drive;
  ModelRuntimeOptions options = coded_options(0, drive);
  const std::optional<GradientErrors> two = errors_on(options, MeshShape{.data = 2}, 1);
  ASSERT_TRUE(two.has_value());
  EXPECT_EQ(errors_on(options, MeshShape{.data = 2}, 3), two) << "no stage divides errors";
  EXPECT_NE(errors_on(options, MeshShape{.data = 4}, 1), two);
  EXPECT_NE(errors_on(options, MeshShape{.data = 2, .pipeline = 2}, 1), two);
  EXPECT_NE(errors_on(options, MeshShape{.data = 2, .tensor = 2}, 1), two);
  options.wire.gradients = WireForm::kInt8;
  EXPECT_EQ(errors_on(options, MeshShape{.data = 2}, 1), two) << "errors are in int8 codes anyway";
  options.chunk_elements *= 2;
  EXPECT_NE(errors_on(options, MeshShape{.data = 2}, 1), two);
  options.wire.keeps_errors = false;
  EXPECT_EQ(errors_on(options, MeshShape{.data = 2}, 1), std::nullopt);
  EXPECT_EQ(errors_on(plain_options(), MeshShape{.data = 2}, 1), std::nullopt);
}

}  // namespace
}  // namespace terrace
