#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_products.h"
#include "kernels/cuda/cudnn_attention.h"
#include "memory/cuda/cuda_device.h"
#include "optim/cuda/update_cuda.h"
#include "optim/update_rules.h"
#include "tests/gpu/gpu_presence.h"
#include "tests/kernels/op_case.h"
#include "tests/optim/narrow_training.h"
#include "tests/optim/rule_state.h"

// The suite of kernel_conformance_test.cc, and the bits of updates, on the first GPU.
namespace terrace::test {
namespace {

constexpr std::size_t kArenaBytes = 512 * kMiB;

// A stream's task that keeps the native stream, which the test's body needs.
class Body final : public StreamTask {
 public:
  void run(NativeStream stream) noexcept override { native = stream; }
  NativeStream native;
};

// One GPU with an arena; pieces are cut from it and are all released at once.
class Gpu {
 public:
  Gpu()
      : device_(make_cuda_device({.ordinal = 0, .capacity_bytes = kArenaBytes})),
        arena_(device_->allocate(kArenaBytes)),
        stream_(device_->create_stream("test")) {
    stream_->run(body_);
    context.stream = body_.native;
    context.products = &products_;
  }

  // Takes memory that begins `offset` past a boundary of 64 bytes.
  std::span<std::byte> take(std::size_t size_bytes, std::size_t offset) {
    const std::size_t begin = round_up(used_, 64) + offset;
    TERRACE_CHECK_LE(begin + size_bytes, kArenaBytes);
    used_ = begin + size_bytes;
    return arena_->bytes().subspan(begin, size_bytes);
  }
  void forget() { used_ = 0; }

  void upload(std::span<std::byte> target, std::span<const std::byte> source) {
    stream_->copy(target, source);
    stream_->synchronize();
  }
  void download(std::span<std::byte> target, std::span<const std::byte> source) {
    stream_->copy(target, source);
    stream_->synchronize();
  }

  KernelContext context;

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceMemory> arena_;
  std::unique_ptr<Stream> stream_;
  Body body_;
  CudaProducts products_;
  std::size_t used_ = 0;
};

class GpuStage final : public CaseStage {
 public:
  enum class Place : std::uint8_t { kAsOnHost, kOnBoundary };

  // Tensors are as far from a boundary of 64 bytes as on the host, or on a boundary as in an arena.
  explicit GpuStage(Gpu& gpu, Place place = Place::kAsOnHost) : gpu_(gpu), place_(place) {}

  Views upload(const std::vector<HostTensor>& tensors) override {
    Views views;
    for (const HostTensor& tensor : tensors) {
      TensorView view = tensor.view();
      const std::size_t offset = reinterpret_cast<std::uintptr_t>(view.data) % 64;
      const std::span<std::byte> bytes =
          gpu_.take(view.size_bytes(), place_ == Place::kAsOnHost ? offset : 0);
      gpu_.upload(bytes, tensor.bytes());
      view.data = bytes.data();
      views.push_back(view);
    }
    uploaded_.insert(uploaded_.end(), views.begin(), views.end());
    return views;
  }

  KernelContext context(std::size_t workspace_bytes, std::byte fill) override {
    const std::vector<std::byte> filled(workspace_bytes, fill);
    gpu_.context.workspace = gpu_.take(workspace_bytes, 0);
    gpu_.upload(gpu_.context.workspace, filled);
    return gpu_.context;
  }

  void download(const std::vector<std::vector<HostTensor>*>& tensors) override {
    auto from = uploaded_.begin();
    for (std::vector<HostTensor>* const list : tensors) {
      for (HostTensor& tensor : *list) {
        const TensorView& device = *from++;
        gpu_.download({tensor.view().data, device.size_bytes()},
                      {device.data, device.size_bytes()});
      }
    }
    uploaded_.clear();
    gpu_.forget();
  }

 private:
  Gpu& gpu_;
  const Place place_;
  Views uploaded_;
};

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda_driver()) GTEST_SKIP() << "not run: there is no CUDA driver";
    gpu_ = std::make_unique<Gpu>();
  }

  std::unique_ptr<Gpu> gpu_;
};

class GpuKernels : public GpuTest, public testing::WithParamInterface<DType> {
 protected:
  void expect_all(const std::vector<OpCase>& cases) {
    GpuStage stage(*gpu_);
    for (const OpCase& op_case : cases) {
      expect_conforms(cuda_kernels(), op_case, &stage);
      expect_same_on_boundary(cuda_kernels(), op_case, &stage);
    }
  }
  // Tests ops that multiply by cuBLASLt, whose algorithms depend on the alignment of the operands.
  void expect_all_products(const std::vector<OpCase>& cases) {
    GpuStage stage(*gpu_);
    for (const OpCase& op_case : cases) expect_conforms(cuda_kernels(), op_case, &stage);
  }
};

