#include "runtime/train/checkpoint_writer.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <system_error>
#include <utility>

#include "base/address_space.h"
#include "base/check.h"
#include "base/error.h"

namespace terrace {
namespace {

// Lowers the priority of this thread; on Linux, each thread has its own. If the change is refused,
// the writer competes with the steps, and nothing else is lost.
void yield_to_training() {
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
}

template <typename Work>
std::jthread start_thread(const char* name, Work work) {
  try {
    return std::jthread(std::move(work));
  } catch (const std::system_error& error) {
    throw EnvironmentError(fmt::format("cannot start the thread of {}: {}", name, error.what()),
                           remedy_for_threads());
  }
}

}  // namespace

CheckpointWriter::~CheckpointWriter() { wait(); }

void CheckpointWriter::prepare(const Job& job) {
  TERRACE_CHECK(!thread_.joinable());
  is_done_ = false;
  result_ = {};
  staging_ = std::make_unique<StateStaging>(job.model, job.staging_bytes);
}

void CheckpointWriter::start(Job job, FetchState fetch) {
  prepare(job);
  start_writing(std::move(job));
  try {
    staging_->read_all(fetch, [](std::int32_t) {}, [] { return true; });
  } catch (...) {
    wait();
    throw;
  }
}

// The reading thread keeps the normal priority, because the steps may have to wait for it.
void CheckpointWriter::start_beside(Job job, SharedFetch fetch, HomeGate& gate) {
  prepare(job);
  gate.close();
  try {
    reader_ = start_thread("a checkpoint's reader",
                           [this, fetch = std::move(fetch), &gate] { read_beside(fetch, gate); });
    start_writing(std::move(job));
  } catch (...) {
    staging_->stop();
    if (reader_.joinable()) reader_.join();
    gate.open_all();
    throw;
  }
}

void CheckpointWriter::read_beside(const SharedFetch& fetch, HomeGate& gate) noexcept {
  try {
    staging_->read_all(
        fetch, [&gate](std::int32_t unit) { gate.open_unit(unit); },
        [&gate] { return gate.is_awaited(); });
    gate.open_all();
  } catch (...) {  // read_all() has told the files' thread
    gate.open_all();
  }
}

void CheckpointWriter::start_writing(Job job) {
  thread_ = start_thread("a checkpoint's writer", [this, kept = std::move(job)] {
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
  const auto take = [this](StateField field, const UnitLayout& unit, std::int64_t begin,
                           std::span<float> out) {
    try {
      staging_->take(field, unit, begin, out);
    } catch (...) {
      result_.is_of_reading = true;
      throw;
    }
  };
  try {
    result_.path = write_checkpoint(job.run_dir, job.progress, job.model, take, job.disk);
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
  if (reader_.joinable()) reader_.join();
  staging_.reset();
  is_done_ = false;
  return std::exchange(result_, {});
}

}  // namespace terrace
