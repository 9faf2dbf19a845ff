#include "runtime/step/unrolled_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/step/hazards.h"

namespace terrace {
namespace {

class Unroller {
 public:
  Unroller(const Program& program, std::int32_t times)
      : program_(program),
        repetition_(program.repetition),
        times_(times),
        strides_(program.buffers.size()),
        handed_over_(program.buffers.size(), kNoBuffer),
        now_(program.buffers.size()) {
    for (const Repetition::Stride& stride : repetition_.strides) strides_[stride.buffer] = stride;
    for (const auto& [before, own] : repetition_.handovers) handed_over_[before] = own;
    std::iota(now_.begin(), now_.end(), 0);
  }

  Program run() {
    result_ = program_;
    result_.ops.clear();
    result_.repetition = {};
    const std::size_t more = static_cast<std::size_t>(times_) - 1;
    result_.ops.reserve(program_.ops.size() +
                        more * static_cast<std::size_t>(repetition_.end - repetition_.begin));
    result_.buffers.reserve(program_.buffers.size() + more * repetition_.filled.size());
    result_.ops.insert(result_.ops.end(), program_.ops.begin(), at(repetition_.end));
    for (std::int32_t number = 1; number < times_; ++number) add_repetition(number);
    std::for_each(at(repetition_.end), program_.ops.end(), [&](const Op& op) { add_behind(op); });
    add_edges(result_);
    return std::move(result_);
  }

 private:
  std::vector<Op>::const_iterator at(OpId op) const { return program_.ops.begin() + op; }

  void add_repetition(std::int32_t number) {
    before_ = now_;
    for (const BufferId buffer : repetition_.filled) {
      now_[buffer] = static_cast<BufferId>(result_.buffers.size());
      Buffer again = program_.buffers[buffer];
      again.key = {};
      if (!again.name.empty()) again.name += fmt::format(" +{}", number);
      result_.buffers.push_back(std::move(again));
    }
    std::for_each(at(repetition_.begin), at(repetition_.end), [&](const Op& op) {
      Op& again = result_.ops.emplace_back(op);
      if (again.micro_batch >= 0) again.micro_batch += number;
      for (std::vector<Access>* const accesses : {&again.reads, &again.writes}) {
        for (Access& access : *accesses) {
          access.offset += static_cast<std::size_t>(number) * strides_[access.buffer].bytes;
          const BufferId handed_over = handed_over_[access.buffer];
          access.buffer = handed_over == kNoBuffer ? now_[access.buffer] : before_[handed_over];
        }
      }
    });
  }

  // Adds an op behind the repetitions. It finds what the last one has left.
  void add_behind(const Op& op) {
    Op& added = result_.ops.emplace_back(op);
    for (std::vector<Access>* const accesses : {&added.reads, &added.writes}) {
      std::vector<Access> all;
      all.reserve(accesses->size());
      for (Access access : *accesses) {
        const Repetition::Stride& stride = strides_[access.buffer];
        access.buffer = now_[access.buffer];
        all.push_back(access);
        for (std::int32_t n = 1; stride.is_of_repetitions && n < times_; ++n) {
          access.offset += stride.bytes;
          all.push_back(access);
        }
      }
      *accesses = std::move(all);
    }
  }

  const Program& program_;
  const Repetition& repetition_;
  const std::int32_t times_;
  std::vector<Repetition::Stride> strides_;  // by buffer; of 0 bytes for most
  std::vector<BufferId> handed_over_;        // by buffer: Repetition::Handover::own, or kNoBuffer
  // By buffer of the program: the one that the present repetition, and the one before it, has for
  // it.
  std::vector<BufferId> now_;
  std::vector<BufferId> before_;
  Program result_;
};

}  // namespace

UnrolledProgram::UnrolledProgram(const Program& program, std::int32_t times) : program_(program) {
  const std::int32_t listed = std::min(times, program.repetition.times);
  if (program.repetition.times > 1) own_ = Unroller(program, listed).run();
}

}  // namespace terrace
