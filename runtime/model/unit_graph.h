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

// What one unit computes, as a list of kernel calls on tensors, and the way back. It is written
// down once, layer by layer (runtime/model/layers.h), and then resolved: every tensor gets its
// place, and the calls are cut into the steps that a program runs as ops. A step later only follows
// pointers: it allocates nothing.
namespace terrace {

// A tensor of a graph, by number.
using TensorId = std::int32_t;
inline constexpr TensorId kNoTensor = -1;

struct UnitTensor {
  std::string_view name = "";
  DType dtype = DType::kF32;
  std::array<std::int64_t, 4> shape = {1, 1, 1, 1};
  // Where it is. kWorkspace: scratch of the step, unless the graph finds that it is saved for the
  // backward or passes between steps.
  Role role = Role::kWorkspace;
  std::int32_t number = 0;       // of kBetween
  std::size_t offset = 0;        // bytes from the buffer's start
  TensorId same_as = kNoTensor;  // it shares that tensor's memory
  bool is_exchanged = false;     // written by an exchange

  std::int64_t rows() const { return shape[0]; }
  std::int64_t columns() const { return shape[1]; }
  std::size_t size_bytes() const;
};

// What a call of a graph has at hand.
class UnitRun {
 public:
  UnitRun(const KernelTable& kernels, const KernelContext& context, const UnitMemory& memory,
          std::span<const UnitTensor> tensors)
      : kernels(kernels), context(context), memory(memory), tensors_(tensors) {}

  // Empty of kNoTensor, and where the op has no such buffer.
  TensorView view(TensorId tensor) const;
  // Of what is not a gradient that others add to: kAssign.
  GradientMode mode(TensorId gradient) const;

  const KernelTable& kernels;
  const KernelContext& context;
  const UnitMemory& memory;

 private:
  std::span<const UnitTensor> tensors_;
};

struct UnitCall {
  std::vector<TensorId> reads = {};
  std::vector<TensorId> writes = {};
  std::function<void(const UnitRun&)> run;
  // Bytes of workspace that the kernel needs. The views of the run have shapes, and memory that
  // nobody may touch.
  std::function<std::size_t(const UnitRun&, int workers)> workspace = {};
  // Makes what kernels of these shapes need, before the first step; likewise without memory.
  std::function<void(const UnitRun&)> prepare = {};
  double flops = 0;
  double masked_flops = 0;   // besides these, of products that a mask makes needless
  bool scales_loss = false;  // reads the loss scale
  // Made in the forward alone: the backward begins with one in its place.
  bool of_evaluation = false;
};

// The tensors and calls of a unit while its layers write them down, forward in order. A layer
// leaves what its way back is; finish() runs those in the opposite order.
class UnitGraph {
 public:
  // `sharing` of tensor-parallel ranks; rows of all of them and this rank's own.
  UnitGraph(UnitKind kind, const TensorSharing& sharing) : kind_(kind), sharing_(sharing) {}

  TensorId add(const UnitTensor& tensor);
  UnitTensor& at(TensorId tensor) { return tensors_.at(static_cast<std::size_t>(tensor)); }
  const UnitTensor& at(TensorId tensor) const {
    return tensors_.at(static_cast<std::size_t>(tensor));
  }
  // A tensor of that shape and type, somewhere in scratch.
  TensorId like(TensorId tensor, std::string_view name);

  // --- steps -------------------------------------------------------------------------------------
  // Until finish() calls go into the forward, then into the backward.

  void call(UnitCall call);
  // What follows is another step, of this name; without tensor-parallel ranks it is the same one.
  void begin_step(std::string_view name);
  void exchange(UnitStep::Kind kind, TensorId source, TensorId target);

  // --- gradients ---------------------------------------------------------------------------------

  // To be called in the forward: the way back of a layer that has read `inputs`.
  void on_backward(std::vector<TensorId> inputs, std::function<void()> emit);
  // In the backward. The gradient of a tensor as far as later layers have written it; kNoTensor if
  // none has.
  TensorId gradient(TensorId tensor) const;
  void set_gradient(TensorId tensor, TensorId gradient);
  // Where a layer writes the gradient of one of its inputs: the whole of it, with what is there so
  // far. Of the unit's input, the last layer writes to the unit's result, if there is one.
  TensorId next_gradient(TensorId tensor);
  // The gradient of an input is what is in `addend`, besides what is there so far.
  void add_to_gradient(TensorId tensor, TensorId addend);

  // --- result ------------------------------------------------------------------------------------

  void set_input(TensorId input) { input_ = input; }
  // After the last layer. `input_gradient` is where the backward ends; kNoTensor: nobody wants it.
  // Of the backward those calls stay that lead to it, to gradients of parameters or to losses.
  void finish(TensorId input_gradient);

  using Pass = UnitPass;
  struct Where {
    Pass pass = Pass::kForward;
    std::int32_t step = 0;
  };
  // Sizes, steps and costs; what is of the unit's layout is the caller's to fill in.
  void describe(UnitModel& unit) const;
  // The most that a step needs, with scratch, for gradients that are assigned, or also added to.
  std::size_t workspace_bytes(const KernelTable& kernels, int workers, bool accumulates) const;
  void prepare(const KernelTable& kernels, const KernelContext& context) const;
  // A compute step. Nothing is allocated.
  void run(const Where& where, const KernelTable& kernels, const KernelContext& context,
           const UnitMemory& memory) const;

 private:
  struct Step {
    UnitStep::Kind kind = UnitStep::Kind::kCompute;
    std::string_view name = "";
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
  // The tensor whose memory this one has.
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
  std::vector<std::int32_t> uses_left_;  // by tensor: layers whose way back is still to come
  Steps forward_;
  Steps backward_;
  std::string_view step_name_ = "";
  bool begins_step_ = false;
  bool is_backward_ = false;
  TensorId input_ = kNoTensor;
  TensorId input_gradient_ = kNoTensor;
  std::array<Steps, 3> passes_;
  std::vector<BetweenBuffer> between_;
  std::size_t saved_bytes_ = 0;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace terrace
