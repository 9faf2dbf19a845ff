#include <gtest/gtest.h>

#include <string>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/reference/reference_kernels.h"
#include "tests/kernels/op_case.h"

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
TEST_P(KernelConformance, Embedding) { expect_all(embedding_cases); }
TEST_P(KernelConformance, HeadLoss) { expect_all(head_loss_cases); }
TEST_P(KernelConformance, HeadPart) { expect_all(head_part_cases); }

INSTANTIATE_TEST_SUITE_P(Tables, KernelConformance,
                         testing::Values(TableAndType{reference_kernels, DType::kF32},
                                         TableAndType{reference_kernels, DType::kBF16},
                                         TableAndType{reference_kernels, DType::kF16},
                                         TableAndType{cpu_kernels, DType::kF32},
                                         TableAndType{cpu_kernels, DType::kBF16}),
                         [](const testing::TestParamInfo<TableAndType>& info) {
                           return std::string(info.param.table().name) + "_" +
                                  std::string(name_of(info.param.compute));
                         });

}  // namespace
}  // namespace terrace::test
