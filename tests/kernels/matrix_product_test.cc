#include "kernels/cpu/matrix_product.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cpu/few_rows_product.h"
#include "kernels/cpu/pair_products.h"
#include "kernels/cpu/panel_product.h"
#include "memory/host/worker_arena.h"
#include "tests/kernels/every_target.h"
#include "tests/kernels/op_case.h"

// Every code of a matrix product, in every form that the kernels ask for. On a machine without tile
// registers the code for them is left out.
namespace terrace::test {
namespace {

struct Form {
  std::int64_t m, n, k;
  bool a_transposed, b_transposed, has_bias;
};

std::vector<Form> forms() {
  std::vector<Form> forms;
  // Whole strips and blocks, edges of every kind, more depth than a task packs, and products with
  // few rows and enough columns to be computed in panels.
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{64, 64, 64},
                                {1, 1, 1},
                                {33, 31, 65},
                                {17, 290, 7},
                                {300, 40, 300},
                                {32, 48, 1031},
                                {3, 70, 333},
                                {8, 33, 129},
                                {9, 1540, 300},
                                {530, 515, 70}}) {
    for (const bool a : {false, true}) {
      for (const bool b : {false, true}) forms.push_back({m, n, k, a, b, m % 2 == 1});
    }
  }
  return forms;
}

struct Code {
  ProductCode code;
  DType input;

  bool takes(const MatrixProduct& product) const {
    return code != ProductCode::kFewRows || is_of_few_rows(product);
  }
};

std::vector<Code> codes() {
  std::vector<Code> codes = {{ProductCode::kFewRows, DType::kBF16},
                             {ProductCode::kFewRows, DType::kF32},
                             {ProductCode::kOneDnn, DType::kF32},
                             {ProductCode::kVectors, DType::kBF16},
                             {ProductCode::kVectors, DType::kF32}};
  if (gemm_takes(DType::kBF16)) codes.push_back({ProductCode::kOneDnn, DType::kBF16});
  if (product_code(DType::kBF16) == ProductCode::kAmx) {
    codes.push_back({ProductCode::kAmx, DType::kBF16});
  }
  if (pair_products_usable()) codes.push_back({ProductCode::kPairs, DType::kBF16});
  return codes;
}

// The operands of a product, whose rows are 3 elements longer than they must be.
struct Operands {
  Operands(const Form& form, DType input, DType output, Random& random)
      : a(HostTensor::random(input, shape(form.a_transposed ? form.k : form.m, a_stride(form)),
                             random)),
        b(HostTensor::random(input, shape(form.b_transposed ? form.n : form.k, b_stride(form)),
                             random)),
        bias(HostTensor::random(output, shape(form.n), random)),
        c(output, shape(form.m, form.n + 3)) {
    c.fill_garbage();
  }
  static std::int64_t a_stride(const Form& form) {
    return (form.a_transposed ? form.m : form.k) + 3;
  }
  static std::int64_t b_stride(const Form& form) {
    return (form.b_transposed ? form.k : form.n) + 3;
  }
  MatrixProduct product(const Form& form) {
    return {.shape = {.m = form.m,
                      .n = form.n,
                      .k = form.k,
                      .a_stride = a_stride(form),
                      .b_stride = b_stride(form),
                      .c_stride = form.n + 3,
                      .input = a.view().dtype,
                      .output = c.view().dtype,
                      .bias_dtype = c.view().dtype,
                      .a_transposed = form.a_transposed,
                      .b_transposed = form.b_transposed,
                      .has_bias = form.has_bias},
            .a = a.view().data,
            .b = b.view().data,
            .c = c.view().data,
            .bias = form.has_bias ? bias.view().data : nullptr};
  }
  // Return A's rows and B's columns, each in order.
  std::vector<double> rows_of_a(const Form& form) const {
    std::vector<double> rows;
    for (std::int64_t i = 0; i < form.m; ++i) {
      for (std::int64_t l = 0; l < form.k; ++l) {
        rows.push_back(a.at(form.a_transposed ? l * a_stride(form) + i : i * a_stride(form) + l));
      }
    }
    return rows;
  }
  std::vector<double> columns_of_b(const Form& form) const {
    std::vector<double> columns;
    for (std::int64_t j = 0; j < form.n; ++j) {
      for (std::int64_t l = 0; l < form.k; ++l) {
        columns.push_back(
            b.at(form.b_transposed ? j * b_stride(form) + l : l * b_stride(form) + j));
      }
    }
    return columns;
  }

