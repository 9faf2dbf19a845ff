#include <gtest/gtest.h>

#include <set>

#include "runtime/model/adapter_targets.h"
#include "tests/runtime/compare/recorded_training.h"
#include "tests/runtime/engine/step_switches.h"

namespace terrace {
namespace {

ModelRuntimeOptions small_options(bool tied = false) {
  return tiny_options(tiny_model("llama", tied, true), DType::kBF16);
}

std::string text_of(const HashComparison& found) {
  std::string text = found.obstacle;
  for (const OpDifference& op : found.ops) text += describe_op(op.op, found.model) + "\n";
  return text;
}

void expect_equal(const RecordedRun& a, const RecordedRun& b, const char* what) {
  const HashComparison found = compare_hashes(a, b);
  EXPECT_EQ(found.obstacle, "") << what;
  EXPECT_FALSE(found.step.has_value()) << what << ": step " << *found.step << "\n"
                                       << text_of(found);
  EXPECT_EQ(found.steps, kRecordedSteps) << what;
  EXPECT_GT(found.values, 100) << what;
}

TEST(RecordedSteps, HaveEveryKindOfOpAndChangeNoBits) {
  const ModelRuntimeOptions options = small_options();
  Curve curve;
  const RecordedRun run = record(options, &curve);
  EXPECT_EQ(curve, train_tiny(options, kRecordedSteps).curve);
  const RecordedHashes& hashes = run.hashes.at(0);
  ASSERT_EQ(hashes.rows.size(), static_cast<std::size_t>(kRecordedSteps));
  std::set<HashedOp> ops;
  for (const HashKey& key : hashes.tables.front().keys) ops.insert(key.op);
  EXPECT_EQ(ops, (std::set<HashedOp>{HashedOp::kInput, HashedOp::kForward, HashedOp::kBackward,
                                     HashedOp::kNormPartials, HashedOp::kNorm, HashedOp::kUpdate}));
  for (const auto& [step, row] : hashes.rows) {
    EXPECT_EQ(std::ranges::count(row.hashes, kNoHash), 0) << step;
  }
  const auto& keys = hashes.tables.front().keys;
  EXPECT_EQ(std::set<HashKey>(keys.begin(), keys.end()).size(), keys.size()) << "keys are unique";
}

// A training, as it differs from a small llama.
struct Training {
  const char* name;
  void (*set)(ModelRuntimeOptions& options);
};

constexpr Training kTrainings[] = {
    {"llama", [](ModelRuntimeOptions&) {}},
    {"tied_gpt2_in_fp32",
     [](ModelRuntimeOptions& o) {
       o.model = tiny_model("gpt2", true, true);
       o.compute_type = DType::kF32;
     }},
    {"tied_gemma2", [](ModelRuntimeOptions& o) { o.model = tiny_model("gemma2", true, true); }},
    {"without_clipping", [](ModelRuntimeOptions& o) { o.optimizer.max_grad_norm = 0; }},
    {"bf16_gradients", [](ModelRuntimeOptions& o) { o.gradient_type = DType::kBF16; }},
    {"bf16_moments", [](ModelRuntimeOptions& o) { o.optimizer.slot_form = SlotForm::kBf16; }},
    {"int8_moments", [](ModelRuntimeOptions& o) { o.optimizer.slot_form = SlotForm::kInt8; }},
    {"documents", [](ModelRuntimeOptions& o) { o.batch.has_documents = true; }},
    {"adapter_on_nf4",
     [](ModelRuntimeOptions& o) {
       o.model = with_adapter(o.model, {.rank = 4, .alpha = 8, .targets = {}}, {});
       o.base_quantization = QuantizedForm::kNf4;
     }},
};

class RecordedSwitches : public testing::TestWithParam<Training> {};

// The hashes are of values alone: the places of buffers and their padding are not in them.
TEST_P(RecordedSwitches, DoNotChangeTheHashesThatBothRunsHave) {
  ModelRuntimeOptions options = small_options();
  GetParam().set(options);
  const RecordedRun plain = record(options);
  for (const Switch& one : kSwitches) {
    ModelRuntimeOptions other = options;
    const TemporaryDirectory drive;
    other.nvme.directories = {{.path = drive.path(), .budget_bytes = {}}};
    one.set(other);
    expect_equal(record(other), plain, one.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Trainings, RecordedSwitches, testing::ValuesIn(kTrainings),
                         [](const auto& training) { return std::string(training.param.name); });

TEST(RecordedRanks, HaveTheSameHashesAtEveryStageAndWithPipelines) {
  const ModelRuntimeOptions options = small_options(true);
  const RecordedRun plain = record_ranks(options, {.data = 2}, 0);
  for (std::int32_t stage = 1; stage <= 3; ++stage) {
    expect_equal(record_ranks(options, {.data = 2}, stage), plain, "stage");
  }
  const RecordedRun one = record(options);
  expect_equal(record_ranks(options, {.pipeline = 2}, 0), one, "pipeline");
  const HashComparison other = compare_hashes(one, plain);
  EXPECT_NE(other.obstacle.find("data-parallel ranks: 1 and 2"), std::string::npos);
}

// Gradients that are rounded before they are added over ranks, or added after each micro-batch.
TEST(RecordedRanks, HaveTheSameHashesHoweverGradientsAreAdded) {
  ModelRuntimeOptions options = small_options();
  options.gradient_type = DType::kBF16;
  expect_equal(record_ranks(options, {.data = 2}, 2), record_ranks(options, {.data = 2}, 0),
               "step");
  options.gradient_type = DType::kF32;
  options.placement.reduces_micro_batches = true;
  const RecordedRun plain = record_ranks(options, {.data = 2}, 2);
  all_on(options, false, Tier::kHost);
  expect_equal(record_ranks(options, {.data = 2}, 3), plain, "micro-batch");
}

TEST(RecordedRanks, OfTensorParallelRanksHaveTheSameHashesInOtherTiers) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, false), DType::kBF16);
  const RecordedRun plain = record_ranks(options, {.tensor = 2}, 0);
  all_on(options, false, Tier::kHost);
  options.placement.recompute = true;
  expect_equal(record_ranks(options, {.tensor = 2}, 0), plain, "host");
}

// --- faults -------------------------------------------------------------------------------------

// The kernel that fails, and the call of it, counted from 0.
struct Fault {
  int call = 0;
  int calls = 0;

