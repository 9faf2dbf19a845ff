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
constexpr std::uintptr_t kBoundary = 16;
constexpr const char* kRemedy = "TERRACE_ATTENTION=own does without cuDNN";

std::string library_name() { return fmt::format("libcudnn.so.{}", CUDNN_MAJOR); }

// Loads the library once for the process, and keeps it loaded.
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

// Elements from row to row of the matrices that hold queries, keys and values, or their gradients.
struct Strides {
  std::int64_t q = 0, k = 0, v = 0;

  auto operator<=>(const Strides&) const = default;
};

struct Shape {
  std::int64_t batch, sequence, heads, key_value_heads, head_width, window;
  DType type;
  float scale;
  bool backward;
  Strides from, to;

  auto operator<=>(const Shape&) const = default;
};

template <typename Op>
Shape shape_of(const Op& op) {
  const AttentionShape& s = op.shape;
  Shape shape = {.batch = s.batch,
                 .sequence = s.queries,
                 .heads = s.heads,
                 .key_value_heads = s.key_value_heads,
                 .head_width = s.head_width,
                 .window = op.rule.window < s.keys ? op.rule.window : 0,
                 .type = op.q.dtype,
                 .scale = op.rule.scale,
                 .backward = std::is_same_v<Op, AttentionBackward>,
                 .from = {op.q.stride, op.k.stride, op.v.stride},
                 .to = {}};
  if constexpr (std::is_same_v<Op, AttentionBackward>) {
    shape.to = {op.dq.stride, op.dk.stride, op.dv.stride};
  }
  return shape;
}

AttentionShape dimensions_of(const Shape& s) {
  return {.batch = s.batch,
          .queries = s.sequence,
          .keys = s.sequence,
          .heads = s.heads,
          .key_value_heads = s.key_value_heads,
          .head_width = s.head_width};
}