  HostTensor a, b, bias, c;
};

void run(const MatrixProduct& product, ProductCode code, int threads, std::byte fill) {
  WorkerArena workers(threads);
  const std::size_t bytes = multiply_workspace(product, threads, code);
  std::vector<std::byte> storage(bytes + 64, fill);
  const std::size_t skipped = 64 - reinterpret_cast<std::uintptr_t>(storage.data()) % 64;
  KernelContext context;
  context.workers = &workers;
  context.workspace = std::span(storage).subspan(skipped, bytes);
  multiply(context, product, code);
}

// Checks the result against the bound of matmul_cases.cc.
void expect_right(const Form& form, const Operands& got, DType output, const std::string& what) {
  const double unit = rounding_to(output).unit;
  const std::vector<double> rows = got.rows_of_a(form);
  const std::vector<double> columns = got.columns_of_b(form);
  for (std::int64_t i = 0; i < form.m; ++i) {
    for (std::int64_t j = 0; j < form.n; ++j) {
      const double* row = rows.data() + i * form.k;
      const double* column = columns.data() + j * form.k;
      double want = form.has_bias ? got.bias.at(j) : 0.0;
      double magnitude = std::abs(want);
      for (std::int64_t l = 0; l < form.k; ++l) {
        const double term = row[l] * column[l];
        want += term;
        magnitude += std::abs(term);
      }
      const double sum = static_cast<double>(form.k + 2) * kUnitF32 * magnitude;
      const double bound = sum + unit * (std::abs(want) + sum);
      ASSERT_LE(std::abs(got.c.at(i * (form.n + 3) + j) - want), bound)
          << what << " at " << i << ", " << j;
    }
    for (std::int64_t j = form.n; j < form.n + 3; ++j) {
      ASSERT_TRUE(std::isnan(got.c.at(i * (form.n + 3) + j))) << what << " wrote past row " << i;
    }
  }
}

TEST(MatrixProductTest, IsRightInEveryFormAndCode) {
  for (const Code& one : codes()) {
    const auto& [code, input] = one;
    for (const DType output : {DType::kBF16, DType::kF32}) {
      if (input == DType::kF32 && output != input) continue;
      Random random(3);
      for (const Form& form : forms()) {
        Operands operands(form, input, output, random);
        if (!one.takes(operands.product(form))) continue;
        run(operands.product(form), code, 1, std::byte{0xFF});
        expect_right(form, operands, output,
                     fmt::format("code {} {} {} {}x{}x{} a_t {} b_t {}", static_cast<int>(code),
                                 name_of(input), name_of(output), form.m, form.n, form.k,
                                 form.a_transposed, form.b_transposed));
      }
    }
  }
}

TEST(MatrixProductTest, BitsDoNotDependOnWorkersOrWorkspace) {
  for (const Code& way : codes()) {
    const auto& [code, input] = way;
    for (const Form& form : forms()) {
      Random random(5);
      Operands one(form, input, DType::kF32, random);
      if (!way.takes(one.product(form))) continue;
      run(one.product(form), code, 1, std::byte{0});
      for (const int threads : {2, 3, 64}) {
        Random again(5);
        Operands many(form, input, DType::kF32, again);
        run(many.product(form), code, threads, std::byte{0xFF});
        ASSERT_TRUE(std::ranges::equal(one.c.bytes(), many.c.bytes())) << threads << " threads";
      }
    }
  }
}

