#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/streamed_head_loss.h"
#include "kernels/head_products.h"
#include "tests/kernels/every_target.h"
#include "tests/kernels/op_case.h"

// Tests the streamed head on every processor: cpu_head_loss chooses it only where there are tile
// registers, but its loops can take the sums of any matrix product.
namespace terrace::test {
namespace {

// Returns the CPU's table, except that the streamed head computes every head that it can.
KernelTable streamed_table() {
  KernelTable table = cpu_kernels();
  table.head_loss = [](const KernelContext& context, const HeadLoss& op) {
    if (op.logits.empty()) return streamed_head_loss(context, op);
    cpu_kernels().head_loss(context, op);
  };
  table.head_loss_workspace = [](const HeadLoss& op, int workers) {
    return op.logits.empty() ? streamed_head_loss_workspace(op, workers)
                             : cpu_kernels().head_loss_workspace(op, workers);
  };
  table.head_sums = [](const KernelContext& context, const HeadSums& op) {
    auto* const sums = reinterpret_cast<LogitSums*>(op.sums.as<float>());
    streamed_head_sums(context, products_of(op), op.first_token, sums);
  };
  table.head_sums_workspace = [](const HeadSums& op, int workers) {
    return streamed_head_loss_workspace(products_of(op), workers);
  };
  return table;
}

void expect_all(const std::vector<OpCase>& cases) {
  const KernelTable table = streamed_table();
  for (const OpCase& op_case : cases) expect_conforms(table, op_case);
}

// Returns the cases that are fast enough for many targets: without the most rows and without the
// most tokens, which StreamedHead.Conforms and the conformance suite run on the best target.
std::vector<OpCase> small_ones(std::vector<OpCase> cases) {
  std::erase_if(cases, [](const OpCase& c) {
    return c.name.find("R=4133") != c.name.npos || c.name.find("V=1301") != c.name.npos;
  });
  return cases;
}

TEST(StreamedHead, Conforms) { expect_all(head_loss_cases(DType::kBF16)); }

TEST(StreamedHead, ConformsInParts) {
  std::vector<OpCase> cases = head_part_cases(DType::kBF16);
  std::erase_if(cases, [](const OpCase& c) { return c.name.find("head_sums") == c.name.npos; });
  ASSERT_FALSE(cases.empty());
  expect_all(cases);
}

// The streamed head's own loops use vectors of every size: caps and gradients differ in their last
// bits.
TEST(StreamedHead, ConformsOnEveryTarget) {
  const std::vector<OpCase> cases = small_ones(head_loss_cases(DType::kBF16));
  for (const std::int64_t target : usable_targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const OnTarget on_target(target);
    expect_all(cases);
  }
}

// The loops of the head that keeps chunks of logits use vectors of every size too.
TEST(ChunkedHead, ConformsOnEveryTarget) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    std::vector<OpCase> cases = small_ones(head_loss_cases(compute));
    for (OpCase& part : small_ones(head_part_cases(compute))) cases.push_back(std::move(part));
    for (const std::int64_t target : usable_targets()) {
      SCOPED_TRACE(hwy::TargetName(target));
      const OnTarget on_target(target);
      for (const OpCase& op_case : cases) expect_conforms(cpu_kernels(), op_case);
    }
  }
}

}  // namespace
}  // namespace terrace::test