// One shape, ready to be called; if there is no graph, the plan says why.
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

  Tensor queries() const {
    return graph_.tensor(like_queries(fe::graph::Tensor_attributes(), kQ, s_.from.q));
  }
  Tensor keys() const {
    return graph_.tensor(like_keys(fe::graph::Tensor_attributes(), kK, s_.from.k));
  }
  Tensor values() const {
    return graph_.tensor(like_keys(fe::graph::Tensor_attributes(), kV, s_.from.v));
  }
  Tensor heads_of_out(Part which) const {
    return graph_.tensor(like_out(fe::graph::Tensor_attributes(), which));
  }
  Tensor stats() const { return graph_.tensor(like_stats(fe::graph::Tensor_attributes())); }

  template <typename Attributes>
  Attributes& like_queries(Attributes&& tensor, Part which, std::int64_t stride) const {
    return place(tensor, which, query_heads(), stride);
  }
  template <typename Attributes>
  Attributes& like_keys(Attributes&& tensor, Part which, std::int64_t stride) const {
    return place(tensor, which, part_.groups, stride);
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

// cuDNN's window keeps the keys with key + window > query, as ours does.
template <typename Attributes>
Attributes ruled(Attributes attributes, const Shape& s) {
  attributes.set_causal_mask(true).set_attn_scale(s.scale);
  if (s.window > 0) attributes.set_sliding_window_length(static_cast<int>(s.window));
  return attributes;
}

void describe_forward(const Tensors& tensors, fe::graph::Graph& graph, const Shape& s) {
  const auto [out, stats] = graph.sdpa(
      tensors.queries(), tensors.keys(), tensors.values(),
      ruled(fe::graph::SDPA_attributes().set_name("attention_forward").set_generate_stats(true),
            s));
  tensors.like_out(out->set_output(true), kOut);
  tensors.like_stats(stats->set_output(true));
}

void describe_backward(const Tensors& tensors, fe::graph::Graph& graph, const Shape& s) {
  const auto [dq, dk, dv] =
      graph.sdpa_backward(tensors.queries(), tensors.keys(), tensors.values(),
                          tensors.heads_of_out(kOut), tensors.heads_of_out(kDOut), tensors.stats(),
                          ruled(fe::graph::SDPA_backward_attributes()
                                    .set_name("attention_backward")
                                    .set_deterministic_algorithm(true),
                                s));
  tensors.like_queries(dq->set_output(true), kDQ, s.to.q);
  tensors.like_keys(dk->set_output(true), kDK, s.to.k);
  tensors.like_keys(dv->set_output(true), kDV, s.to.v);
}

// Fills the plan's graph, or its refusal.
void build(cudnnHandle_t handle, const Shape& s, std::size_t most_bytes, Plan& plan) {
  auto graph = std::make_unique<fe::graph::Graph>();
  graph->set_io_data_type(s.type == DType::kBF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const Tensors tensors(*graph, s, plan.part);
  if (s.backward) {
    describe_backward(tensors, *graph, s);
  } else {
    describe_forward(tensors, *graph, s);
  }
  graph->deselect_workspace_greater_than(static_cast<std::int64_t>(most_bytes));
  const fe::error_t built = graph->build(handle, {fe::HeurMode_t::A});
  std::int64_t bytes = 0;
  if (built.is_bad()) {
    plan.refusal = built.err_msg;
  } else if (const fe::error_t sized = graph->get_workspace_size(bytes); sized.is_bad()) {
    plan.refusal = sized.err_msg;
  } else if (static_cast<std::size_t>(bytes) > most_bytes) {
    plan.refusal = fmt::format("cuDNN needs {} bytes of workspace", bytes);
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

// Where in the op's matrices a part of its batch begins.
struct PartPlace {
  std::int64_t row;          // of all matrices
  std::int64_t head, group;  // in elements of a row: of query heads, of keys and values
  std::int64_t out, stats;   // in elements
};

PartPlace place_of(const AttentionShape& s, std::int64_t sequence, std::int64_t group) {
  const std::int64_t heads = s.heads / s.key_value_heads * group;
  const std::int64_t row = sequence * s.queries;
  return {.row = row,
          .head = heads * s.head_width,
          .group = group * s.head_width,
          .out = (row * s.heads + heads) * s.head_width,
          .stats = row * s.heads + heads * s.queries};
}

void* at(const TensorView& view, std::int64_t elements) {
  return view.data + static_cast<std::size_t>(elements) * size_of(view.dtype);
}

void* at(const StridedRows& rows, std::int64_t row, std::int64_t column) {
  return rows.data + static_cast<std::size_t>(row * rows.stride + column) * size_of(rows.dtype);
}

Pointers pointers_of(const AttentionForward& op, const PartPlace& from) {
  return {{kQ, at(op.q, from.row, from.head)},
          {kK, at(op.k, from.row, from.group)},
          {kV, at(op.v, from.row, from.group)},
          {kOut, at(op.out, from.out)},
          {kStats, at(op.log_sum_exp, from.stats)}};
}

Pointers pointers_of(const AttentionBackward& op, const PartPlace& from) {
  return {{kQ, at(op.q, from.row, from.head)},   {kK, at(op.k, from.row, from.group)},
          {kV, at(op.v, from.row, from.group)},  {kOut, at(op.out, from.out)},
          {kDOut, at(op.dout, from.out)},        {kStats, at(op.log_sum_exp, from.stats)},
          {kDQ, at(op.dq, from.row, from.head)}, {kDK, at(op.dk, from.row, from.group)},
          {kDV, at(op.dv, from.row, from.group)}};
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
  void prepare(const Op& op);
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
  if (!is_cudnn_there()) return refuse(fmt::format("{} is not installed", library_name()));
  plan.part = {s.batch, s.key_value_heads};
  std::size_t most_bytes = kForwardWorkspace;
  if (s.backward) {
    const auto part = attention_part(dimensions_of(s), score_bytes);
    if (!part)
      return refuse("the gradients of the scores are too large, or the rows are not aligned");
    plan.part = *part;
    most_bytes = cudnn_part_bytes(dimensions_of(s), plan.part);
  }
  // The headers throw if the library or one of its functions is missing.
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
void CudnnAttention::State::prepare(const Op& op) {
  if (cudnn_refusal(op).empty()) find(shape_of(op));
}

template <typename Op>
bool CudnnAttention::State::enqueue(const Op& op, std::span<std::byte> workspace,
                                    NativeStream stream) {
  if (!cudnn_refusal(op).empty()) return false;
  Plan& plan = find(shape_of(op));
  if (!plan.graph) return false;
  TERRACE_CHECK_LE(plan.workspace_bytes, workspace.size());
  check_cudnn(fe::detail::set_stream(handle, static_cast<cudaStream_t>(stream.handle)),
              "cudnnSetStream");
  for (std::int64_t b = 0; b < op.shape.batch; b += plan.part.sequences) {
    for (std::int64_t g = 0; g < op.shape.key_value_heads; g += plan.part.groups) {
      Pointers pointers = pointers_of(op, place_of(op.shape, b, g));
      const fe::error_t done = plan.graph->execute(handle, pointers, workspace.data());
      if (done.is_bad()) throw DeviceError("attention by cuDNN: " + done.err_msg, kRemedy);
    }
  }
  return true;
}

template <typename Op>
std::string CudnnAttention::State::by(const Op& op) {
  const std::string refusal = cudnn_refusal(op);
  if (choice == AttentionChoice::kCudnn && !refusal.empty()) return "own kernels: " + refusal;
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

void CudnnAttention::prepare(const AttentionForward& op) { state_->prepare(op); }
void CudnnAttention::prepare(const AttentionBackward& op) { state_->prepare(op); }

bool CudnnAttention::enqueue(const AttentionForward& op, std::span<std::byte> workspace,
                             NativeStream stream) {
  if (!on_boundary({op.q.data, op.k.data, op.v.data, op.out.data, op.log_sum_exp.data})) {
    return false;
  }
  return state_->enqueue(op, workspace, stream);
}

bool CudnnAttention::enqueue(const AttentionBackward& op, std::span<std::byte> workspace,
                             NativeStream stream) {
  if (!on_boundary({op.q.data, op.k.data, op.v.data, op.out.data, op.log_sum_exp.data, op.dout.data,
                    op.dq.data, op.dk.data, op.dv.data})) {
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
  return cudnn_refusal(op).empty() ? kForwardWorkspace : 0;
}

std::size_t cudnn_attention_workspace(const AttentionBackward& op) {
  if (!cudnn_refusal(op).empty()) return 0;
  const auto part = attention_part(op.shape, kCudnnScoreBytes);
  return part ? cudnn_part_bytes(op.shape, *part) : 0;
}

}  // namespace terrace
