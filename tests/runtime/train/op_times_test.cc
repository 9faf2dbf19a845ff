#include "runtime/train/op_times.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "parallel/thread_communicator.h"
#include "runtime/machine/op_estimates.h"
#include "runtime/train/link_times.h"
#include "tests/runtime/engine/engine_fixture.h"
#include "tests/runtime/train/timed_ops.h"

namespace terrace {
namespace {

// Expects that every op of the step that computes or updates gets a time.
void expect_timed(const ModelRuntimeOptions& options) {
  const TierPlan plan = plan_model(options);
  expect_all_timed({.options = options, .plan = plan});
}

TEST(OpTimes, CoverEveryOpOfAStep) {
  ModelRuntimeOptions options = tiny_options(tiny_model("gpt2", true, false), DType::kBF16);
  expect_timed(options);
  options.placement.recompute = true;
  expect_timed(options);
  options.compute_type = DType::kF32;
  expect_timed(options);
}

TEST(OpTimes, CoverDocumentsAdaptersAndQuantizedMatrices) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", false, false), DType::kBF16);
  options.batch.has_documents = true;
  expect_timed(options);
  options.batch.has_documents = false;
  add_dropping_adapter(options);
  expect_timed(options);
  options.base_quantization = QuantizedForm::kNf4;
  expect_timed(options);
}

TEST(OpTimes, CoverStateOnADriveAndADeviceOfItsOwn) {
  ModelRuntimeOptions options = tiny_options(tiny_model("qwen3", true, false), DType::kBF16);
  options.placement.unified = false;
  options.placement.has_nvme = true;
  options.placement.homes[StateClass::kOptimizer] = Tier::kNvme;
  options.placement.homes[StateClass::kActivations] = Tier::kHost;
  expect_timed(options);
}

TEST(OpTimes, CoverTheOpsOfTensorParallelRanks) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, false), DType::kBF16);
  options.ranks.shape.tensor = 2;
  expect_timed(options);
}

// Updates have no products, so no rate says how long they take.
TEST(OpTimes, AreNotTakenOfOpsThatTakeTooLong) {
  const ModelRuntimeOptions options = tiny_options(tiny_model("gpt2", true, false), DType::kBF16);
  const TierPlan plan = plan_model(options);
  MachineProfile profile;
  profile.flops_per_s = 1;
  EXPECT_FALSE(measure_ops({options, plan, 10}, profile));
  EXPECT_TRUE(profile.seconds_per_work.contains({.kind = OpKind::kUpdate}));
  for (const Op& op : plan.training.program.ops) {
    if (!computes(op) || op.cost.flops == 0) continue;
    EXPECT_FALSE(profile.seconds_per_work.contains(class_of(plan.training.program, op)));
  }
}

TEST(OpTimes, AreNotTakenWhereTheyTakeTooMuchMemory) {
  const ModelRuntimeOptions options = tiny_options(tiny_model("gpt2", true, false), DType::kBF16);
  const TierPlan plan = plan_model(options);
  MachineProfile profile;
  EXPECT_FALSE(measure_ops({options, plan, kNoTimeLimit, 64}, profile));
  EXPECT_TRUE(profile.seconds_per_work.empty());
}

// An update that is skipped takes no time, so an update that is timed must be a real one: no
// machine moves bytes this fast.
TEST(OpTimes, OfUpdatesAreThoseOfRealUpdates) {
  const ModelRuntimeOptions options = tiny_options(tiny_model("gpt2", true, false), DType::kBF16);
  const TierPlan plan = plan_model(options);
  MachineProfile profile;
  ASSERT_TRUE(measure_ops({options, plan, kNoTimeLimit}, profile));
  EXPECT_GT(profile.seconds_per_work.at({.kind = OpKind::kUpdate}), 1e-12);
}

