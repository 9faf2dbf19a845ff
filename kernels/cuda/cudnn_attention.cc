#include "kernels/cuda/cudnn_attention.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <compare>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "base/error.h"

// The headers of cudnn_frontend look functions up in this library, instead of linking it.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING  // NOLINT(readability-identifier-naming)
#define CUDNN_FRONTEND_SKIP_JSON_LIB           // NOLINT(readability-identifier-naming)
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace terrace {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Pointers = std::unordered_map<std::int64_t, void*>;

constexpr std::size_t kForwardWorkspace = kMiB;
constexpr std::int64_t kHeadWidthStep = 8;
constexpr std::int64_t kHeadWidthMax = 128;
constexpr std::uintptr_t kBoundary = 16;
constexpr const char* kRemedy = "TERRACE_ATTENTION=own does without cuDNN";

std::string library_name() { return fmt::format("libcudnn.so.{}", CUDNN_MAJOR); }

// Once for the process: what is loaded stays.
bool is_cudnn_there() {
  static const bool kIsThere = [] {
    fe::cudnn_dlhandle = ::dlopen(library_name().c_str(), RTLD_NOW | RTLD_LOCAL);
    return fe::cudnn_dlhandle != nullptr;
  }();
  return kIsThere;
}

void check_cudnn(cudnnStatus_t status, std::string_view call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format("{}: {}", call, fe::detail::get_error_string(status)), kRemedy);
}

enum Part : std::int64_t { kQ = 1, kK, kV, kOut, kStats, kDOut, kDQ, kDK, kDV };

struct Shape {
  std::int64_t batch, sequence, heads, key_value_heads, head_width;
  DType type;
  float scale;
  bool backward;

  auto operator<=>(const Shape&) const = default;
};

template <typename Op>
Shape shape_of(const Op& op) {
  const AttentionShape& s = op.shape;
  return {s.batch,      s.sequence,   s.heads,  s.key_value_heads,
          s.head_width, op.qkv.dtype, op.scale, std::is_same_v<Op, AttentionBackward>};
}

// Empty, or why cuDNN is not asked for such attention.
std::string refusal_of(DType type, std::int64_t head_width) {
  if (type != DType::kBF16 && type != DType::kF16) return "neither bf16 nor fp16";
  if (head_width % kHeadWidthStep == 0 && head_width <= kHeadWidthMax) return {};
  return fmt::format("heads of {} elements", head_width);
}

AttentionShape dimensions_of(const Shape& s) {
  return {s.batch, s.sequence, s.heads, s.key_value_heads, s.head_width};
}

// One shape, ready to be called; without a graph it says why there is none.
struct Plan {
  std::unique_ptr<fe::graph::Graph> graph;
  AttentionPart part;
  std::size_t workspace_bytes = 0;
  std::string refusal;
};

// Describes tensors of a part to a graph.
class Tensors {
 public:
  Tensors(fe::graph::Graph& graph, const Shape& shape, const AttentionPart& part)
      : graph_(graph), s_(shape), part_(part) {}

  std::int64_t query_heads() const { return part_.groups * (s_.heads / s_.key_value_heads); }

  Tensor heads_of_qkv(Part which, std::int64_t heads) const {
    return graph_.tensor(like_qkv(fe::graph::Tensor_attributes(), which, heads));
  }
  Tensor heads_of_out(Part which) const {
    return graph_.tensor(like_out(fe::graph::Tensor_attributes(), which));
  }
  Tensor stats() const { return graph_.tensor(like_stats(fe::graph::Tensor_attributes())); }

