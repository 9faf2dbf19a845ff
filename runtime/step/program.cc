#include "runtime/step/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace terrace {

std::string_view name_of(OpKind kind) {
  constexpr std::array<std::string_view, 27> kNames = {
      "input",         "forward",        "recompute",      "backward",       "upload",
      "download",      "read",           "write",          "all_reduce",     "reduce_scatter",
      "all_gather",    "all_to_all",     "gather_sums",    "send",           "receive",
      "accumulate",    "round_gradient", "encode",         "decode",         "decode_sum",
      "norm_partials", "keep_gradient",  "first_backward", "noise_partials", "step_scalars",
      "norm_finish",   "update"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string_view name_of(Message message) {
  constexpr std::array<std::string_view, 7> kNames = {
      "",        "hidden",      "hidden_gradient",  "borrowed_gradient",
      "updated", "router_sums", "later_router_sums"};
  return kNames.at(static_cast<std::size_t>(message));
}

Lane lane_of(OpKind kind, Message message) {
  TERRACE_CHECK(kind == OpKind::kSend || kind == OpKind::kReceive);
  const bool goes_back = message == Message::kHiddenGradient || message == Message::kUpdated ||
                         message == Message::kLaterRouterSums;
  if (kind == OpKind::kSend) return goes_back ? Lane::kSendBack : Lane::kSend;
  return goes_back ? Lane::kReceiveBack : Lane::kReceive;
}

std::string_view name_of(Part part) {
  constexpr std::array<std::string_view, 3> kNames = {"prologue", "body", "drain"};
  return kNames.at(static_cast<std::size_t>(part));
}

const Access* Op::find(Role role) const {
  for (const Access& access : reads) {
    if (access.role == role) return &access;
  }
  for (const Access& access : writes) {
    if (access.role == role) return &access;
  }
  return nullptr;
}

bool Op::reads_role(Role role) const {
  return std::any_of(reads.begin(), reads.end(),
                     [role](const Access& access) { return access.role == role; });
}

BufferId find_buffer(const Program& program, const BufferKey& key) {
  TERRACE_CHECK(key.kind != BufferKind::kOther);
  const auto found = std::ranges::find(program.buffers, key, &Buffer::key);
  return found == program.buffers.end() ? kNoBuffer
                                        : static_cast<BufferId>(found - program.buffers.begin());
}

std::vector<std::size_t> extent_sizes(const Program& program) {
  const auto on_nvme = [](const Buffer& buffer) { return buffer.tier == Tier::kNvme; };
  std::vector<std::size_t> sizes(
      static_cast<std::size_t>(std::ranges::count_if(program.buffers, on_nvme)));
  for (const Buffer& buffer : program.buffers) {
    if (on_nvme(buffer)) sizes.at(buffer.offset) = buffer.size_bytes;
  }
  return sizes;
}

std::size_t op_count(const Program& program) {
  const Repetition& repetition = program.repetition;
  const auto more = static_cast<std::size_t>(repetition.end - repetition.begin) *
                    static_cast<std::size_t>(repetition.times - 1);
  return program.ops.size() + more;
}

double lane_bytes(const Program& program, Lane lane) {
  double bytes = 0;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (op.lane == lane) bytes += program.times_of(i) * op.cost.bytes;
  }
  return bytes;
}

double lane_bytes(const Program& program, Lane lane, Account account) {
  double bytes = 0;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (op.lane == lane && op.account == account) bytes += program.times_of(i) * op.cost.bytes;
  }
  return bytes;
}

std::string describe(const Program& program, const Op& op) {
  std::string text{name_of(op.kind)};
  if (op.message != Message::kNone) text += fmt::format("_{}", name_of(op.message));
  const Access* source = op.find(Role::kSource);
  const Access* target = op.find(Role::kTarget);
  if (source != nullptr || target != nullptr) {
    const auto name = [&program](const Access* access) {
      return access == nullptr ? std::string() : program.buffers.at(access->buffer).name;
    };
    text += fmt::format(" {} -> {}", name(source), name(target));
  } else if (op.unit >= 0) {
    text += fmt::format(" {}", op.unit);
  }
  if (!op.phase.empty()) text += fmt::format(" {}", op.phase);
  if (op.chunk >= 0) text += fmt::format(" chunk {}", op.chunk);
  if (op.micro_batch >= 0) text += fmt::format(" mb {}", op.micro_batch);
  return text;
}

std::string to_text(const Program& program) {
  std::string text;
  const Repetition& repetition = program.repetition;
  if (repetition.times > 1) {
    text += fmt::format("ops {} to {}: {} times\n", repetition.begin, repetition.end - 1,
                        repetition.times);
  }
  for (const Buffer& buffer : program.buffers) {
    text += fmt::format("buffer {:<24} {:>6} at {:>12} {:>12} B {}\n", buffer.name,
                        name_of(buffer.tier), buffer.offset, buffer.size_bytes,
                        name_of(buffer.account));
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    text += fmt::format("{:>5} {:<9} {}{}", i, name_of(op.lane), describe(program, op),
                        op.is_deferred() ? " (of the step before)" : "");
    for (const Dependency& edge : op.after) {
      text += fmt::format("{}{}{}", &edge == op.after.data() ? "  after " : ", ", edge.op,
                          edge.distance == 1 ? "'" : "");
    }
    text += '\n';
  }
  return text;
}

}  // namespace terrace
