#include "runtime/step/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/step/happens_before.h"
#include "runtime/step/place_map.h"
#include "runtime/step/step_values.h"
#include "runtime/step/unrolled_program.h"

namespace terrace {
namespace {

class Verifier {
 public:
  Verifier(const Program& program, std::size_t limit)
      : program_(program),
        limit_(limit),
        count_(static_cast<Moment>(program.ops.size())),
        before_(program) {}

  std::vector<std::string> run() {
    check_edges();
    check_places();
    for (const Part part : {Part::kPrologue, Part::kDrain}) check_part(part);
    for (Moment m = 0; m < 2 * count_ && problems_.size() < limit_; ++m) check_accesses(m);
    for (std::string& text : check_step_values(program_, limit_)) problem(std::move(text));
    return std::move(problems_);
  }

 private:
  // The last accesses to a piece of an arena.
  struct Piece {
    Moment writer = -1;
    BufferId owner = kNoBuffer;
    std::vector<Moment> readers;  // since that write; only the last of an in-order lane
  };

  const Op& op_at(Moment moment) const { return program_.ops[moment % count_]; }

  std::string name(Moment moment) const {
    return fmt::format("op {} ({})", moment % count_, describe(program_, op_at(moment)));
  }

  void problem(std::string text) {
    if (problems_.size() < limit_) problems_.push_back(std::move(text));
  }

  void check_edges() {
    for (Moment i = 0; i < count_; ++i) {
      for (const Dependency& edge : program_.ops[i].after) {
        const bool known = edge.op >= 0 && edge.op < count_;
        if (!known || edge.distance < 0 || edge.distance > 1 ||
            (edge.distance == 0 && edge.op >= i)) {
          problem(
              fmt::format("{} waits for op {}, which does not come before it", name(i), edge.op));
        }
      }
    }
  }

  void check_places() {
    for (const Buffer& buffer : program_.buffers) {
      if (buffer.tier == Tier::kNvme) continue;
      if (buffer.offset + buffer.size_bytes > program_.use_of(buffer.tier).packed_bytes) {
        problem(fmt::format("{} reaches beyond the {} arena", buffer.name, name_of(buffer.tier)));
      }
    }
  }

  // Checks a part, which leaves ops out. The buffers that its ops read must still have been written
  // in it, or, for carried buffers, by the step that a drain finishes.
  void check_part(Part part) {
    std::vector<bool> written(program_.buffers.size(), false);
    for (Moment i = 0; i < count_; ++i) {
      const Op& op = program_.ops[i];
      if (!op.parts.contains(part)) continue;
      for (const Access& access : op.reads) {
        const Buffer& buffer = program_.buffers.at(access.buffer);
        const bool is_there = written[access.buffer] || buffer.life == Life::kPersistent ||
                              (buffer.life == Life::kCarried && part == Part::kDrain);
        if (is_there) continue;
        problem(fmt::format("{} reads {}, which nothing in the {} has written", name(i),
                            buffer.name, name_of(part)));
      }
      for (const Access& access : op.writes) written[access.buffer] = true;
    }
  }

  void check_accesses(Moment now) {
    const Op& op = op_at(now);
    for (const Access& access : op.reads) check_read(now, access);
    for (const Access& access : op.writes) check_write(now, access);
    for (const Access& access : op.reads) {
      pieces_.visit(place(access), [&](Piece& piece) { add_reader(piece, now); });
    }
    for (const Access& access : op.writes) {
      pieces_.assign(place(access), Piece{now, access.buffer, {}});
    }
  }

  void add_reader(Piece& piece, Moment now) const {
    const Lane lane = op_at(now).lane;
    if (completes_in_order(lane)) {
      std::erase_if(piece.readers, [&](Moment other) { return op_at(other).lane == lane; });
    }
    piece.readers.push_back(now);
  }

  void check_read(Moment now, const Access& access) {
    const Buffer& buffer = program_.buffers.at(access.buffer);
    pieces_.visit(place(access), [&](Piece& piece) {
      if (piece.writer < 0) {
        const bool from_before = now < count_ && buffer.life == Life::kCarried;
        if (buffer.life != Life::kPersistent && !from_before) {
          problem(fmt::format("{} reads {}, which nothing has written", name(now), buffer.name));
        }
        return;
      }
      if (piece.owner != access.buffer) {
        problem(fmt::format("{} reads {}, but {} wrote {} to the same place", name(now),
                            buffer.name, name(piece.writer),
                            program_.buffers.at(piece.owner).name));
        return;
      }
      require_order(piece.writer, now, buffer);
    });
  }

  void check_write(Moment now, const Access& access) {
    const Buffer& buffer = program_.buffers.at(access.buffer);
    pieces_.visit(place(access), [&](Piece& piece) {
      if (piece.writer >= 0) require_order(piece.writer, now, buffer);
      for (const Moment reader : piece.readers) require_order(reader, now, buffer);
    });
  }

  void require_order(Moment first, Moment second, const Buffer& buffer) {
    if (first == second || before_(first, second)) return;
    problem(fmt::format("nothing orders {} before {} on the place of {}", name(first), name(second),
                        buffer.name));
  }

  Place place(const Access& access) const { return place_of(program_, access); }

  const Program& program_;
  std::size_t limit_;
  Moment count_;
  HappensBefore before_;
  PlaceMap<Piece> pieces_;
  std::vector<std::string> problems_;
};

// Checks that the last repetition touches no bytes beyond the buffers that repetitions go through.
std::vector<std::string> check_strides(const Program& program) {
  const Repetition& repetition = program.repetition;
  std::vector<std::string> problems;
  for (const Repetition::Stride& stride : repetition.strides) {
    const std::size_t behind = stride.bytes * static_cast<std::size_t>(repetition.times - 1);
    const Buffer& buffer = program.buffers.at(stride.buffer);
    for (OpId op = repetition.begin; op < repetition.end; ++op) {
      for (const auto* accesses : {&program.ops[op].reads, &program.ops[op].writes}) {
        for (const Access& access : *accesses) {
          if (access.buffer != stride.buffer) continue;
          if (access.offset + access.size_bytes + behind <= buffer.size_bytes) continue;
          problems.push_back(fmt::format("the last repetition of op {} ({}) reaches beyond {}", op,
                                         describe(program, program.ops[op]), buffer.name));
        }
      }
    }
  }
  return problems;
}

}  // namespace

std::vector<std::string> verify(const Program& program, std::size_t limit) {
  constexpr std::int32_t kTimes = 3;
  const UnrolledProgram unrolled(program, kTimes);
  std::vector<std::string> problems = Verifier(unrolled.program(), limit).run();
  for (std::string& text : check_strides(program)) problems.push_back(std::move(text));
  if (problems.size() > limit) problems.resize(limit);
  return problems;
}

std::vector<Tier> tiers_over_budget(const Program& program, const TierBudgets& budgets) {
  std::vector<Tier> over;
  for (const Tier tier : kTiers) {
    const auto& budget = budgets.at(static_cast<std::size_t>(tier));
    if (budget.has_value() && program.use_of(tier).packed_bytes > *budget) over.push_back(tier);
  }
  return over;
}

}  // namespace terrace