TEST_P(GpuKernels, Matmul) { expect_all_products(matmul_cases(GetParam())); }
TEST_P(GpuKernels, Norm) { expect_all(norm_cases(GetParam())); }
TEST_P(GpuKernels, Rope) { expect_all(rope_cases(GetParam())); }
TEST_P(GpuKernels, Attention) { expect_all(attention_cases(GetParam())); }
TEST_P(GpuKernels, LongAttention) { expect_all(long_attention_cases(GetParam())); }
TEST_P(GpuKernels, Activation) { expect_all(activation_cases(GetParam())); }
TEST_P(GpuKernels, Elementwise) { expect_all(elementwise_cases(GetParam())); }
TEST_P(GpuKernels, Wire) { expect_all(wire_cases(GetParam())); }
TEST_P(GpuKernels, Embedding) { expect_all(embedding_cases(GetParam())); }
TEST_P(GpuKernels, HeadLoss) { expect_all_products(head_loss_cases(GetParam())); }
TEST_P(GpuKernels, HeadPart) { expect_all_products(head_part_cases(GetParam())); }
TEST_P(GpuKernels, Experts) { expect_all(expert_cases(GetParam())); }

INSTANTIATE_TEST_SUITE_P(ComputeTypes, GpuKernels,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(name_of(param.param)); });

// The tests above use our own kernels. These use cuDNN where it has plans.
class GpuAttention : public GpuTest, public testing::WithParamInterface<DType> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (gpu_ != nullptr && cudnn_version().empty()) GTEST_SKIP() << "not run: there is no cuDNN";
  }

  // Runs every case several times, and expects the same bits each time.
  void expect_all(CudnnAttention& attention, const std::vector<OpCase>& cases) {
    gpu_->context.attention = &attention;
    GpuStage stage(*gpu_, GpuStage::Place::kOnBoundary);
    for (const OpCase& op_case : cases) expect_conforms(cuda_kernels(), op_case, &stage);
    gpu_->context.attention = nullptr;
  }
};

// Returns an op that is never enqueued; only shapes and types decide the choice.
template <typename Op>
Op attention_op(DType type, const AttentionShape& shape) {
  Op op;
  op.shape = shape;
  op.q.dtype = type;
  op.q.stride = (shape.heads + 2 * shape.key_value_heads) * shape.head_width;
  op.k = op.v = op.q;
  if constexpr (std::is_same_v<Op, AttentionBackward>) op.dq = op.dk = op.dv = op.q;
  op.rule.scale = 0.125F;
  return op;
}

TEST_P(GpuAttention, IsThatOfTheReference) {
  CudnnAttention attention(AttentionChoice::kCudnn);
  expect_all(attention, attention_cases(GetParam(), GroupSums::kRounded));
  expect_all(attention, library_attention_cases(GetParam(), GroupSums::kRounded));
}

TEST_P(GpuAttention, IsThatOfTheReferenceInParts) {
  // The memory has room for one sequence's squares of the first shape, and for some groups or none
  // of others.
  CudnnAttention attention(AttentionChoice::kCudnn, std::size_t{4} * 256 * 256 * 2);
  expect_all(attention, library_attention_cases(GetParam(), GroupSums::kRounded));
}

TEST_P(GpuAttention, IsOfCudnnWhereItHasAPlan) {
  CudnnAttention attention(AttentionChoice::kCudnn);
  for (const AttentionShape& shape :
       {AttentionShape{2, 256, 256, 4, 4, 64}, AttentionShape{1, 300, 300, 6, 2, 64},
        AttentionShape{4, 1024, 1024, 12, 12, 64}, AttentionShape{2, 2048, 2048, 32, 8, 64},
        AttentionShape{1, 4096, 4096, 32, 32, 128}}) {
    SCOPED_TRACE(testing::Message() << "T=" << shape.queries << " D=" << shape.head_width);
    const auto forward = attention_op<AttentionForward>(GetParam(), shape);
    const auto backward = attention_op<AttentionBackward>(GetParam(), shape);
    EXPECT_THAT(attention.by(forward), testing::StartsWith("cuDNN"));
    EXPECT_THAT(attention.by(backward), testing::StartsWith("cuDNN"));
  }
}