// Returns every code of ours that packs strips, with each of the forms.
std::vector<std::pair<Code, Form>> ways_of_strips(const std::vector<Form>& forms) {
  std::vector<std::pair<Code, Form>> ways;
  for (const Code& code : codes()) {
    if (code.code == ProductCode::kOneDnn || code.code == ProductCode::kFewRows) continue;
    for (const Form& form : forms) ways.emplace_back(code, form);
  }
  return ways;
}

// In blocks and in panels, an element has the same bits as in a product of its own row and column
// alone.
TEST(MatrixProductTest, BitsOfStripsDependOnRowColumnAndDepthAlone) {
  const Form blocks = {300, 300, 520, false, true, false};
  const Form panels = {300, 1600, 520, false, false, false};
  EXPECT_FALSE(is_of_panels({.shape = {.m = blocks.m, .n = blocks.n, .k = blocks.k}}));
  EXPECT_TRUE(is_of_panels({.shape = {.m = panels.m, .n = panels.n, .k = panels.k}}));
  for (const auto& [way, whole] : ways_of_strips({blocks, panels})) {
    const auto& [code, input] = way;
    Random random(7);
    Operands operands(whole, input, DType::kF32, random);
    run(operands.product(whole), code, 2, std::byte{0});
    const auto size = static_cast<std::int64_t>(size_of(input));
    for (const auto& [i, j] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 0}, {299, 299}, {257, 31}}) {
      MatrixProduct product = operands.product(whole);
      product.shape.m = 1;
      product.shape.n = 1;
      product.a += i * product.shape.a_stride * size;
      product.b += j * (whole.b_transposed ? product.shape.b_stride : 1) * size;
      float alone = 0;
      product.c = reinterpret_cast<std::byte*>(&alone);
      run(product, code, 1, std::byte{0});
      EXPECT_EQ(alone, static_cast<float>(operands.c.at(i * (whole.n + 3) + j)));
    }
  }
}

// A text is the same whether its tokens come one by one or several at a time.
TEST(MatrixProductTest, BitsOfFewRowsDoNotDependOnTheirNumber) {
  const Form whole = {kFewRows, 75, 519, false, true, true};
  for (const std::int64_t target : usable_targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const OnTarget on_target(target);
    for (const DType input : {DType::kBF16, DType::kF32}) {
      Random random(11);
      Operands operands(whole, input, DType::kF32, random);
      run(operands.product(whole), ProductCode::kFewRows, 2, std::byte{0});
      expect_right(whole, operands, DType::kF32, hwy::TargetName(target));
      for (std::int64_t rows = 1; rows < kFewRows; ++rows) {
        const std::int64_t first = kFewRows - rows;
        HostTensor some(DType::kF32, shape(rows, whole.n + 3));
        MatrixProduct product = operands.product(whole);
        product.shape.m = rows;
        product.a += first * product.shape.a_stride * static_cast<std::int64_t>(size_of(input));
        product.c = some.view().data;
        run(product, ProductCode::kFewRows, 1, std::byte{0});
        for (std::int64_t i = 0; i < rows * (whole.n + 3); ++i) {
          if (i % (whole.n + 3) >= whole.n) continue;
          ASSERT_EQ(some.at(i), operands.c.at(first * (whole.n + 3) + i)) << rows << " rows";
        }
      }
    }
  }
}

TEST(MatrixProductTest, FewRowsOfAWeightAreReadWhereTheyLie) {
  const GemmShape forward = {.m = kFewRows, .n = 40, .k = 30, .b_transposed = true};
  EXPECT_EQ(product_code({.shape = forward}), ProductCode::kFewRows);
  EXPECT_EQ(multiply_workspace({.shape = forward}, 2), 0U);
  MatrixProduct more = {.shape = forward};
  more.shape.m = kFewRows + 1;
  EXPECT_NE(product_code(more), ProductCode::kFewRows);
  MatrixProduct backward = {.shape = forward};
  backward.shape.b_transposed = false;
  EXPECT_NE(product_code(backward), ProductCode::kFewRows);
  EXPECT_NE(product_code({.shape = forward, .gradient = GradientMode::kAssign}),
            ProductCode::kFewRows);
}

}  // namespace
}  // namespace terrace::test
