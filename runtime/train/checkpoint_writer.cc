#include "runtime/train/checkpoint_writer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"

namespace terrace {
namespace {

// Threads of Linux have priorities of their own. Where it is refused the writer competes with the
// steps, and nothing else is lost.
void yield_to_training() {
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
}

}  // namespace

CheckpointWriter::~CheckpointWriter() { wait(); }

void CheckpointWriter::start(Job job) {
  TERRACE_CHECK(!thread_.joinable());
  is_done_ = false;
  result_ = {};
  staging_ = std::make_unique<StateStaging>(job.model, job.staging_bytes);
  thread_ = std::jthread([this, kept = std::move(job)] {
    yield_to_training();
    write(kept);
    staging_->stop();
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
        [this](StateField field, const UnitLayout& unit, std::int64_t begin, std::span<float> out) {
          staging_->take(field, unit, begin, out);
        },
        job.disk);
  } catch (...) {
    result_.problem = std::current_exception();
    result_.is_of_reading = staging_->has_failed_to_read();
  }
}

void CheckpointWriter::read(FetchState fetch) {
  try {
    staging_->read_all(fetch, [](std::int32_t) {});
  } catch (...) {
    wait();
    throw;
  }
}

// The reader competes with the steps, as they may have to wait for it.
void CheckpointWriter::read_beside(SharedFetch fetch, HomeGate& gate) {
  gate.close();
  reader_ = std::jthread([this, fetch = std::move(fetch), &gate] {
    try {
      staging_->read_all(fetch, [&gate](std::int32_t unit) { gate.open(unit); });
    } catch (...) {  // the files' thread met it too
    }
    gate.open_all();
  });
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
  if (reader_.joinable()) reader_.join();
  staging_.reset();
  is_done_ = false;
  return std::exchange(result_, {});
}

}  // namespace terrace
