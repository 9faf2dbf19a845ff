#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/model/unit_memory.h"
#include "runtime/model/unit_model.h"

// The graph of one unit: its forward and its backward as lists of kernel calls on tensors. The
// layers (runtime/model/layers.h) write the calls down once. Then the graph is resolved: every
// tensor gets its place, and the calls are divided into the steps that a program runs as ops.
// Running a step later only follows pointers: it allocates nothing.
namespace terrace {

// The number of a tensor in its graph.
using TensorId = std::int32_t;
inline constexpr TensorId kNoTensor = -1;

struct UnitTensor {
  std::string_view name = "";
  DType dtype = DType::kF32;
  std::array<std::int64_t, 4> shape = {1, 1, 1, 1};
  // The buffer that the tensor is in. kWorkspace is scratch of the step, unless the graph finds
  // that the tensor is saved for the backward or passed from one step to another.
  Role role = Role::kWorkspace;
  std::int32_t number = 0;       // which kBetween buffer, or which of the unit's groups
  std::size_t offset = 0;        // bytes from the buffer's start
  TensorId same_as = kNoTensor;  // the tensor whose memory it shares
  bool is_exchanged = false;     // written by an exchange

  std::int64_t rows() const { return shape[0]; }
  std::int64_t columns() const { return shape[1]; }
  std::size_t size_bytes() const;
};

// The kernels, the memory and the tensors that a call of a graph runs with.
class UnitRun {
 public:
  UnitRun(const KernelTable& kernels, const KernelContext& context, const UnitMemory& memory,
          std::span<const UnitTensor> tensors, std::int64_t unit)
      : kernels(kernels), context(context), memory(memory), unit(unit), tensors_(tensors) {}

  // Returns the tensor's view. It is empty for kNoTensor, and where the op has no such buffer.
  TensorView view(TensorId tensor) const;
  // Returns whether a kernel assigns this gradient or adds to it. Always kAssign for a tensor that
  // is not a gradient that others add to.
  GradientMode mode(TensorId gradient) const;

  const KernelTable& kernels;
  const KernelContext& context;
  const UnitMemory& memory;
  // The unit's number in the model: units that are alike share this graph.
  const std::int64_t unit;

 private:
  std::span<const UnitTensor> tensors_;
};

// The logits that the head computes for its loss, in chunks of rows. With tensor-parallel ranks a
// rank has a part of the columns.
struct HeadLogits {
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  double elements() const { return static_cast<double>(rows) * static_cast<double>(columns); }
};

struct UnitCall {
  std::vector<TensorId> reads = {};
  std::vector<TensorId> writes = {};
  std::function<void(const UnitRun&)> run;
  // Returns the bytes of workspace that the kernel needs. The run's views have shapes, but their
  // memory must not be touched.
  std::function<std::size_t(const UnitRun&, int workers)> workspace = {};
  // Prepares what kernels of these shapes need, before the first step. Here too the views' memory
  // must not be touched.
  std::function<void(const UnitRun&)> prepare = {};
  double flops = 0;
  double masked_flops = 0;  // products that a mask makes needless; not part of flops
  HeadLogits logits = {};
  TensorId chunk_sum = kNoTensor;  // the gradient to which each chunk of the logits adds
  bool scales_loss = false;        // reads the loss scale
  // How much of the tensors that are not parameters or their gradients the call touches:
  // neighbouring experts touch only their own rows.
  double share = 1;
  // Runs in the forward alone. The backward begins with another call in its place.
  bool of_evaluation = false;
};

// The cost of a kernel: the flops of its products, and the bytes of the tensors that it reads and
// writes.
struct KernelCost {
  double flops = 0;
  double bytes = 0;
  bool is_attention = false;
  HeadLogits logits = {};
  double chunk_sum_bytes = 0;  // of the gradient to which each chunk of the logits adds
};

// The tensors and calls of a unit while its layers write them down, in the order of the forward.
// Each layer registers a function that writes its backward; finish() calls these functions in the
// opposite order.
class UnitGraph {
 public:
  // `sharing` says how tensor-parallel ranks share the unit, and whether a rank has all rows or
  // only its own part of them.
  UnitGraph(UnitKind kind, const TensorSharing& sharing) : kind_(kind), sharing_(sharing) {}

  TensorId add(const UnitTensor& tensor);
  UnitTensor& at(TensorId tensor) { return tensors_.at(static_cast<std::size_t>(tensor)); }
  const UnitTensor& at(TensorId tensor) const {
    return tensors_.at(static_cast<std::size_t>(tensor));
  }
  // Adds a tensor of the same shape and type, somewhere in scratch.
  TensorId like(TensorId tensor, std::string_view name);

  // --- steps -------------------------------------------------------------------------------------
  // Calls that are added before finish() belong to the forward, later ones to the backward.

