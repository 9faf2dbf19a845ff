#include <fmt/format.h>

#include <span>

#include "kernels/reference/reference_kernels.h"
#include "tests/kernels/attention_problem.h"
#include "tests/sanitized.h"

namespace terrace::test {
namespace {

constexpr AttentionShape whole(std::int64_t batch, std::int64_t sequence, std::int64_t heads,
                               std::int64_t key_value_heads, std::int64_t head_width) {
  return {batch, sequence, sequence, heads, key_value_heads, head_width};
}

// Sizes of inputs without options: one gives flat weights, the other puts the weights on few keys.
constexpr double kFlatAndSteep[] = {1.0, 6.0};
constexpr AttentionShape kAttentionShapes[] = {whole(1, 1, 1, 1, 32),   whole(2, 17, 4, 2, 32),
                                               whole(1, 130, 3, 1, 64), whole(3, 17, 2, 2, 64),
                                               whole(1, 67, 2, 1, 20),  whole(1, 70, 2, 1, 128)};

// Uniform elements of up to 3 give scores of about 3.
constexpr double kOfScores = 3.0;
constexpr AttentionProblem kRuledProblems[] = {
    {.shape = whole(2, 70, 2, 1, 32), .size = kOfScores, .window = 1},
    {.shape = whole(1, 200, 2, 1, 20), .window = 40},
    {.shape = whole(1, 67, 2, 2, 64), .size = kOfScores, .soft_cap = 2.5},
    {.shape = whole(1, 150, 2, 1, 16), .size = kOfScores, .window = 33, .soft_cap = 4},
    {.shape = whole(2, 140, 2, 1, 8), .size = kOfScores, .document = 37},
    {.shape = whole(2, 140, 2, 1, 40),
     .size = kOfScores,
     .window = 21,
     .soft_cap = 3,
     .document = 64},
    // Separate matrices of queries, keys and values, on boundaries of packs and not.
    {.shape = whole(2, 67, 4, 2, 32), .padding = 8},
    {.shape = whole(1, 70, 4, 2, 96), .size = kOfScores, .window = 50, .padding = 3},
    // Wide heads.
    {.shape = whole(1, 40, 2, 1, 256), .size = kOfScores},
    {.shape = whole(1, 33, 2, 2, 168), .size = kOfScores, .padding = 8},
    {.shape = whole(1, 67, 1, 1, 256), .size = kOfScores, .window = 9, .soft_cap = 3},
    // Sinks, with scores of the usual size and with small ones, and with every other option.
    {.shape = whole(2, 70, 4, 2, 64), .size = kOfScores, .sink_size = 4},
    {.shape = whole(1, 150, 3, 1, 20), .window = 33, .sink_size = 4},
    {.shape = whole(2, 140, 2, 1, 40),
     .size = kOfScores,
     .window = 21,
     .soft_cap = 3,
     .document = 64,
     .padding = 8,
     .sink_size = 4},
    {.shape = whole(1, 40, 2, 1, 256), .size = kOfScores, .sink_size = 4},
    {.shape = whole(1, 33, 8, 4, 16), .size = kOfScores, .sink_size = 300}};  // far from scores

// Problems with cached keys, as in generating the next tokens. They have no backward.
constexpr AttentionProblem kCachedProblems[] = {
    {.shape = {2, 1, 40, 2, 1, 64}, .size = kOfScores, .padding = 8},
    {.shape = {2, 5, 77, 4, 2, 32}, .size = kOfScores, .padding = 3},
    {.shape = {1, 1, 300, 6, 2, 20}, .size = kOfScores, .window = 33, .padding = 3},
    {.shape = {2, 8, 130, 5, 1, 72},
     .size = kOfScores,
     .soft_cap = 3,
     .document = 61,
     .padding = 8},
    {.shape = {1, 3, 90, 2, 2, 96}, .size = kOfScores, .window = 7, .soft_cap = 4, .padding = 8},
    {.shape = {1, 70, 135, 2, 1, 20}, .size = kOfScores, .window = 30, .soft_cap = 4, .padding = 8},
    {.shape = {2, 20, 75, 1, 1, 256}, .size = kOfScores, .document = 61, .padding = 8},
    {.shape = {2, 1, 40, 4, 2, 64}, .size = kOfScores, .padding = 8, .sink_size = 4},
    {.shape = {1, 70, 135, 2, 1, 20}, .window = 30, .padding = 8, .sink_size = 4},
    {.shape = {1, 2, 40, 8, 2, 16}, .size = kOfScores, .padding = 8, .sink_size = 2000}};

// A shape so long that the CPU uses several panels of keys and splits a head's queries among tasks.
constexpr AttentionShape kLongShape = whole(1, 1030, 2, 1, 20);
constexpr AttentionProblem kLongProblems[] = {
    {.shape = kLongShape, .size = kFlatAndSteep[0]},
    {.shape = kLongShape, .size = kFlatAndSteep[1]},
    {.shape = kLongShape, .size = kOfScores, .window = 600},
    {.shape = kLongShape, .size = kOfScores, .soft_cap = 3, .document = 150, .padding = 8},
    {.shape = kLongShape, .size = kOfScores, .sink_size = 4}};
constexpr AttentionProblem kLongCachedProblems[] = {
    {.shape = {1, 70, 1047, 2, 1, 20}, .size = kOfScores, .padding = 8},
    {.shape = {1, 70, 1047, 2, 1, 20}, .size = kOfScores, .window = 500, .padding = 8}};

// Problems that cuDNN takes: heads of a multiple of 8 elements, and a multiple of 4 rows for all of
// them.
constexpr AttentionProblem kLibraryProblems[] = {
    {.shape = whole(2, 256, 4, 4, 64)},
    {.shape = whole(1, 300, 6, 2, 64), .size = kFlatAndSteep[1]},
    {.shape = whole(2, 134, 4, 2, 128)},
    {.shape = whole(1, 512, 8, 8, 40), .size = kFlatAndSteep[1]},
    {.shape = whole(2, 256, 4, 4, 64), .size = kOfScores, .window = 50},
    {.shape = whole(1, 300, 6, 2, 128), .padding = 8}};

StridedRows columns_of(const Views& views, const HeadColumns& at, std::int64_t width) {
  return terrace::columns_of(views[at.tensor], at.first, width);
}

// `called`: the problem as the op is told it, which may have fewer options than the real one.
AttentionRule rule_of(const AttentionProblem& called, const Views& in) {
  AttentionRule rule;
  rule.scale = static_cast<float>(called.scale());
  rule.soft_cap = static_cast<float>(called.soft_cap);
  rule.window = called.window;
  if (called.document > 0) rule.first_keys = in[called.matrices()];
  if (called.has_sinks()) rule.sinks = in[called.sinks()];
  return rule;
}

AttentionForward forward_of(const AttentionProblem& called, const Views& in, const Views& out) {
  const HeadLayout from = called.inputs();
  return {.shape = called.shape,
          .rule = rule_of(called, in),
          .q = columns_of(in, from.q, called.query_columns()),
          .k = columns_of(in, from.k, called.key_columns()),
          .v = columns_of(in, from.v, called.key_columns()),
          .out = out[0],
          .log_sum_exp = out[1]};
}

AttentionBackward backward_of(const AttentionProblem& called, const Views& in, const Views& out,
                              std::size_t attended) {
  const HeadLayout from = called.inputs();
  const HeadLayout to = called.gradients(0);
  return {.shape = called.shape,
          .rule = rule_of(called, in),
          .q = columns_of(in, from.q, called.query_columns()),
          .k = columns_of(in, from.k, called.key_columns()),
          .v = columns_of(in, from.v, called.key_columns()),
          .out = in[attended],
          .log_sum_exp = in[attended + 1],
          .dout = in[attended + 2],
          .dq = columns_of(out, to.q, called.query_columns()),
          .dk = columns_of(out, to.k, called.key_columns()),
          .dv = columns_of(out, to.v, called.key_columns())};
}

std::string name_of_problem(const AttentionProblem& problem) {
  const AttentionShape& s = problem.shape;
  std::string name = fmt::format("attention_forward B={} T={} H={} G={} D={} size={}", s.batch,
                                 s.queries, s.heads, s.key_value_heads, s.head_width, problem.size);
  if (s.keys != s.queries) name += fmt::format(" keys={}", s.keys);
  if (problem.window > 0) name += fmt::format(" window={}", problem.window);
  if (problem.soft_cap > 0) name += fmt::format(" cap={}", problem.soft_cap);
  if (problem.document > 0) name += fmt::format(" document={}", problem.document);
  if (problem.is_apart()) name += fmt::format(" padding={}", problem.padding);
  if (problem.has_sinks()) name += " sinks";
  return name;
}

Shape matrix_of(const HeadColumns& columns, std::int64_t rows) {
  return shape(rows, columns.stride);
}

void add_matrices(std::vector<HostTensor>& to, DType compute, const AttentionProblem& problem,
                  const HeadLayout& layout, Random& random) {
  const auto add = [&](const HeadColumns& columns, std::int64_t rows) {
    to.push_back(HostTensor::random(compute, matrix_of(columns, rows), random, problem.size));
  };
  add(layout.q, problem.query_rows());
  if (!problem.is_apart()) return;
  add(layout.k, problem.key_rows());
  add(layout.v, problem.key_rows());
}

HostTensor first_keys_of(const AttentionProblem& problem) {
  const AttentionShape& s = problem.shape;
  HostTensor first_keys(DType::kI32, shape(s.batch, s.queries));
  for (std::int64_t row = 0; row < s.batch * s.queries; ++row) {
    const std::int64_t position = s.keys - s.queries + row % s.queries;
    first_keys.set(row,
                   static_cast<double>(problem.first_key_of_document(row / s.queries, position)));
  }
  return first_keys;
}

OpCase forward_case(DType compute, const AttentionProblem& problem, const AttentionProblem& called,
                    Random& random) {
  OpCase c;
  c.name = name_of_problem(problem);
  add_matrices(c.inputs, compute, problem, problem.inputs(), random);
  const AttentionShape& s = problem.shape;
  if (problem.document > 0 || problem.has_sinks()) c.inputs.push_back(first_keys_of(problem));
  if (problem.has_sinks()) {
    c.inputs.push_back(HostTensor::random(compute, shape(s.heads), random, problem.sink_size));
  }
  c.outputs = {{.dtype = compute, .shape = shape(problem.query_rows(), problem.query_columns())},
               {.dtype = DType::kF32, .shape = shape(s.batch, s.heads, s.queries)}};
  set_op(c, &KernelTable::attention_forward, &KernelTable::attention_forward_workspace,
         [called](const Views& in, const Views& out, GradientMode) {
           return forward_of(called, in, out);
         });
  c.bounds = [problem, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    return attention_forward_bounds(problem, rounding, in, want);
  };
  return c;
}

struct Backward {
  const AttentionProblem& problem;
  const AttentionProblem& called;
  GroupSums group_sums = GroupSums::kExact;
};

// out and log_sum_exp are the reference's, so that only the backward is judged. Gradients in
// separate matrices must leave the columns between heads as they are.
OpCase backward_case(DType compute, const OpCase& forward, const Backward& of, Random& random) {
  const AttentionProblem& problem = of.problem;
  OpCase c;
  c.name = "backward of " + forward.name;
  for (const HostTensor& input : forward.inputs) c.inputs.push_back(input);
  const std::size_t attended = c.inputs.size();
  for (const HostTensor& result : run_case(reference_kernels(), forward, false, {})) {
    c.inputs.push_back(result);
  }
  c.inputs.push_back(HostTensor::random(compute, c.inputs[attended].view().shape, random));
  const std::size_t before = c.inputs.size();
  if (problem.is_apart()) add_matrices(c.inputs, compute, problem, problem.gradients(0), random);
  for (std::size_t i = 0; i < problem.matrices(); ++i) {
    const std::size_t like = problem.is_apart() ? before + i : 0;
    c.outputs.push_back(
        {.dtype = compute,
         .shape = c.inputs[like].view().shape,
         .kind = problem.is_apart() ? OutputKind::kInPlace : OutputKind::kOverwritten,
         .same_as = like});
  }
  set_op(c, &KernelTable::attention_backward, &KernelTable::attention_backward_workspace,
         [called = of.called, attended](const Views& in, const Views& out, GradientMode) {
           return backward_of(called, in, out, attended);
         });
  c.bounds = BackwardBounds{problem, rounding_to(compute), of.group_sums, attended};
  return c;
}

OpCase sinks_backward_case(DType compute, const OpCase& forward, const AttentionProblem& problem,
                           Random& random) {
  OpCase c;
  c.name = "attention_sinks_backward of " + forward.name;
  c.inputs.push_back(forward.inputs[problem.sinks()]);
  for (const HostTensor& result : run_case(reference_kernels(), forward, false, {})) {
    c.inputs.push_back(result);
  }
  c.inputs.push_back(HostTensor::random(compute, c.inputs[1].view().shape, random));
  c.outputs = {
      {.dtype = DType::kF32, .shape = shape(problem.shape.heads), .kind = OutputKind::kGradient}};
  set_op(c, &KernelTable::attention_sinks_backward,
         [s = problem.shape](const Views& in, const Views& out, GradientMode mode) {
           return AttentionSinksBackward{s, in[0], in[1], in[2], in[3], out[0], mode};
         });
  c.bounds = [problem](const Values& in, const Values&) {
    return sinks_backward_bounds(problem, in);
  };
  return c;
}

void add_cases(std::vector<OpCase>& cases, DType compute,
               std::span<const AttentionProblem> problems, GroupSums group_sums) {
  Random random(3);
  for (const AttentionProblem& problem : problems) {
    const OpCase forward = forward_case(compute, problem, problem, random);
    cases.push_back(forward);
    if (problem.shape.queries != problem.shape.keys) continue;
    cases.push_back(backward_case(compute, forward, {problem, problem, group_sums}, random));
    if (problem.has_sinks()) {
      cases.push_back(sinks_backward_case(compute, forward, problem, random));
    }
  }
}

}  // namespace

std::vector<OpCase> attention_cases(DType compute, GroupSums group_sums) {
  std::vector<AttentionProblem> plain;
  for (const AttentionShape& s : kAttentionShapes) {
    for (const double size : kFlatAndSteep) plain.push_back({.shape = s, .size = size});
    if (kSanitized) plain.pop_back();  // other numbers, for the same code
  }
  std::vector<OpCase> cases;
  add_cases(cases, compute, plain, group_sums);
  add_cases(cases, compute, kRuledProblems, group_sums);
  add_cases(cases, compute, kCachedProblems, group_sums);
  return cases;
}
std::vector<OpCase> attention_cases(DType compute) {
  return attention_cases(compute, GroupSums::kExact);
}
std::vector<OpCase> long_attention_cases(DType compute) {
  std::vector<OpCase> cases;
  add_cases(cases, compute, kLongProblems, GroupSums::kExact);
  add_cases(cases, compute, kLongCachedProblems, GroupSums::kExact);
  return cases;
}

std::vector<OpCase> library_attention_cases(DType compute, GroupSums group_sums) {
  std::vector<OpCase> cases;
  add_cases(cases, compute, kLibraryProblems, group_sums);
  return cases;
}

std::vector<IgnoredOption> ignored_attention_options(DType compute) {
  std::vector<IgnoredOption> options;
  for (const AttentionProblem& problem : kRuledProblems) {
    const auto add = [&](const char* option, const AttentionProblem& called) {
      Random random(5);
      Random same(5);
      const OpCase forward = forward_case(compute, problem, problem, random);
      options.push_back({option, forward, forward_case(compute, problem, called, same)});
      Random again = random;
      options.push_back({option, backward_case(compute, forward, {problem, problem}, random),
                         backward_case(compute, forward, {problem, called}, again)});
    };
    AttentionProblem called = problem;
    called.window = 0;
    if (problem.window > 0) add("window", called);
    called = problem;
    called.soft_cap = 0;
    if (problem.soft_cap > 0) add("soft_cap", called);
    called = problem;
    called.document = 0;
    if (problem.document > 0) add("first_keys", called);
    called = problem;
    called.sink_size = 0;
    if (!problem.has_sinks()) continue;
    Random random(5);
    Random same(5);
    options.push_back({"sinks", forward_case(compute, problem, problem, random),
                       forward_case(compute, problem, called, same)});
  }
  return options;
}

}  // namespace terrace::test