TEST(OpTimes, StayAsTheyAreWhereTheyAreKnown) {
  const ModelRuntimeOptions options = tiny_options(tiny_model("gpt2", true, false), DType::kBF16);
  const TierPlan plan = plan_model(options);
  MachineProfile profile;
  profile.seconds_per_work[{.kind = OpKind::kUpdate}] = 7;
  ASSERT_TRUE(measure_ops({options, plan, kNoTimeLimit}, profile));
  EXPECT_EQ(profile.seconds_per_work.at({.kind = OpKind::kUpdate}), 7);
}

TEST(CopyTimes, AreRatesOfThisMachine) {
  const ModelRuntimeOptions options = tiny_options(tiny_model("gpt2", true, false), DType::kBF16);
  MachineProfile profile;
  measure_copies(options, profile);
  EXPECT_GT(profile.upload_bytes_per_s, 1e7);
  EXPECT_EQ(profile.upload_bytes_per_s, profile.download_bytes_per_s);
  // Memory passes what a copy reads and what it writes.
  EXPECT_GT(profile.memory_bytes_per_s, profile.upload_bytes_per_s);
}

KernelsOfOps kernels_of(const ModelRuntimeOptions& options, const Program& program) {
  KernelsOfOps kernels;
  add_kernels(options, program, kernels);
  return kernels;
}

// The embedding's backward is one op for all micro-batches, and clears its gradient once.
TEST(OpEstimates, OfTheEmbeddingsBackwardClearItsGradientOnce) {
  ModelRuntimeOptions options = tiny_options(tiny_model("gpt2", true, false), DType::kBF16);
  const UnitCompute compute = unit_compute_of(options);
  const UnitGraph::Where where = {.pass = UnitPass::kBackward, .unit = 0};
  const auto bytes = [&](std::int32_t micro_batches) {
    double sum = 0;
    for (const KernelCost& cost : compute.kernel_costs(where, micro_batches)) sum += cost.bytes;
    return sum;
  };
  const double added = bytes(2) - bytes(1);
  EXPECT_NEAR(bytes(8) - bytes(1), 7 * added, 1e-6);
  EXPECT_GT(bytes(1), 2 * added);  // the table is larger than the rows
  const Program program = plan_model(options).training.program;
  MachineProfile profile;
  estimate_ops(kernels_of(options, program), {.flops_per_s = 1e30, .memory_bytes_per_s = 1},
               profile);
  for (const Op& op : program.ops) {
    if (op.kind != OpKind::kBackward || op.unit != 0) continue;
    EXPECT_NEAR(profile.seconds_per_work.at(class_of(program, op)) * work_of(program, op),
                bytes(program.micro_batches), 1);
  }
}

// A kernel takes as long as its products or its bytes, whichever is longer.
TEST(OpEstimates, FollowTheProductsOrTheBytes) {
  const ModelRuntimeOptions options = tiny_options(tiny_model("llama", false, false), DType::kBF16);
  const Program program = plan_model(options).training.program;
  constexpr double kFlops = 1e9;
  MachineProfile by_products;
  estimate_ops(kernels_of(options, program), {.flops_per_s = kFlops, .memory_bytes_per_s = 1e30},
               by_products);
  MachineProfile by_bytes;
  estimate_ops(kernels_of(options, program), {.flops_per_s = 1e30, .memory_bytes_per_s = 1e9},
               by_bytes);
  for (const Op& op : program.ops) {
    if (!computes(op)) continue;
    const OpClass op_class = class_of(program, op);
    EXPECT_NEAR(by_products.seconds_per_work.at(op_class), op.cost.flops / kFlops,
                1e-9 * op.cost.flops / kFlops + 1e-20)
        << describe(program, op);
    EXPECT_GT(by_bytes.seconds_per_work.at(op_class), 0) << describe(program, op);
  }
}

