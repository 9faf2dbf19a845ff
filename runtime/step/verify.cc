#include "runtime/step/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "runtime/step/happens_before.h"
#include "runtime/step/step_values.h"

namespace terrace {
namespace {

// The step of a value that was there before the first copy of the body.
constexpr std::int64_t kUnknownStep = std::numeric_limits<std::int64_t>::min();

std::string relative_step(std::int64_t step) {
  if (step == 0) return "its own step";
  if (step == 1) return "the next step";
  if (step == -1) return "the step before";
  return fmt::format("step {:+d} from its own", step);
}

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
    return std::move(problems_);
  }

 private:
  // What last happened to a piece of an arena.
  struct Piece {
    std::size_t end = 0;
    Moment writer = -1;
    BufferId owner = kNoBuffer;
    std::int64_t step = kUnknownStep;  // that the value belongs to
    std::vector<Moment> readers;       // since the write; of a lane in order only the last
  };
  using Pieces = std::map<std::size_t, Piece>;

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

  // A part leaves ops out: what it reads must still have been written, in it or, if it is carried,
  // by the step that a drain finishes.
  void check_part(Part part) {
    std::vector<bool> written(program_.buffers.size(), false);
    for (Moment i = 0; i < count_; ++i) {
      const Op& op = program_.ops[i];
      if (!takes_part(op, part)) continue;
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
    const std::int64_t step = step_written(now);
    for (const Access& access : op.reads) {
      for_pieces(access, [&](Piece& piece) { add_reader(piece, now); });
    }
    for (const Access& access : op.writes) write(now, access, step);
  }

  void add_reader(Piece& piece, Moment now) const {
    const Lane lane = op_at(now).lane;
    if (completes_in_order(lane)) {
      std::erase_if(piece.readers, [&](Moment other) { return op_at(other).lane == lane; });
    }
    piece.readers.push_back(now);
  }

  std::int64_t own_step(Moment now) const { return step_of(op_at(now), now / count_); }

  // The step that what this op writes belongs to. What it passes on must be of one step.
  std::int64_t step_written(Moment now) {
    if (!passes_values_on(op_at(now))) return own_step(now);
    std::int64_t step = kUnknownStep;
    for (const Access& access : op_at(now).reads) {
      for_pieces(access, [&](const Piece& piece) {
        if (piece.step == kUnknownStep) return;
        if (step != kUnknownStep && step != piece.step) {
          problem(fmt::format("{} passes on values of two steps in {}", name(now),
                              program_.buffers.at(access.buffer).name));
        }
        step = piece.step;
      });
    }
    return step;
  }

  // The learning rate of another step is as wrong as no learning rate.
  void check_age(Moment now, const Access& access, const Piece& piece) {
    const ValueAge age = demanded_age(op_at(now), access.role);
    if (age == ValueAge::kAny || piece.step == kUnknownStep) return;
    const std::int64_t wanted = age == ValueAge::kStepBefore ? -1 : 0;
    const std::int64_t found = piece.step - own_step(now);
    if (found == wanted) return;
    problem(fmt::format("{} needs {} of {} and finds those of {}, which {} wrote", name(now),
                        program_.buffers.at(access.buffer).name, relative_step(wanted),
                        relative_step(found), name(piece.writer)));
  }

  // All of the access is one piece from now on.
  void write(Moment now, const Access& access, std::int64_t step) {
    const auto [begin, end] = place_of(access);
    if (begin == end) return;
    Pieces& pieces = pieces_of(access);
    cut(pieces, begin);
    cut(pieces, end);
    pieces.erase(pieces.lower_bound(begin), pieces.lower_bound(end));
    pieces.emplace(begin, Piece{end, now, access.buffer, step, {}});
  }

  void check_read(Moment now, const Access& access) {
    const Buffer& buffer = program_.buffers.at(access.buffer);
    for_pieces(access, [&](Piece& piece) {
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
      check_age(now, access, piece);
    });
  }

  void check_write(Moment now, const Access& access) {
    const Buffer& buffer = program_.buffers.at(access.buffer);
    for_pieces(access, [&](Piece& piece) {
      if (piece.writer >= 0) require_order(piece.writer, now, buffer);
      for (const Moment reader : piece.readers) require_order(reader, now, buffer);
    });
  }

  void require_order(Moment first, Moment second, const Buffer& buffer) {
    if (first == second || before_(first, second)) return;
    problem(fmt::format("nothing orders {} before {} on the place of {}", name(first), name(second),
                        buffer.name));
  }

  std::pair<std::size_t, std::size_t> place_of(const Access& access) const {
    const Buffer& buffer = program_.buffers.at(access.buffer);
    if (buffer.tier == Tier::kNvme) return {buffer.offset, buffer.offset + 1};  // an extent
    const std::size_t begin = buffer.offset + access.offset;
    return {begin, begin + access.size_bytes};
  }

  Pieces& pieces_of(const Access& access) {
    return pieces_.at(static_cast<std::size_t>(program_.buffers.at(access.buffer).tier));
  }

  template <typename Visit>
  void for_pieces(const Access& access, Visit visit) {
    const auto [begin, end] = place_of(access);
    Pieces& pieces = pieces_of(access);
    cut(pieces, begin);
    cut(pieces, end);
    for (std::size_t at = begin; at < end;) {
      auto it = pieces.find(at);
      if (it == pieces.end()) {
        const auto next = pieces.lower_bound(at);
        const std::size_t stop = next == pieces.end() ? end : std::min(end, next->first);
        it = pieces.emplace(at, Piece{stop, -1, kNoBuffer, kUnknownStep, {}}).first;
      }
      visit(it->second);
      at = it->second.end;
    }
  }

  static void cut(Pieces& pieces, std::size_t at) {
    auto it = pieces.lower_bound(at);
    if (it == pieces.begin() || (it != pieces.end() && it->first == at)) return;
    --it;
    if (it->second.end <= at) return;
    Piece right = it->second;
    it->second.end = at;
    pieces.emplace(at, std::move(right));
  }

  const Program& program_;
  std::size_t limit_;
  Moment count_;
  HappensBefore before_;
  std::array<Pieces, kTierCount> pieces_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> verify(const Program& program, std::size_t limit) {
  return Verifier(program, limit).run();
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