  void hit(const TensorView& written) {
    if (calls++ == call) written.data[0] ^= std::byte{0x40};
  }
};

Fault& fault() {
  static Fault one;
  return one;
}

// A CPU device, one of whose kernels flips a bit of its result in one call.
class FaultyBackend final : public ComputeBackend {
 public:
  explicit FaultyBackend(const KernelTable& table) : table_(table) {}

  const KernelTable& kernels() const override { return table_; }
  std::unique_ptr<ComputeDevice> make(std::size_t capacity_bytes) const override {
    return std::make_unique<FaultyDevice>(table_, capacity_bytes);
  }
  const DeviceExchange* exchange() const override { return nullptr; }

 private:
  class FaultyDevice final : public ComputeDevice {
   public:
    FaultyDevice(const KernelTable& table, std::size_t capacity_bytes)
        : table_(table), real_(make_cpu_compute_device(capacity_bytes)) {}
    Device& device() override { return real_->device(); }
    LaneKernels kernels() override {
      LaneKernels kernels = cpu_lane_kernels();
      kernels.table = &table_;
      kernels.update = [](const KernelContext& context, const UpdateRule& rule,
                          const ParameterUpdate& update) {
        rule.cpu(context, update);
        if (fails_in_update) fault().hit(update.parameter);
      };
      return kernels;
    }
    std::unique_ptr<HostRegistration> lock(std::span<std::byte>) override { return nullptr; }

   private:
    const KernelTable& table_;
    const std::unique_ptr<ComputeDevice> real_;
  };

 public:
  static inline bool fails_in_update = false;