// The head's logits pass through memory, and so does the sum of its weight gradient, twice for each
// chunk of logits. A chunk has a power of two of rows, so one of the bytes of 127 rows has 64.
TEST(OpEstimates, OfTheHeadPassItsLogits) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", false, false), DType::kBF16);
  options.batch.sequences = 1;
  options.batch.positions = 192;
  const Program program = plan_model(options).training.program;
  const std::int64_t vocabulary = options.model.vocabulary;
  const auto logits = static_cast<double>(options.batch.rows() * vocabulary);
  const auto gradient = static_cast<double>(vocabulary * options.model.width) * sizeof(float);
  const auto head_s = [&](std::int64_t rows_at_once, double pass_bytes) {
    MachineProfile profile;
    estimate_ops(
        kernels_of(options, program),
        {.flops_per_s = 1e30,
         .memory_bytes_per_s = 1,
         .logits_bytes_most = static_cast<std::uint64_t>(rows_at_once * vocabulary) * sizeof(float),
         .logit_pass_bytes = pass_bytes},
        profile);
    const auto is_head = [](const Op& op) { return op.kind == OpKind::kBackward; };
    return profile.seconds_per_work.at(
        class_of(program, *std::ranges::find_if(program.ops, is_head)));
  };
  const double one_s = head_s(256, 6);
  EXPECT_GT(one_s, 6 * logits + 2 * gradient);
  EXPECT_NEAR(head_s(127, 6) - one_s, 4 * gradient, 1e-6 * gradient);
  EXPECT_NEAR(head_s(256, 8) - one_s, 2 * logits, 1e-6 * logits);
}

TEST(OpEstimates, AddTheStartOfEachKernel) {
  const ModelRuntimeOptions options = tiny_options(tiny_model("gpt2", true, false), DType::kBF16);
  const Program program = plan_model(options).training.program;
  MachineProfile profile;
  estimate_ops(kernels_of(options, program),
               {.flops_per_s = 1e30, .memory_bytes_per_s = 1e30, .launch_s = 1}, profile);
  for (const Op& op : program.ops) {
    if (op.kind != OpKind::kForward || op.unit == 0) continue;
    // A block has two norms, four products, attention and an activation at least.
    EXPECT_GE(profile.seconds_per_work.at(class_of(program, op)), 8);
  }
}

// Calls `work` on every rank of a mesh, each in a thread of its own.
template <typename Work>
void on_ranks(const MeshShape& shape, Work work) {
  auto worlds = make_thread_communicators(shape.ranks(), "world", {});
  std::vector<std::jthread> threads;
  for (int r = 0; r < shape.ranks(); ++r) {
    threads.emplace_back([&, r] {
      const StepCommunicators communicators(*worlds[static_cast<std::size_t>(r)], shape);
      work(r, communicators.ranks());
    });
  }
}

TEST(LinkTimes, AreMeasuredAlongEveryAxis) {
  const MeshShape shape = {.data = 2, .tensor = 2, .pipeline = 3};
  std::vector<MachineProfile> profiles(static_cast<std::size_t>(shape.ranks()));
  for (MachineProfile& profile : profiles) {
    for (LinkRate& link : profile.links) link = {.bytes_per_s = 0.5};
  }
  on_ranks(shape, [&](int rank, const StepRanks& ranks) {
    measure_links(ranks, profiles[static_cast<std::size_t>(rank)]);
  });
  for (const MachineProfile& profile : profiles) {
    for (const MeshAxis axis : {MeshAxis::kData, MeshAxis::kTensor, MeshAxis::kPipeline}) {
      const LinkRate& link = link_of(profile, axis);
      EXPECT_GT(link.bytes_per_s, 1e5);
      EXPECT_GT(link.latency_s, 0);
      EXPECT_LE(link.cores, 1);
    }
    check_profile(profile);
  }
}

TEST(LinkTimes, StayAsTheyAreWhereARankIsAlone) {
  MachineProfile profile;
  const MachineProfile before = profile;
  measure_links(StepRanks(), profile);
  for (std::size_t axis = 0; axis < before.links.size(); ++axis) {
    EXPECT_EQ(profile.links.at(axis).bytes_per_s, before.links.at(axis).bytes_per_s);
  }
}

}  // namespace
}  // namespace terrace
