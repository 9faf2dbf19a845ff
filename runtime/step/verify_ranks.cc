#include "runtime/step/verify_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/function_ref.h"
#include "base/hash.h"

namespace terrace {
namespace {

// Returns the bytes of each access of an op, as text.
std::string bytes_of(const Op& op) {
  std::string text;
  for (const auto* accesses : {&op.reads, &op.writes}) {
    for (const Access& access : *accesses) text += fmt::format(", {} bytes", access.size_bytes);
  }
  return text;
}

std::string parts_of(const Op& op) {
  if (op.is_deferred()) return ", deferred";
  return op.parts == kOfBothSteps ? ", in all parts" : "";
}

// Returns, as text, the part of an op that must be the same on all ranks that have all ops in
// common.
std::string any_op(const Program& program, const Op& op) {
  const std::string text =
      fmt::format("{} on {}{}", describe(program, op), name_of(op.lane), parts_of(op));
  return is_of_kind(op.lane, LaneKind::kCollective) ? text + bytes_of(op) : text;
}

// Returns a text for a collective without the names of buffers, which depend on the ops around it.
// A collective of activations belongs to a micro-batch, with which a step may leave it out.
std::string collective(const Op& op, std::int32_t times) {
  std::string text{name_of(op.kind)};
  if (op.unit >= 0) text += fmt::format(" of unit {}", op.unit);
  if (op.group >= 0) text += fmt::format(", group {}", op.group);
  if (op.chunk >= 0) text += fmt::format(", chunk {}", op.chunk);
  const bool is_of_micro_batch = op.lane == Lane::kTensor && op.account == Account::kActivations;
  if (is_of_micro_batch) text += fmt::format(", micro-batch {}", op.micro_batch);
  text += fmt::format(", {} on {}{}{}", name_of(op.account), name_of(op.lane), parts_of(op),
                      bytes_of(op));
  return times == 1 ? text : text + fmt::format(", {} times in a row", times);
}

// Takes the first line off a text; none at its end.
std::optional<std::string_view> next_line(std::string_view& text) {
  if (text.empty()) return std::nullopt;
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

// Returns at most `limit` sentences about lines in which two texts differ.
std::vector<std::string> differences(std::string_view of_first, std::string_view of_rank,
                                     std::size_t rank, std::size_t limit) {
  std::vector<std::string> problems;
  for (std::size_t i = 0; problems.size() < limit; ++i) {
    const std::optional<std::string_view> expected = next_line(of_first);
    const std::optional<std::string_view> found = next_line(of_rank);
    if (!expected.has_value() && !found.has_value()) break;
    if (expected == found) continue;
    problems.push_back(fmt::format("op {} that ranks share is on rank 0: {}; on rank {}: {}", i,
                                   expected.value_or("none"), rank, found.value_or("none")));
  }
  return problems;
}

// Calls visit(line) for each op that must be the same on all ranks.
void for_each_shared_op(const Program& program, RankMatch match,
                        FunctionRef<void(const std::string&)> visit) {
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (match == RankMatch::kAllOps) {
      visit(any_op(program, op) + '\n');
    } else if (is_between_ranks(op.lane)) {
      visit(collective(op, program.times_of(i)) + '\n');
    }
  }
  if (match == RankMatch::kCollectives) return;
  const Repetition& repetition = program.repetition;
  visit(
      fmt::format("ops {} to {}, {} times\n", repetition.begin, repetition.end, repetition.times));
}

}  // namespace

std::string shared_ops(const Program& program, RankMatch match) {
  std::string text;
  for_each_shared_op(program, match, [&text](const std::string& line) { text += line; });
  return text;
}

std::vector<std::string> verify_ranks(std::span<const Program> programs, RankMatch match,
                                      std::size_t limit) {
  std::vector<std::string> problems;
  if (programs.empty()) return problems;
  const std::string of_first = shared_ops(programs.front(), match);
  for (std::size_t rank = 1; rank < programs.size() && problems.size() < limit; ++rank) {
    const std::string of_rank = shared_ops(programs[rank], match);
    for (std::string& problem : differences(of_first, of_rank, rank, limit - problems.size())) {
      problems.push_back(std::move(problem));
    }
  }
  return problems;
}

std::uint64_t rank_fingerprint(const Program& program, RankMatch match) {
  StreamingHash hash;
  for_each_shared_op(program, match, [&hash](const std::string& line) {
    hash.add(std::as_bytes(std::span(line)));
  });
  return hash.value();
}

std::string first_difference(const std::string& of_first_rank, const std::string& of_rank,
                             int rank) {
  const auto found = differences(of_first_rank, of_rank, static_cast<std::size_t>(rank), 1);
  return found.empty() ? "" : found.front();
}

}  // namespace terrace
