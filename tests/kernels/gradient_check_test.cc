#include "tests/kernels/gradient_check.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/head_chunk.h"

// Every backward of the reference, except for experts (expert_gradient_test.cc) and the losses of
// routers (router_gradient_test.cc).
namespace terrace::test {
namespace {

// A context with its workspace, NaN before the call.
class Workspace {
 public:
  explicit Workspace(std::size_t size_bytes)
      : bytes_(DType::kF64, shape(static_cast<std::int64_t>(size_bytes / sizeof(double)) + 1)) {
    bytes_.fill_garbage();
    context_.workspace = {bytes_.view().data, size_bytes};
  }
  const KernelContext& context() const { return context_; }

 private:
  HostTensor bytes_;
  KernelContext context_;
};

class GradientCheck : public testing::TestWithParam<GradientMode> {};

TEST_P(GradientCheck, Matmul) {
  Random random(11);
  const std::int64_t R = 3, N = 5, K = 7;
  HostTensor x = random_f64(shape(R, K), random);
  HostTensor weight = random_f64(shape(N, K), random);
  HostTensor bias = random_f64(shape(N), random);
  const HostTensor dy = random_f64(shape(R, N), random);
  HostTensor y(DType::kF64, shape(R, N));
  const auto loss = [&] {
    kernels().matmul_forward({}, {x.view(), weight.view(), bias.view(), y.view()});
    return dot(y, dy);
  };
  Gradient dx(shape(R, K), random);
  Gradient dweight(shape(N, K), GetParam(), random);
  Gradient dbias(shape(N), GetParam(), random);
  kernels().matmul_backward_input({}, {dy.view(), weight.view(), dx.value.view()});
  kernels().matmul_backward_weight(
      {}, {dy.view(), x.view(), dweight.value.view(), dbias.value.view(), GetParam()});
  expect_gradient(x, dx, loss);
  expect_gradient(weight, dweight, loss);
  expect_gradient(bias, dbias, loss);
}

// The residual stream goes around the norm, so x enters the loss a second time. Two heads of each
// row, within wider rows, are normed separately.
struct RmsNormCheck {
  static constexpr std::int64_t kRows = 3, kWidth = 7, kGroups = 2, kColumns = 17, kFirst = 2;

  RmsNormCheck(RmsNormForm norm_form, Random& random)
      : form(norm_form),
        x(random_f64(shape(kRows, kColumns), random)),
        weight(random_f64(shape(kWidth), random)),
        dy(random_f64(shape(kRows, kColumns), random)),
        dresidual(random_f64(shape(kRows, kColumns), random)),
        y(DType::kF64, shape(kRows, kColumns)),
        rstd(DType::kF64, shape(kRows * kGroups)) {}

  static StridedRows heads(const HostTensor& matrix) {
    return columns_of(matrix.view(), kFirst, kGroups * kWidth);
  }
  double loss() const {
    kernels().rms_norm_forward(
        {},
        {.x = heads(x), .weight = weight.view(), .y = heads(y), .rstd = rstd.view(), .form = form});
    return dot(y, dy) + dot(x, dresidual);
  }