  template <typename Attributes>
  Attributes& like_qkv(Attributes&& tensor, Part which, std::int64_t heads) const {
    const std::int64_t width = (s_.heads + 2 * s_.key_value_heads) * s_.head_width;
    return place(tensor, which, heads, width);
  }
  template <typename Attributes>
  Attributes& like_out(Attributes&& tensor, Part which) const {
    return place(tensor, which, query_heads(), s_.heads * s_.head_width);
  }
  template <typename Attributes>
  Attributes& like_stats(Attributes&& tensor) const {
    tensor.set_uid(kStats)
        .set_dim({part_.sequences, query_heads(), s_.sequence, 1})
        .set_stride({query_heads() * s_.sequence, s_.sequence, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
    return tensor;
  }

 private:
  template <typename Attributes>
  Attributes& place(Attributes& tensor, Part which, std::int64_t heads, std::int64_t width) const {
    tensor.set_uid(which)
        .set_dim({part_.sequences, heads, s_.sequence, s_.head_width})
        .set_stride({s_.sequence * width, s_.head_width, width, 1})
        .set_data_type(s_.type == DType::kBF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF);
    return tensor;
  }

  fe::graph::Graph& graph_;
  const Shape& s_;
  const AttentionPart part_;
};

void describe_forward(const Tensors& tensors, fe::graph::Graph& graph, const Shape& s,
                      const AttentionPart& part) {
  const auto [out, stats] =
      graph.sdpa(tensors.heads_of_qkv(kQ, tensors.query_heads()),
                 tensors.heads_of_qkv(kK, part.groups), tensors.heads_of_qkv(kV, part.groups),
                 fe::graph::SDPA_attributes()
                     .set_name("attention_forward")
                     .set_generate_stats(true)
                     .set_causal_mask(true)
                     .set_attn_scale(s.scale));
  tensors.like_out(out->set_output(true), kOut);
  tensors.like_stats(stats->set_output(true));
}

void describe_backward(const Tensors& tensors, fe::graph::Graph& graph, const Shape& s,
                       const AttentionPart& part) {
  const auto [dq, dk, dv] = graph.sdpa_backward(
      tensors.heads_of_qkv(kQ, tensors.query_heads()), tensors.heads_of_qkv(kK, part.groups),
      tensors.heads_of_qkv(kV, part.groups), tensors.heads_of_out(kOut),
      tensors.heads_of_out(kDOut), tensors.stats(),
      fe::graph::SDPA_backward_attributes()
          .set_name("attention_backward")
          .set_causal_mask(true)
          .set_attn_scale(s.scale)
          .set_deterministic_algorithm(true));
  tensors.like_qkv(dq->set_output(true), kDQ, tensors.query_heads());
  tensors.like_qkv(dk->set_output(true), kDK, part.groups);
  tensors.like_qkv(dv->set_output(true), kDV, part.groups);
}

// Fills the plan's graph, or its refusal.
void build(cudnnHandle_t handle, const Shape& s, std::size_t most_bytes, Plan& plan) {
  auto graph = std::make_unique<fe::graph::Graph>();
  graph->set_io_data_type(s.type == DType::kBF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const Tensors tensors(*graph, s, plan.part);
  if (s.backward) {
    describe_backward(tensors, *graph, s, plan.part);
  } else {
    describe_forward(tensors, *graph, s, plan.part);
  }
  graph->deselect_workspace_greater_than(static_cast<std::int64_t>(most_bytes));
  const fe::error_t built = graph->build(handle, {fe::HeurMode_t::A});
  std::int64_t bytes = 0;
  if (built.is_bad()) {
    plan.refusal = built.err_msg;
  } else if (const fe::error_t sized = graph->get_workspace_size(bytes); sized.is_bad()) {
    plan.refusal = sized.err_msg;
  } else if (static_cast<std::size_t>(bytes) > most_bytes) {
    plan.refusal = fmt::format("cuDNN wants {} bytes of workspace", bytes);
  } else {
    plan.workspace_bytes = static_cast<std::size_t>(bytes);
    plan.graph = std::move(graph);
  }
}

bool on_boundary(std::initializer_list<const std::byte*> pointers) {
  std::uintptr_t bits = 0;
  for (const std::byte* pointer : pointers) bits |= reinterpret_cast<std::uintptr_t>(pointer);
  return bits % kBoundary == 0;
}

// Where in the op's tensors a part of its batch begins, in elements.
struct Offsets {
  std::int64_t q, k, v, out, stats;
};

Offsets offsets_of(const AttentionShape& s, std::int64_t sequence, std::int64_t group) {
  const std::int64_t heads = s.heads / s.key_value_heads * group;
  const std::int64_t rows = sequence * s.sequence;
  const std::int64_t row = rows * (s.heads + 2 * s.key_value_heads);
  return {.q = (row + heads) * s.head_width,
          .k = (row + s.heads + group) * s.head_width,
          .v = (row + s.heads + s.key_value_heads + group) * s.head_width,
          .out = (rows * s.heads + heads) * s.head_width,
          .stats = rows * s.heads + heads * s.sequence};
}

void* at(const TensorView& view, std::int64_t elements) {
  return view.data + static_cast<std::size_t>(elements) * size_of(view.dtype);
}

Pointers pointers_of(const AttentionForward& op, const Offsets& from) {
  return {{kQ, at(op.qkv, from.q)},
          {kK, at(op.qkv, from.k)},
          {kV, at(op.qkv, from.v)},
          {kOut, at(op.out, from.out)},
          {kStats, at(op.log_sum_exp, from.stats)}};
}

Pointers pointers_of(const AttentionBackward& op, const Offsets& from) {
  return {{kQ, at(op.qkv, from.q)},       {kK, at(op.qkv, from.k)},
          {kV, at(op.qkv, from.v)},       {kOut, at(op.out, from.out)},
          {kDOut, at(op.dout, from.out)}, {kStats, at(op.log_sum_exp, from.stats)},
          {kDQ, at(op.dqkv, from.q)},     {kDK, at(op.dqkv, from.k)},
          {kDV, at(op.dqkv, from.v)}};
}

}  // namespace

struct CudnnAttention::State {
  AttentionChoice choice;
  std::size_t score_bytes;
  cudnnHandle_t handle = nullptr;
  std::map<Shape, Plan> plans;

  void open();
  Plan make(const Shape& shape);
  Plan& find(const Shape& shape);
  template <typename Op>
  bool enqueue(const Op& op, std::span<std::byte> workspace, NativeStream stream);
  template <typename Op>
  std::string by(const Op& op);
};

void CudnnAttention::State::open() {
  if (handle == nullptr) check_cudnn(fe::detail::create_handle(&handle), "cudnnCreate");
}

Plan CudnnAttention::State::make(const Shape& s) {
  Plan plan;
  const auto refuse = [&plan](std::string why) {
    plan.refusal = std::move(why);
    return std::move(plan);
  };
  if (choice == AttentionChoice::kOwn) return refuse("TERRACE_ATTENTION=own");
  if (std::string why = refusal_of(s.type, s.head_width); !why.empty()) {
    return refuse(std::move(why));
  }
  if (!is_cudnn_there()) return refuse(fmt::format("{} is not there", library_name()));
  plan.part = {s.batch, s.key_value_heads};
  std::size_t most_bytes = kForwardWorkspace;
  if (s.backward) {
    const auto part = attention_part(dimensions_of(s), score_bytes);
    if (!part) return refuse("gradients of scores are too large, or rows not on boundaries");
    plan.part = *part;
    most_bytes = cudnn_part_bytes(dimensions_of(s), plan.part);
  }
  // What the headers throw is that a library or a function of it is missing.
  try {
    open();
    build(handle, s, most_bytes, plan);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    plan.refusal = error.what();
  }
  return plan;
}

Plan& CudnnAttention::State::find(const Shape& shape) {
  auto found = plans.find(shape);
  if (found == plans.end()) found = plans.emplace(shape, make(shape)).first;
  return found->second;
}

template <typename Op>
bool CudnnAttention::State::enqueue(const Op& op, std::span<std::byte> workspace,
                                    NativeStream stream) {
  Plan& plan = find(shape_of(op));
  if (!plan.graph) return false;
  TERRACE_CHECK_LE(plan.workspace_bytes, workspace.size());
  check_cudnn(fe::detail::set_stream(handle, static_cast<cudaStream_t>(stream.handle)),
              "cudnnSetStream");
  for (std::int64_t b = 0; b < op.shape.batch; b += plan.part.sequences) {
    for (std::int64_t g = 0; g < op.shape.key_value_heads; g += plan.part.groups) {
      Pointers pointers = pointers_of(op, offsets_of(op.shape, b, g));
      const fe::error_t done = plan.graph->execute(handle, pointers, workspace.data());
      if (done.is_bad()) throw DeviceError("attention by cuDNN: " + done.err_msg, kRemedy);
    }
  }
  return true;
}

template <typename Op>
std::string CudnnAttention::State::by(const Op& op) {
  const Plan& plan = find(shape_of(op));
  if (!plan.graph) return "own kernels: " + plan.refusal;
  return cudnn_version();
}

CudnnAttention::CudnnAttention(AttentionChoice choice, std::size_t score_bytes)
    : state_(new State{.choice = choice, .score_bytes = score_bytes, .plans = {}}) {}

CudnnAttention::~CudnnAttention() {
  state_->plans.clear();
  if (state_->handle != nullptr) fe::detail::destroy_handle(state_->handle);
}

void CudnnAttention::prepare(const AttentionForward& op) { state_->find(shape_of(op)); }
void CudnnAttention::prepare(const AttentionBackward& op) { state_->find(shape_of(op)); }

bool CudnnAttention::enqueue(const AttentionForward& op, std::span<std::byte> workspace,
                             NativeStream stream) {
  if (!on_boundary({op.qkv.data, op.out.data, op.log_sum_exp.data})) return false;
  return state_->enqueue(op, workspace, stream);
}

bool CudnnAttention::enqueue(const AttentionBackward& op, std::span<std::byte> workspace,
                             NativeStream stream) {
  if (!on_boundary({op.qkv.data, op.out.data, op.log_sum_exp.data, op.dout.data, op.dqkv.data})) {
    return false;
  }
  return state_->enqueue(op, workspace, stream);
}

std::string CudnnAttention::by(const AttentionForward& op) { return state_->by(op); }
std::string CudnnAttention::by(const AttentionBackward& op) { return state_->by(op); }

std::string cudnn_version() {
  if (!is_cudnn_there()) return {};
  std::size_t version = 0;
  try {
    version = fe::detail::get_backend_version();
  } catch (const std::exception&) {
    return {};  // a library without the function
  }
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::size_t cudnn_attention_workspace(const AttentionForward& op) {
  return refusal_of(op.qkv.dtype, op.shape.head_width).empty() ? kForwardWorkspace : 0;
}

std::size_t cudnn_attention_workspace(const AttentionBackward& op) {
  if (!refusal_of(op.qkv.dtype, op.shape.head_width).empty()) return 0;
  const auto part = attention_part(op.shape, kCudnnScoreBytes);
  return part ? cudnn_part_bytes(op.shape, *part) : 0;
}

}  // namespace terrace
