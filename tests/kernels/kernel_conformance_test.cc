#include <gtest/gtest.h>

#include <string>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/cpu_workspace.h"
#include "kernels/reference/reference_kernels.h"
#include "tests/kernels/op_case.h"
#include "tests/sanitized.h"

// Every kernel table passes the same suite, in every compute type.
namespace terrace::test {
namespace {

struct TableAndType {
  const KernelTable& (*table)();
  DType compute;
};

class KernelConformance : public testing::TestWithParam<TableAndType> {
 protected:
  void expect_all(std::vector<OpCase> (*cases)(DType)) {
    for (const OpCase& op_case : cases(GetParam().compute)) {
      expect_conforms(GetParam().table(), op_case);
    }
  }
};

TEST_P(KernelConformance, Matmul) { expect_all(matmul_cases); }
TEST_P(KernelConformance, Norm) { expect_all(norm_cases); }
TEST_P(KernelConformance, Rope) { expect_all(rope_cases); }
TEST_P(KernelConformance, Attention) { expect_all(attention_cases); }
TEST_P(KernelConformance, Activation) { expect_all(activation_cases); }
TEST_P(KernelConformance, Elementwise) { expect_all(elementwise_cases); }
TEST_P(KernelConformance, Wire) { expect_all(wire_cases); }
TEST_P(KernelConformance, Embedding) { expect_all(embedding_cases); }
TEST_P(KernelConformance, HeadLoss) { expect_all(head_loss_cases); }
TEST_P(KernelConformance, HeadPart) { expect_all(head_part_cases); }
TEST_P(KernelConformance, Experts) { expect_all(expert_cases); }

// Returns the workspace that the call needs for `workers` workers.
std::size_t workspace_for(const OpCase& op_case, int workers) {
  Views in;
  for (const HostTensor& input : op_case.inputs) in.push_back(input.view());
  std::vector<HostTensor> outputs;
  for (const Output& output : op_case.outputs) outputs.emplace_back(output.dtype, output.shape);
  Views out;
  for (const HostTensor& output : outputs) out.push_back(output.view());
  return op_case.workspace_bytes(cpu_kernels(), in, out, GradientMode::kAssign, workers);
}

class ManyWorkers : public testing::TestWithParam<DType> {};

// Tries more workers than there are tasks, and numbers of workers that do not divide the tasks.
TEST_P(ManyWorkers, HaveTheBitsOfOne) {
  for (const OpCase& op_case : busy_cases(GetParam())) {
    SCOPED_TRACE(op_case.name);
    const std::vector<HostTensor> one = run_case(cpu_kernels(), op_case, false, {});
    for (const int workers : {2, 3, 7, 64}) {
      const RunOptions options{.workers = workers, .workspace_fill = std::byte{0x3E}};
      expect_same_bits(run_case(cpu_kernels(), op_case, false, options), one,
                       std::to_string(workers) + " workers");
    }
  }
}

// Each case has too few operations to feed 64 workers, so 65 and more add nothing.
TEST_P(ManyWorkers, AddScratchMemoryOnlyWhileTheyAreFed) {
  for (const OpCase& op_case : busy_cases(GetParam())) {
    SCOPED_TRACE(op_case.name);
    std::size_t before = 0;
    for (int workers = 1; workers <= 64; ++workers) {
      const std::size_t bytes = workspace_for(op_case, workers);
      EXPECT_GE(bytes, before) << workers;
      before = bytes;
    }
    for (const int workers : {65, 128, 1000, 65536}) {
      EXPECT_EQ(workspace_for(op_case, workers), before) << workers;
    }
  }
}

TEST(FedWorkers, AreOneAtLeastAndNoMoreThanTasksAndOperations) {
  EXPECT_EQ(fed_workers(8, 0, 0.0), 1);
  EXPECT_EQ(fed_workers(8, 100, kWorkerFlops / 2), 1);
  EXPECT_EQ(fed_workers(8, 100, 2.5 * kWorkerFlops), 2);
  EXPECT_EQ(fed_workers(8, 3, 1e15), 3);
  EXPECT_EQ(fed_workers(8, 100, 1e15), 8);
  EXPECT_EQ(fed_workers(65536, std::int64_t{1} << 40, 1e18), 65536);
}

INSTANTIATE_TEST_SUITE_P(Types, ManyWorkers, testing::Values(DType::kF32, DType::kBF16),
                         [](const testing::TestParamInfo<DType>& info) {
                           return std::string(name_of(info.param));
                         });

INSTANTIATE_TEST_SUITE_P(
    Tables, KernelConformance,
    testing::ValuesIn(fewer_if_sanitized<TableAndType>({{reference_kernels, DType::kF32},
                                                        {reference_kernels, DType::kBF16},
                                                        {reference_kernels, DType::kF16},
                                                        {cpu_kernels, DType::kF32},
                                                        {cpu_kernels, DType::kBF16}},
                                                       {{reference_kernels, DType::kBF16},
                                                        {cpu_kernels, DType::kF32},
                                                        {cpu_kernels, DType::kBF16}})),
    [](const testing::TestParamInfo<TableAndType>& info) {
      return std::string(info.param.table().name) + "_" + std::string(name_of(info.param.compute));
    });

}  // namespace
}  // namespace terrace::test