  RmsNormForm form;
  HostTensor x, weight, dy, dresidual, y, rstd;
};

TEST_P(GradientCheck, RmsNorm) {
  using enum RmsNormForm;
  for (const RmsNormForm form : {kRoundThenMultiply, kMultiplyThenRound, kMultiplyByOnePlus}) {
    SCOPED_TRACE(static_cast<int>(form));
    Random random(12);
    RmsNormCheck check(form, random);
    const auto loss = [&] { return check.loss(); };
    loss();
    // Columns beside the heads enter the loss by the residual alone.
    Gradient dx(shape(RmsNormCheck::kRows, RmsNormCheck::kColumns), random);
    for (std::int64_t i = 0; i < dx.value.elements(); ++i) dx.value.set(i, check.dresidual.at(i));
    Gradient dweight(shape(RmsNormCheck::kWidth), GetParam(), random);
    const StridedRows dx_heads = RmsNormCheck::heads(dx.value);
    kernels().rms_norm_backward({}, {.dy = RmsNormCheck::heads(check.dy),
                                     .x = RmsNormCheck::heads(check.x),
                                     .weight = check.weight.view(),
                                     .rstd = check.rstd.view(),
                                     .dresidual = dx_heads,
                                     .dx = dx_heads,
                                     .dweight = dweight.value.view(),
                                     .form = form,
                                     .mode = GetParam()});
    expect_gradient(check.x, dx, loss);
    expect_gradient(check.weight, dweight, loss);
  }
}

TEST_P(GradientCheck, LayerNorm) {
  Random random(13);
  const std::int64_t R = 3, C = 7;
  HostTensor x = random_f64(shape(R, C), random);
  HostTensor weight = random_f64(shape(C), random);
  HostTensor bias = random_f64(shape(C), random);
  const HostTensor dy = random_f64(shape(R, C), random);
  const HostTensor dresidual = random_f64(shape(R, C), random);
  HostTensor y(DType::kF64, shape(R, C));
  HostTensor mean(DType::kF64, shape(R));
  HostTensor rstd(DType::kF64, shape(R));
  const auto loss = [&] {
    kernels().layer_norm_forward(
        {}, {x.view(), weight.view(), bias.view(), y.view(), mean.view(), rstd.view()});
    return dot(y, dy) + dot(x, dresidual);
  };
  loss();
  Gradient dx(shape(R, C), random);
  Gradient dweight(shape(C), GetParam(), random);
  Gradient dbias(shape(C), GetParam(), random);
  kernels().layer_norm_backward(
      {}, {dy.view(), x.view(), weight.view(), mean.view(), rstd.view(), dresidual.view(),
           dx.value.view(), dweight.value.view(), dbias.value.view(), GetParam()});
  expect_gradient(x, dx, loss);
  expect_gradient(weight, dweight, loss);
  expect_gradient(bias, dbias, loss);
}

struct EmbeddingCheck {
  bool given_positions = false;
  float scale = 1;
  std::int64_t padding_token = -1;
};

// With a padding token, the loss contains none of that token's rows.
void check_embedding(GradientMode mode, const EmbeddingCheck& check) {
  Random random(14);
  const std::int64_t B = 2, T = 3, R = B * T, C = 5, V = 4, P = T + 1;
  const std::vector<HostTensor> tokens = {HostTensor::random_indices(shape(R), random, V),
                                          HostTensor::random_indices(shape(R), random, V)};
  const std::vector<HostTensor> positions = {HostTensor::random_indices(shape(R), random, P),
                                             HostTensor::random_indices(shape(R), random, P)};
  const std::vector<HostTensor> dh = {random_f64(shape(R, C), random),
                                      random_f64(shape(R, C), random)};
  HostTensor wte = random_f64(shape(V, C), random);
  HostTensor wpe = random_f64(shape(P, C), random);
  HostTensor h(DType::kF64, shape(R, C));
  const auto loss = [&] {
    double sum = 0;
    for (std::size_t m = 0; m < tokens.size(); ++m) {
      kernels().embedding_forward(
          {}, {.tokens = tokens[m].view(),
               .wte = wte.view(),
               .wpe = wpe.view(),
               .h = h.view(),
               .sequence = T,
               .positions = check.given_positions ? positions[m].view() : TensorView{},
               .scale = check.scale});
      sum += dot(h, dh[m]);
    }
    for (std::int64_t i = 0; i < 2 * R * C && check.padding_token >= 0; ++i) {
      const std::size_t m = i < R * C ? 0 : 1;
      const std::int64_t at = i % (R * C);
      if (static_cast<std::int64_t>(tokens[m].at(at / C)) != check.padding_token) continue;
      sum -= check.scale * wte.at(check.padding_token * C + at % C) * dh[m].at(at);
    }
    return sum;
  };
  Gradient dwte(shape(V, C), mode, random);
  Gradient dwpe(shape(P, C), random);
  const TensorView token_views[] = {tokens[0].view(), tokens[1].view()};
  const TensorView position_views[] = {positions[0].view(), positions[1].view()};
  const TensorView dh_views[] = {dh[0].view(), dh[1].view()};
  EmbeddingBackward op;
  op.tokens = token_views;
  op.dh = dh_views;
  op.dwte = dwte.value.view();
  op.dwpe = dwpe.value.view();
  op.sequence = T;
  op.wte_mode = mode;
  if (check.given_positions) op.positions = position_views;
  op.scale = check.scale;
  op.padding_token = check.padding_token;
  kernels().embedding_backward({}, op);
  expect_gradient(wte, dwte, loss);
  expect_gradient(wpe, dwpe, loss);
}

TEST_P(GradientCheck, Embedding) { check_embedding(GetParam(), {}); }
TEST_P(GradientCheck, EmbeddingOfGivenPositions) {
  check_embedding(GetParam(), {.given_positions = true});
}
TEST_P(GradientCheck, EmbeddingTimesAScale) {
  check_embedding(GetParam(), {.given_positions = true, .scale = 3.5F});
}
TEST_P(GradientCheck, EmbeddingWithPadding) {
  check_embedding(GetParam(), {.scale = 0.5F, .padding_token = 2});
}

// The head on R rows, every fourth without a target, and all its gradients.
struct Head {
  Head(std::int64_t rows, std::int64_t width, std::int64_t vocabulary, Random& random)
      : h(random_f64(shape(rows, width), random)),
        weight(random_f64(shape(vocabulary, width), random)),
        target(HostTensor::random_indices(shape(rows), random,
                                          static_cast<std::int32_t>(vocabulary))) {
    for (std::int64_t r = 1; r < rows; r += 4) target.set(r, -100);
  }
  HeadLoss op() {
    HeadLoss op;
    op.h = h.view();
    op.weight = weight.view();
    op.target = target.view();
    op.gradient_scale = 0.25F;
    op.loss_sum = &loss_sum;
    op.logit_scale = logit_scale;
    op.soft_cap = soft_cap;
    return op;
  }
  double scaled_loss() {
    const HeadLoss loss_only = op();
    kernels().head_loss(Workspace(kernels().head_loss_workspace(loss_only, 1)).context(),
                        loss_only);
    return 0.25 * loss_sum;
  }
  void backward(const HostTensor& dh, const HostTensor& dweight, GradientMode mode) {
    HeadLoss all = op();
    all.dh = dh.view();
    all.dweight = dweight.view();
    all.mode = mode;
    kernels().head_loss(Workspace(kernels().head_loss_workspace(all, 1)).context(), all);
  }