  void call(UnitCall call);
  // Begins another step, of this name, with the calls that follow. Without tensor-parallel ranks
  // they stay in the same step.
  void begin_step(std::string_view name);
  // Begins another part of the pass, with a step of this name (UnitStep::begins_part). A graph that
  // has parts says of each step exactly which groups it reads. A call must come before the next
  // exchange, which would else end the part before.
  void begin_part(std::string_view name);
  void exchange(UnitStep::Kind kind, TensorId source, TensorId target);

  // --- gradients ---------------------------------------------------------------------------------

  // Registers `emit`, which writes the backward of a layer that has read `inputs`. To be called in
  // the forward.
  void on_backward(std::vector<TensorId> inputs, std::function<void()> emit);
  // Returns, in the backward, the gradient of a tensor as far as later layers have written it;
  // kNoTensor if none has.
  TensorId gradient(TensorId tensor) const;
  void set_gradient(TensorId tensor, TensorId gradient);
  // Returns the tensor to which a layer writes the gradient of one of its inputs. The layer writes
  // the whole gradient, including what is there so far. The last layer that writes the gradient of
  // the unit's input writes it to the unit's result, if there is one.
  TensorId next_gradient(TensorId tensor);
  // Makes `addend` a part of the gradient of an input, besides what is there so far.
  void add_to_gradient(TensorId tensor, TensorId addend);

  // --- result ------------------------------------------------------------------------------------

  void set_input(TensorId input) { input_ = input; }
  // Says how many groups the unit has of its own; the others are other units'.
  void set_own_groups(std::int32_t groups) { own_groups_ = groups; }
  // Ends the writing, after the last layer. The backward ends at `input_gradient`; kNoTensor if
  // nothing needs the gradient of the unit's input. Only those calls of the backward are kept that
  // lead to it, to gradients of parameters or to losses.
  void finish(TensorId input_gradient);

  using Pass = UnitPass;
  struct Where {
    Pass pass = Pass::kForward;
    std::int32_t step = 0;
    // The unit's number in the model: units that are alike share this graph.
    std::int64_t unit = 0;
  };
  // Fills in sizes, steps and costs. The caller fills in the members that come from the unit's
  // layout.
  void describe(UnitModel& unit) const;
  // Returns the costs of a compute step's calls. For a lookup it counts the rows that are read, not
  // the whole table.
  std::vector<KernelCost> kernel_costs(const Where& where) const;
  // Returns the most workspace that a step needs, including scratch, when gradients are only
  // assigned, or also added to if `accumulates`.
  std::size_t workspace_bytes(const KernelTable& kernels, int workers, bool accumulates) const;
  void prepare(const KernelTable& kernels, const KernelContext& context) const;
  // Runs a compute step. Allocates nothing.
  void run(const Where& where, const KernelTable& kernels, const KernelContext& context,
           const UnitMemory& memory) const;

 private:
  struct Step {
    UnitStep::Kind kind = UnitStep::Kind::kCompute;
    std::string_view name = "";
    bool begins_part = false;
    std::vector<UnitCall> calls = {};
    TensorId source = kNoTensor;  // of an exchange
    TensorId target = kNoTensor;

    std::vector<TensorId> reads() const;
    std::vector<TensorId> writes() const;
  };
  using Steps = std::vector<Step>;
  struct BackwardOf {
    std::vector<TensorId> inputs;
    std::function<void()> emit;
  };

  Steps& now() { return is_backward_ ? backward_ : forward_; }
  Steps& of(Pass pass) { return passes_[static_cast<std::size_t>(pass)]; }
  const Steps& of(Pass pass) const { return passes_[static_cast<std::size_t>(pass)]; }
  // Returns the tensor whose memory this one uses.
  TensorId root(TensorId tensor) const;
  static Steps without_evaluation(const Steps& steps);
  void prune_backward();
  void make_passes();
  Steps needed_for_saved() const;
  Steps leading_to(std::set<TensorId> needed, const Steps& all) const;
  void place_saved();
  void place_between();
  void place_scratch();
  UnitAccess exchanged(const Step& step, TensorId tensor) const;
  UnitStep described(Pass pass, std::size_t index) const;
  template <typename Visit>
  void visit_shapes(const KernelTable& kernels, const KernelContext& context, GradientMode mode,
                    Visit visit) const;

  UnitKind kind_;
  TensorSharing sharing_;
  std::vector<UnitTensor> tensors_;
  std::vector<BackwardOf> tape_;
  std::vector<TensorId> gradients_;      // by tensor
  std::vector<std::int32_t> uses_left_;  // by tensor: layers whose backward is still to come
  Steps forward_;
  Steps backward_;
  std::string_view step_name_ = "";
  bool begins_step_ = false;
  bool begins_part_ = false;
  bool has_parts_ = false;
  bool is_backward_ = false;
  std::int32_t own_groups_ = 1;
  TensorId input_ = kNoTensor;
  TensorId input_gradient_ = kNoTensor;
  std::array<Steps, 3> passes_;
  std::vector<BetweenBuffer> between_;
  std::size_t saved_bytes_ = 0;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace terrace