TEST_P(GpuAttention, IsOwnWhereThatIsChosen) {
  CudnnAttention attention(AttentionChoice::kOwn);
  const auto op = attention_op<AttentionForward>(GetParam(), {2, 256, 256, 4, 4, 64});
  EXPECT_EQ(attention.by(op), "own kernels: TERRACE_ATTENTION=own");
  expect_all(attention, library_attention_cases(GetParam(), GroupSums::kExact));
}

INSTANTIATE_TEST_SUITE_P(NarrowTypes, GpuAttention, testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(name_of(param.param)); });

// Runs an update on the GPU whose views are host memory.
void run_on_gpu(Gpu& gpu, const UpdateRule& rule, ParameterUpdate update) {
  std::vector<std::pair<TensorView, TensorView>> moved;
  StepScalars scalars = *update.scalars;
  TensorView scalar_view = view(std::span(reinterpret_cast<std::byte*>(&scalars), sizeof(scalars)));
  for (TensorView* one :
       {&update.gradient, &update.master, &update.slots[0], &update.slots[1], &update.exponents[0],
        &update.exponents[1], &update.parameter, &scalar_view}) {
    if (one->size_bytes() == 0) continue;  // a slot that the rule does not have
    const TensorView host = *one;
    for (const auto& [before, device] : moved) {
      if (before.data == host.data) one->data = device.data;  // a parameter that is its master
    }
    if (one->data != host.data) continue;
    const std::size_t offset = reinterpret_cast<std::uintptr_t>(host.data) % 64;
    one->data = gpu.take(host.size_bytes(), offset).data();
    gpu.upload({one->data, host.size_bytes()}, {host.data, host.size_bytes()});
    moved.emplace_back(host, *one);
  }
  update.scalars = reinterpret_cast<const StepScalars*>(scalar_view.data);
  update_cuda(gpu.context, rule, update);
  for (const auto& [host, device] : moved) {
    gpu.download({host.data, host.size_bytes()}, {device.data, device.size_bytes()});
  }
  gpu.forget();
}

TEST_F(GpuTest, UpdatesHaveTheBitsOfTheReference) {
  for (const UpdateRule* rule : update_rules_for_trainers()) {
    SCOPED_TRACE(rule->name);
    const StepScalars scalars = second_scalars(*rule);
    for (const ParameterKind kind : kParameterKinds) {
      for (const std::int64_t offset : {0, 3}) {
        // A square that is Inf makes the second moment NaN a step later, and that NaN's bits differ
        // from the CPU's.
        for (const bool has_huge : {true, false}) {
          UpdateState expected(*rule, 70001, offset, kind);
          UpdateState state(*rule, 70001, offset, kind);
          for (UpdateState* one : {&expected, &state}) {
            fill_state(*one, 11);
            for (float& g : one->gradient.elements()) g = has_huge ? g : std::min(g, 1e15F);
          }
          for (int step = 0; step < (has_huge ? 1 : 3); ++step) {
            rule->reference(expected.update(scalars));
            run_on_gpu(*gpu_, *rule, state.update(scalars));
          }
          expect_same_bits(state, expected);
        }
      }
    }
  }
}

TEST_F(GpuTest, NarrowSlotsHaveTheBitsOfTheReference) {
  constexpr std::int64_t kElements = 5 * 4096;
  for (const UpdateRule* rule : update_rules_for_trainers()) {
    for (const Form& form : kForms) {
      SCOPED_TRACE(std::string(rule->name) + " " + form.name);
      Training expected(*rule, form, kElements);
      Training training(*rule, form, kElements);
      for (std::uint32_t t = 1; t <= 4; ++t) {
        rule->reference(expected.step(t));
        run_on_gpu(*gpu_, *rule, training.step(t));
      }
      EXPECT_EQ(training.parameter, expected.parameter);
      EXPECT_EQ(training.state, expected.state);
    }
  }
}

TEST_F(GpuTest, EveryCodeIsReadAsTheReferenceReadsIt) {
  for (const UpdateRule* rule : update_rules_for_trainers()) {
    for (const Form& form : kForms) {
      if (form.format.slot_form != SlotForm::kInt8) continue;
      SCOPED_TRACE(std::string(rule->name) + " " + form.name);
      Training expected(*rule, form, 4096);
      Training training(*rule, form, 4096);
      rule->reference(step_from_every_code(expected));
      run_on_gpu(*gpu_, *rule, step_from_every_code(training));
      EXPECT_EQ(training.parameter, expected.parameter);
      EXPECT_EQ(training.state, expected.state);
    }
  }
}

}  // namespace
}  // namespace terrace::test