  HostTensor h, weight, target;
  double loss_sum = 0;
  float logit_scale = 1;
  float soft_cap = 0;
};

void check_head(GradientMode mode, float logit_scale, float soft_cap) {
  Random random(15);
  const std::int64_t R = 7, C = 3, V = 11;
  Head head(R, C, V, random);
  head.logit_scale = logit_scale;
  head.soft_cap = soft_cap;
  Gradient dh(shape(R, C), random);
  Gradient dweight(shape(V, C), mode, random);
  head.backward(dh.value, dweight.value, mode);
  const auto loss = [&] { return head.scaled_loss(); };
  expect_gradient(head.h, dh, loss);
  expect_gradient(head.weight, dweight, loss);
}

TEST_P(GradientCheck, HeadLoss) { check_head(GetParam(), 1.0F, 0.0F); }
TEST_P(GradientCheck, HeadLossOfScaledLogits) { check_head(GetParam(), 0.25F, 0.0F); }
TEST_P(GradientCheck, HeadLossOfCappedLogits) { check_head(GetParam(), 2.0F, 0.8F); }

// The head on three parts of the vocabulary, each with its sums and its gradients; dh is the sum
// over the parts.
struct PartedHead {
  static constexpr std::int64_t kParts = 3;

  PartedHead(Head& head_in, std::int64_t vocabulary)
      : head(head_in),
        part(vocabulary / kParts),
        rows(head_in.h.view().shape[0]),
        sums(DType::kF64, shape(kParts, rows, kLogitSums)) {}

