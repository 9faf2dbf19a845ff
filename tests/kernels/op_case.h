#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel_table.h"
#include "tests/kernels/host_tensor.h"

// One call of one op, described so that a single procedure can run it on any kernel table, in any
// compute type, and hold the result to a bound (kernel_conformance_test.cc).
namespace terrace::test {

using Views = std::vector<TensorView>;
using Values = std::vector<std::vector<double>>;

enum class OutputKind : std::uint8_t {
  kOverwritten,
  kGradient,  // stored or added, by GradientMode
  kInPlace,   // begins as the input `same_as`
};

struct Output {
  DType dtype = DType::kF32;
  Shape shape;
  OutputKind kind = OutputKind::kOverwritten;
  std::size_t same_as = 0;
};

struct OpCase {
  std::string name;
  std::vector<HostTensor> inputs;
  std::vector<Output> outputs;
  std::function<void(const KernelTable&, const KernelContext&, const Views& in, const Views& out,
                     GradientMode)>
      run;
  std::function<std::size_t(const KernelTable&, const Views& in, const Views& out, GradientMode,
                            int workers)>
      workspace_bytes;
  // Returns the largest error allowed in each element of each output, given the inputs and the fp64
  // results of the reference. If empty, the bits of the reference in the same type are demanded.
  std::function<Values(const Values& in, const Values& want)> bounds;
};

// Sets the case's op. `build(in, out, mode)` makes the op's struct; `run` and `workspace` are
// members of KernelTable.
template <typename Op, typename Build>
void set_op(OpCase& op_case, void (*KernelTable::*run)(const KernelContext&, const Op&),
            Build build) {
  op_case.run = [run, build](const KernelTable& table, const KernelContext& context,
                             const Views& in, const Views& out,
                             GradientMode mode) { (table.*run)(context, build(in, out, mode)); };
  op_case.workspace_bytes = [](const KernelTable&, const Views&, const Views&, GradientMode, int) {
    return std::size_t{0};
  };
}

template <typename Op, typename Build>
void set_op(OpCase& op_case, void (*KernelTable::*run)(const KernelContext&, const Op&),
            std::size_t (*KernelTable::*workspace)(const Op&, int), Build build) {
  set_op(op_case, run, build);
  op_case.workspace_bytes = [workspace, build](const KernelTable& table, const Views& in,
                                               const Views& out, GradientMode mode, int workers) {
    return (table.*workspace)(build(in, out, mode), workers);
  };
}

// Where the tensors of a case are while its op runs, for a table that does not work on host memory.
class CaseStage {
 public:
  virtual ~CaseStage() = default;
  // Returns copies of the tensors that the op can reach, as far from a boundary of 64 bytes as the
  // tensors are.
  virtual Views upload(const std::vector<HostTensor>& tensors) = 0;
  // Returns the context that the op runs with; every byte of its workspace is `fill`.
  virtual KernelContext context(std::size_t workspace_bytes, std::byte fill) = 0;
  // Waits for the op, copies back the tensors that upload() gave views of, in the order of the
  // calls, and forgets them all.
  virtual void download(const std::vector<std::vector<HostTensor>*>& tensors) = 0;
};

// The settings that a run starts from.
struct RunOptions {
  int workers = 1;
  GradientMode mode = GradientMode::kAssign;
  std::byte workspace_fill = std::byte{0xFF};  // 0xFF everywhere is a NaN
  // For kAccumulate: the values that each kGradient output holds before.
  const std::vector<HostTensor>* gradients_before = nullptr;
  bool on_boundary = false;    // tensors begin on boundaries of 64 bytes
  CaseStage* stage = nullptr;  // null: host memory, and workers
};

// Runs the case on `table`; outputs that are overwritten are NaN before. With `wide`, everything
// that is of a compute type is fp64 instead, with the same input values.
std::vector<HostTensor> run_case(const KernelTable& table, const OpCase& op_case, bool wide,
                                 const RunOptions& options);

// Expects equally many tensors of the same types and shapes with the same bits; the failure names
// the first element that differs.
void expect_same_bits(const std::vector<HostTensor>& got, const std::vector<HostTensor>& want,
                      const std::string& what);

// Checks one case against everything that the contract says of every op: the bound, the same bits
// for any number of workers and any earlier bytes in workspace and outputs, and accumulation as one
// addition.
void expect_conforms(const KernelTable& table, const OpCase& op_case, CaseStage* stage = nullptr);

// Expects that tensors on boundaries, from which many elements may be loaded at a time, give the
// same bits as tensors that are not.
void expect_same_on_boundary(const KernelTable& table, const OpCase& op_case,
                             CaseStage* stage = nullptr);

// Unit roundoffs. A result that is rounded once to type t has a relative error of at most
// the unit of t.
inline constexpr double kUnitF32 = 0x1.0p-24;
inline constexpr double kUnitBf16 = 0x1.0p-8;
inline constexpr double kUnitFp16 = 0x1.0p-11;
// Units of fp32 in the relative error of exp and log of a SIMD library.
inline constexpr double kExpUnits = 8;
// Units of fp32 that a soft cap (a tanh and the few operations around it) adds to the relative
// error of a logit, and to the error of the slope, which is at most 1.
inline constexpr double kMapUnits = 12;

// Returns the error of a sum of `terms` fp32 terms, relative to the sum of their sizes.
inline double units(std::int64_t terms) { return static_cast<double>(terms) * kUnitF32; }

// The most that one rounding to a type changes a number of some size. Below the least normal
// number, fp16 numbers stand 2^-24 apart; the denormal numbers of the other types are too small to
// matter here.
struct Rounding {
  double unit = kUnitF32;
  double absolute = 0;