 private:
  const KernelTable table_;
};

struct PlantedFault {
  const char* name;
  void (*plant)(KernelTable&);
  int call;
  std::int64_t step;
  const char* op;  // in words
  OpDifference::Cause cause = OpDifference::Cause::kComputes;
  void (*set)(ModelRuntimeOptions&) = [](ModelRuntimeOptions&) {};
};

const KernelTable& real() { return *cpu_lane_kernels().table; }

// A step has 4 micro-batches of 6 blocks, one after the other: unit n + 1 is block n.
const PlantedFault kFaults[] = {
    {"embedding_forward",
     [](KernelTable& t) {
       t.embedding_forward = [](const KernelContext& c, const EmbeddingForward& a) {
         real().embedding_forward(c, a);
         fault().hit(a.h);
       };
     },
     6, 2, "forward of the embedding, micro-batch 2"},
    {"glu_forward",
     [](KernelTable& t) {
       t.glu_forward = [](const KernelContext& c, const GluForward& a) {
         real().glu_forward(c, a);
         fault().hit(a.y);
       };
     },
     33, 2, "forward of block 3, micro-batch 1"},
    // The first norm of block 3, in the first micro-batch of step 2, changes a parameter after it
    // has used it: the next op that reads the parameters finds other bytes than the update has
    // written.
    {"bytes_that_change",
     [](KernelTable& t) {
       t.rms_norm_forward = [](const KernelContext& c, const RmsNormForward& a) {
         real().rms_norm_forward(c, a);
         fault().hit(a.weight);
       };
     },
     58, 2, "forward of block 3, micro-batch 1", OpDifference::Cause::kMoved},
    {"glu_backward",
     [](KernelTable& t) {
       t.glu_backward = [](const KernelContext& c, const GluBackward& a) {
         real().glu_backward(c, a);
         fault().hit(a.dgate_up);
       };
     },
     2, 1, "backward of block 3, micro-batch 0"},
    {"head_loss",
     [](KernelTable& t) {
       t.head_loss = [](const KernelContext& c, const HeadLoss& a) {
         real().head_loss(c, a);
         fault().hit(a.dh);
       };
     },
     5, 2, "backward of the head, micro-batch 1"},
    {"embedding_backward",
     [](KernelTable& t) {
       t.embedding_backward = [](const KernelContext& c, const EmbeddingBackward& a) {
         real().embedding_backward(c, a);
         fault().hit(a.dwte);
       };
     },
     1, 2, "backward of the embedding"},
    {"update", [](KernelTable&) { FaultyBackend::fails_in_update = true; }, 3, 1,
     "update of block 2, chunk 0", OpDifference::Cause::kComputes,
     [](ModelRuntimeOptions& o) {
       all_on(o, false, Tier::kDevice);
       o.chunk_elements = kChunkElements;
     }},
    {"norm_partials",
     [](KernelTable& t) {
       t.norm_partials = [](const KernelContext& c, const NormPartials& a) {
         real().norm_partials(c, a);
         fault().hit(a.partials);
       };
     },
     8, 2, "sums of squares of the gradient of the head, chunk 0", OpDifference::Cause::kComputes,
     [](ModelRuntimeOptions& o) {
       all_on(o, false, Tier::kDevice);
       o.chunk_elements = kChunkElements;
     }},
};

class PlantedFaults : public testing::TestWithParam<PlantedFault> {};

TEST_P(PlantedFaults, AreFoundInTheOpThatHasThem) {
  const PlantedFault& planted = GetParam();
  ModelRuntimeOptions options = small_options();
  planted.set(options);
  const RecordedRun good = record(options);
  FaultyBackend::fails_in_update = false;
  KernelTable table = real();
  planted.plant(table);
  const FaultyBackend backend(table);
  fault() = {.call = planted.call};
  options.backend = &backend;
  const HashComparison found = compare_hashes(good, record(options));
  FaultyBackend::fails_in_update = false;
  ASSERT_EQ(found.obstacle, "");
  ASSERT_TRUE(found.step.has_value()) << fault().calls << " calls";
  EXPECT_EQ(*found.step, planted.step) << text_of(found);
  const OpDifference& first = found.ops.front();
  EXPECT_EQ(describe_op(first.op, found.model), planted.op) << text_of(found);
  EXPECT_EQ(first.cause, planted.cause);
  EXPECT_FALSE(first.differing_writes.empty());
  for (const OpDifference& other : found.ops) {
    if (&other == &first) continue;
    EXPECT_EQ(other.cause, OpDifference::Cause::kFollows) << describe_op(other.op, found.model);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PlantedFaults, testing::ValuesIn(kFaults),
                         [](const auto& kernel) { return std::string(kernel.param.name); });

}  // namespace
}  // namespace terrace