  TensorView rows_of(const HostTensor& matrix, std::int64_t p) const {
    const std::int64_t C = matrix.view().shape[1];
    return view(matrix.view().data + static_cast<std::size_t>(p * part * C) * sizeof(double),
                DType::kF64, part, C);
  }
  void make_sums() const {
    for (std::int64_t p = 0; p < kParts; ++p) {
      HeadSums op;
      op.h = head.h.view();
      op.weight = rows_of(head.weight, p);
      op.target = head.target.view();
      const auto offset = static_cast<std::size_t>(p * rows * kLogitSums) * sizeof(double);
      op.sums = view(sums.view().data + offset, DType::kF64, rows, kLogitSums);
      op.first_token = p * part;
      op.logit_scale = head.logit_scale;
      op.soft_cap = head.soft_cap;
      kernels().head_sums(Workspace(kernels().head_sums_workspace(op, 1)).context(), op);
    }
  }
  // Returns the loss that part p computes, and writes part p's gradients to dh and dweight where
  // they are given; dweight needs dh.
  double loss(std::int64_t p, const HostTensor* dh, const HostTensor* dweight) const {
    double sum = 0;
    HeadPartLoss op;
    op.h = head.h.view();
    op.weight = rows_of(head.weight, p);
    op.target = head.target.view();
    op.sums = sums.view();
    op.first_token = p * part;
    op.gradient_scale = 0.25F;
    op.loss_sum = &sum;
    op.logit_scale = head.logit_scale;
    op.soft_cap = head.soft_cap;
    if (dh != nullptr) op.dh = dh->view();
    if (dweight != nullptr) op.dweight = rows_of(*dweight, p);
    kernels().head_part_loss(Workspace(kernels().head_part_loss_workspace(op, 1)).context(), op);
    return 0.25 * sum;
  }