  double of(double size) const { return unit * size + absolute; }
};
inline Rounding rounding_to(DType compute) {
  if (compute == DType::kBF16) return {.unit = kUnitBf16};
  if (compute == DType::kF16) return {.unit = kUnitFp16, .absolute = 0x1.0p-25};
  return {};
}

// The cases of each family, over shapes with and without remainders to any vector width or tile.
std::vector<OpCase> matmul_cases(DType compute);
std::vector<OpCase> norm_cases(DType compute);      // of both norms
std::vector<OpCase> rms_norm_cases(DType compute);  // of the RMS norm alone
std::vector<OpCase> rope_cases(DType compute);
// Whether each head's share of the gradients of its group's keys and values is rounded to the
// compute type before the shares are added: kernel_table.h allows it.
enum class GroupSums : std::uint8_t { kExact, kRounded };
std::vector<OpCase> attention_cases(DType compute, GroupSums group_sums);
std::vector<OpCase> attention_cases(DType compute);  // kExact
std::vector<OpCase> long_attention_cases(DType compute);
// An attention op, and the same op without one of the options of its rule.
struct IgnoredOption {
  std::string option;
  OpCase given, ignored;
};
std::vector<IgnoredOption> ignored_attention_options(DType compute);
// Returns cases for which cuDNN has plans.
std::vector<OpCase> library_attention_cases(DType compute, GroupSums group_sums);
std::vector<OpCase> activation_cases(DType compute);
std::vector<OpCase> elementwise_cases(DType compute);
std::vector<OpCase> wire_cases(DType compute);
std::vector<OpCase> embedding_cases(DType compute);
std::vector<OpCase> head_loss_cases(DType compute);
std::vector<OpCase> head_part_cases(DType compute);
std::vector<OpCase> expert_cases(DType compute);  // and of their routers
std::vector<OpCase> router_cases(DType compute);
// Returns calls that feed several workers, of the ops with scratch memory for each worker. They
// have no bounds.
std::vector<OpCase> busy_cases(DType compute);

}  // namespace terrace::test
