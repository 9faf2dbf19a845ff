#include "runtime/step/verify_ranks.h"

#include <fmt/format.h>

#include "base/hash.h"

namespace terrace {
namespace {

// Returns, as text, the part of an op that must be the same on all ranks.
std::string shared_part(const Program& program, const Op& op) {
  std::string text = fmt::format("{} on {}{}{}", describe(program, op), name_of(op.lane),
                                 op.is_deferred() ? ", deferred" : "",
                                 op.parts == kOfBothSteps ? ", in all parts" : "");
  if (!is_of_kind(op.lane, LaneKind::kCollective)) return text;
  for (const auto* accesses : {&op.reads, &op.writes}) {
    for (const Access& access : *accesses) text += fmt::format(", {} bytes", access.size_bytes);
  }
  return text;
}

std::string repetition_text(const Repetition& repetition) {
  return fmt::format("ops {} to {} {} times", repetition.begin, repetition.end, repetition.times);
}

}  // namespace

std::vector<std::string> verify_ranks(std::span<const Program> programs, std::size_t limit) {
  std::vector<std::string> problems;
  if (programs.empty()) return problems;
  const Program& first = programs.front();
  for (std::size_t rank = 1; rank < programs.size(); ++rank) {
    const Program& other = programs[rank];
    if (other.ops.size() != first.ops.size()) {
      problems.push_back(fmt::format("rank 0 has {} ops, rank {} has {}", first.ops.size(), rank,
                                     other.ops.size()));
    }
    if (repetition_text(other.repetition) != repetition_text(first.repetition)) {
      problems.push_back(fmt::format("rank 0 does {}, rank {} {}",
                                     repetition_text(first.repetition), rank,
                                     repetition_text(other.repetition)));
    }
    const std::size_t count = std::min(first.ops.size(), other.ops.size());
    for (std::size_t i = 0; i < count && problems.size() < limit; ++i) {
      const std::string expected = shared_part(first, first.ops[i]);
      const std::string found = shared_part(other, other.ops[i]);
      if (found == expected) continue;
      problems.push_back(
          fmt::format("op {} of rank 0 is {}, of rank {} {}", i, expected, rank, found));
    }
    if (problems.size() >= limit) break;
  }
  return problems;
}

std::uint64_t rank_fingerprint(const Program& program) {
  StreamingHash hash;
  const auto add = [&hash](const std::string& text) { hash.add(std::as_bytes(std::span(text))); };
  for (const Op& op : program.ops) add(shared_part(program, op) + '\n');
  add(repetition_text(program.repetition));
  return hash.value();
}

}  // namespace terrace