  Head& head;
  std::int64_t part, rows;
  HostTensor sums;
};

TEST(PartedGradientCheck, HeadOfCappedLogits) {
  Random random(21);
  const std::int64_t R = 7, C = 3, V = 12;
  Head head(R, C, V, random);
  head.logit_scale = 2.0F;
  head.soft_cap = 0.8F;
  PartedHead parted(head, V);
  const auto loss = [&] {
    parted.make_sums();
    return parted.loss(1, nullptr, nullptr);
  };
  EXPECT_NEAR(loss(), head.scaled_loss(), 1e-12);
  Gradient dh(shape(R, C), random);
  Gradient dweight(shape(V, C), random);
  HostTensor whole(DType::kF64, shape(R, C));
  for (std::int64_t p = 0; p < PartedHead::kParts; ++p) {
    parted.loss(p, &dh.value, &dweight.value);
    for (std::int64_t i = 0; i < R * C; ++i) whole.set(i, whole.at(i) + dh.value.at(i));
  }
  for (std::int64_t i = 0; i < R * C; ++i) dh.value.set(i, whole.at(i));
  expect_gradient(head.h, dh, loss);
  expect_gradient(head.weight, dweight, loss);
}

TEST_P(GradientCheck, WeightOfTheHeadOverSeveralChunks) {
  Random random(16);
  const std::int64_t C = 2, V = 3, R = 2 * head_chunk_rows(V) + 5;
  Head head(R, C, V, random);
  Gradient dh(shape(R, C), random);
  Gradient dweight(shape(V, C), GetParam(), random);
  head.backward(dh.value, dweight.value, GetParam());
  // The loss is a sum over thousands of rows: its mean keeps the differences in range.
  const auto rows = static_cast<double>(R);
  Gradient mean = dweight;
  for (std::int64_t i = 0; i < V * C; ++i) {
    mean.before.set(i, dweight.before.at(i) / rows);
    mean.value.set(i, dweight.value.at(i) / rows);
  }
  expect_gradient(head.weight, mean, [&] { return head.scaled_loss() / rows; });
}

INSTANTIATE_TEST_SUITE_P(Modes, GradientCheck,
                         testing::Values(GradientMode::kAssign, GradientMode::kAccumulate),
                         [](const testing::TestParamInfo<GradientMode>& info) {
                           return info.param == GradientMode::kAssign ? "assign" : "accumulate";
                         });

TEST(ActivationGradientCheck, Rope) {
  Random random(17);
  const std::int64_t T = 3, R = 2 * T, heads = 3, D = 6, rotary = 4;
  HostTensor x = random_f64(shape(R, heads * D), random);
  const HostTensor dy = random_f64(shape(R, heads * D), random);
  HostTensor table = random_f64(shape(T, rotary), random);
  const auto rotate = [&](const HostTensor& rows, bool inverse) {
    kernels().rope({}, {.heads = columns_of(rows.view(), D, 2 * D),
                        .table = table.view(),
                        .sequence = T,
                        .head_width = D,
                        .rotary_width = rotary,
                        .inverse = inverse});
  };
  Gradient dx(shape(R, heads * D), random);
  for (std::int64_t i = 0; i < dy.elements(); ++i) dx.value.set(i, dy.at(i));
  rotate(dx.value, true);
  expect_gradient(x, dx, [&] {
    const HostTensor y =
        x;  // NOLINT(performance-unnecessary-copy-initialization): rotated in place
    rotate(y, false);
    return dot(y, dy);
  });
}

struct CheckedAttention {
  AttentionShape shape;
  std::int64_t window = 0;
  float soft_cap = 0.0F;
  std::int64_t document = 0;  // keys of one
  bool has_sinks = false;
};

class AttentionGradientCheck : public testing::TestWithParam<CheckedAttention> {};

TEST_P(AttentionGradientCheck, Qkv) {
  Random random(18);
  const auto& [s, window, soft_cap, document, has_sinks] = GetParam();
  const std::int64_t R = s.batch * s.queries;
  const std::int64_t queries = s.heads * s.head_width;
  const std::int64_t keys = s.key_value_heads * s.head_width;
  const Shape qkv_shape = shape(R, queries + 2 * keys);
  const Shape out_shape = shape(R, queries);
  HostTensor first_keys(DType::kI32, shape(s.batch, s.queries));
  AttentionRule rule = {.scale = 0.7F, .soft_cap = soft_cap, .window = window};
  if (document > 0) {
    for (std::int64_t r = 0; r < R; ++r) {
      const std::int64_t position = r % s.queries;
      first_keys.set(r, static_cast<double>(position / document * document));
    }
    rule.first_keys = first_keys.view();
  }
  HostTensor qkv = random_f64(qkv_shape, random);
  const HostTensor dout = random_f64(out_shape, random);
  HostTensor sinks = random_f64(shape(s.heads), random);
  if (has_sinks) rule.sinks = sinks.view();
  HostTensor out(DType::kF64, out_shape);
  HostTensor log_sum_exp(DType::kF64, shape(s.batch, s.heads, s.queries));
  const StridedRows q = columns_of(qkv.view(), 0, queries);
  const StridedRows k = columns_of(qkv.view(), queries, keys);
  const StridedRows v = columns_of(qkv.view(), queries + keys, keys);
  const auto loss = [&] {
    const AttentionForward op{s, rule, q, k, v, out.view(), log_sum_exp.view()};
    kernels().attention_forward(Workspace(kernels().attention_forward_workspace(op, 1)).context(),
                                op);
    return dot(out, dout);
  };
  loss();
  Gradient dqkv(qkv_shape, random);
  const TensorView to = dqkv.value.view();
  const AttentionBackward op{s,
                             rule,
                             q,
                             k,
                             v,
                             out.view(),
                             log_sum_exp.view(),
                             dout.view(),
                             columns_of(to, 0, queries),
                             columns_of(to, queries, keys),
                             columns_of(to, queries + keys, keys)};
  kernels().attention_backward(Workspace(kernels().attention_backward_workspace(op, 1)).context(),
                               op);
  expect_gradient(qkv, dqkv, loss);
  if (!has_sinks) return;
  for (const GradientMode mode : {GradientMode::kAssign, GradientMode::kAccumulate}) {
    Gradient dsinks(sinks.view().shape, mode, random);
    loss();
    kernels().attention_sinks_backward({}, {s, sinks.view(), out.view(), log_sum_exp.view(),
                                            dout.view(), dsinks.value.view(), mode});
    expect_gradient(sinks, dsinks, loss);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionGradientCheck,
                         testing::Values(CheckedAttention{{1, 1, 1, 1, 1, 4}},
                                         CheckedAttention{{2, 5, 5, 4, 2, 6}},
                                         CheckedAttention{{1, 7, 7, 3, 1, 2}},
                                         CheckedAttention{{2, 3, 3, 2, 2, 8}},
                                         CheckedAttention{{1, 7, 7, 2, 1, 4}, 3},
                                         CheckedAttention{{1, 4, 4, 1, 1, 4}, 1},
                                         CheckedAttention{{1, 5, 5, 2, 1, 4}, 0, 0.5F},
                                         CheckedAttention{{2, 7, 7, 2, 1, 4}, 3, 0.5F},
                                         CheckedAttention{{2, 7, 7, 2, 1, 4}, 0, 0.0F, 3},
                                         CheckedAttention{{1, 8, 8, 2, 2, 4}, 2, 0.5F, 4},
                                         CheckedAttention{{2, 5, 5, 4, 2, 6}, 0, 0.0F, 0, true},
                                         CheckedAttention{{1, 8, 8, 3, 1, 4}, 3, 0.5F, 4, true}));

TEST(ActivationGradientCheck, Glu) {
  for (const GateActivation activation :
       {GateActivation::kSilu, GateActivation::kGeluTanh, GateActivation::kClampedGate}) {
    SCOPED_TRACE(static_cast<int>(activation));
    Random random(19);
    const std::int64_t R = 3, I = 5;
    const double range = activation == GateActivation::kClampedGate ? 12.0 : 4.0;
    HostTensor gate_up = HostTensor::random(DType::kF64, shape(R, 2 * I), random, range);
    const HostTensor dy = random_f64(shape(R, I), random);
    HostTensor y(DType::kF64, shape(R, I));
    Gradient dgate_up(shape(R, 2 * I), random);
    kernels().glu_backward({}, {gate_up.view(), dy.view(), dgate_up.value.view(), activation});
    expect_gradient(gate_up, dgate_up, [&] {
      kernels().glu_forward({}, {gate_up.view(), y.view(), activation});
      return dot(y, dy);
    });
  }
}

TEST(ActivationGradientCheck, Gelu) {
  Random random(20);
  HostTensor x = HostTensor::random(DType::kF64, shape(33), random, 4.0);
  const HostTensor dy = random_f64(shape(33), random);
  HostTensor y(DType::kF64, shape(33));
  Gradient dx(shape(33), random);
  kernels().gelu_backward({}, {x.view(), dy.view(), dx.value.view()});
  expect_gradient(x, dx, [&] {
    kernels().gelu_forward({}, {x.view(), y.view()});
    return dot(y, dy);
  });
}

}  // namespace
}  // namespace terrace::test
