#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/reference/reference_kernels.h"
#include "tests/kernels/op_case.h"
#include "tests/kernels/shared_kernels.h"

// NaN in the input of dropout. Processors differ in the bits of a NaN that a product gives, so the
// cases of the conformance tests have none.
namespace terrace::test {
namespace {

constexpr std::int64_t kColumns = 70;

// Drops about half of the elements of three rows: samples 3, none and 5.
OpCase nan_case(DType type) {
  OpCase c;
  c.inputs.emplace_back(type, shape(3, kColumns));
  for (std::int64_t i = 0; i < 3 * kColumns; ++i) {
    c.inputs[0].set(i, i % 3 == 0 ? std::numeric_limits<double>::quiet_NaN() : 2.0);
  }
  c.inputs.emplace_back(DType::kI32, shape(3));
  for (std::int64_t row = 0; row < 3; ++row) {
    c.inputs[1].set(row, row == 1 ? -1.0 : 3.0 + static_cast<double>(row));
  }
  c.outputs = {{.dtype = type, .shape = shape(3, kColumns)}};
  set_op(c, &KernelTable::dropout, [](const Views& in, const Views& out, GradientMode) {
    return Dropout{.x = in[0],
                   .y = out[0],
                   .samples = in[1],
                   .seed = 17,
                   .threshold = 0x80000000,
                   .factor = 2};
  });
  return c;
}

void expect_dropped_or_kept(const KernelTable& table, DType type) {
  const OpCase op_case = nan_case(type);
  const HostTensor y = run_case(table, op_case, false, {})[0];
  int dropped = 0;
  int kept = 0;
  for (std::int64_t i = 0; i < y.elements(); ++i) {
    const bool is_copied = i / kColumns == 1;
    if (i % 3 != 0) {
      EXPECT_TRUE(is_copied ? y.at(i) == 2 : y.at(i) == 0 || y.at(i) == 4) << i;
    } else if (is_copied) {
      EXPECT_TRUE(std::isnan(y.at(i))) << i;
    } else if (std::isnan(y.at(i))) {
      ++kept;
    } else {
      EXPECT_EQ(y.at(i), 0) << i;
      ++dropped;
    }
  }
  EXPECT_GT(dropped, 10);
  EXPECT_GT(kept, 10);
}

TEST(Dropout, KeepsANanOrReplacesItByZero) {
  for (const KernelTable* table : {&reference_kernels(), &cpu_kernels(), &shared_kernels()}) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      if (type == DType::kF16 && table == &cpu_kernels()) continue;
      SCOPED_TRACE(std::string(table->name) + " " + std::string(name_of(type)));
      expect_dropped_or_kept(*table, type);
    }
  }
}

}  // namespace
}  // namespace terrace::test
