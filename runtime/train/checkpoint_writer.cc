#include "runtime/train/checkpoint_writer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/check.h"

namespace terrace {
namespace {

// A unit's part begins on a page, so that copies of it are aligned.
constexpr std::size_t kPartAlignment = 4096;

std::size_t part_bytes(const UnitLayout& unit) {
  const std::size_t bytes = static_cast<std::size_t>(unit.trained_end()) * sizeof(float);
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

// Threads of Linux have priorities of their own. Where it is refused the writer competes with the
// steps, and nothing else is lost.
void yield_to_training() {
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
}

}  // namespace

std::size_t StateCopy::size_bytes(const CheckpointedModel& model) {
  std::size_t bytes = 0;
  for (const UnitLayout& unit : model.layout) {
    if (unit.trains()) bytes += part_bytes(unit) * state_fields(model.rule.slots.size()).size();
  }
  return bytes;
}

StateCopy::StateCopy(const CheckpointedModel& model, FetchState fetch)
    : memory_(std::max(size_bytes(model), kPartAlignment), {.touch = false}) {
  // As large as those in which a checkpoint is written: a reader's buffers have to be no larger.
  constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 20;
  std::span<std::byte> free = memory_.bytes();
  for (const UnitLayout& unit : model.layout) {
    if (!unit.trains()) continue;
    const auto elements = static_cast<std::size_t>(unit.trained_end());
    for (const StateField field : state_fields(model.rule.slots.size())) {
      const std::span<float> part(reinterpret_cast<float*>(free.data()), elements);
      free = free.subspan(part_bytes(unit));
      for (std::int64_t at = 0; at < std::ssize(part); at += kElementsAtOnce) {
        const std::int64_t count = std::min(kElementsAtOnce, std::ssize(part) - at);
        fetch(field, unit, at,
              part.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
      }
      parts_[{unit.index, field}] = part;
    }
  }
}

void StateCopy::read(StateField field, const UnitLayout& unit, std::int64_t begin,
                     std::span<float> out) const {
  const std::span<const float> part = parts_.at({unit.index, field});
  TERRACE_CHECK_LE(static_cast<std::size_t>(begin) + out.size(), part.size());
  std::copy_n(part.begin() + begin, out.size(), out.begin());
}

CheckpointWriter::~CheckpointWriter() { wait(); }

void CheckpointWriter::start(Job job) {
  TERRACE_CHECK(!thread_.joinable());
  is_done_ = false;
  result_ = {};
  thread_ = std::jthread([this, kept = std::make_unique<Job>(std::move(job))]() mutable {
    yield_to_training();
    write(*kept);
    kept.reset();  // before anybody is told that there is room for the next copy
    {
      const std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    done_changed_.notify_all();
  });
}

void CheckpointWriter::write(const Job& job) noexcept {
  try {
    result_.path = write_checkpoint(
        job.run_dir, job.progress, job.model,
        [&job](StateField field, const UnitLayout& unit, std::int64_t begin, std::span<float> out) {
          job.state.read(field, unit, begin, out);
        },
        job.disk);
  } catch (...) {
    result_.problem = std::current_exception();
  }
}

bool CheckpointWriter::ends_within(std::chrono::milliseconds limit) {
  if (!thread_.joinable()) return true;
  std::unique_lock lock(mutex_);
  return done_changed_.wait_for(lock, limit, [this] { return is_done_; });
}

std::optional<CheckpointWriter::Result> CheckpointWriter::poll() {
  if (!ends_within(std::chrono::milliseconds(0))) return std::nullopt;
  return wait();
}

std::optional<CheckpointWriter::Result> CheckpointWriter::wait() {
  if (!thread_.joinable()) return std::nullopt;
  thread_.join();
  is_done_ = false;
  return std::exchange(result_, {});
}

}  // namespace terrace
