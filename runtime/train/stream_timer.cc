#include "runtime/train/stream_timer.h"

#include <algorithm>
#include <random>
#include <vector>

#include "base/bytes.h"

namespace terrace {
namespace {

constexpr int kRunsMost = 200;

std::vector<std::byte> made_up_numbers(std::size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  std::mt19937 random(1);
  for (std::size_t at = 0; at < size_bytes; ++at) {
    bytes[at] = at % 2 == 0 ? static_cast<std::byte>(random() & 0xff) : std::byte{0x3c};
  }
  return bytes;
}

}  // namespace

void KernelTask::run(NativeStream stream) noexcept {
  try {
    launch_(stream);
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void KernelTask::rethrow() const {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

StreamTimer::StreamTimer(Device& device)
    : begin_(device.create_event()),
      end_(device.create_event()),
      stream_(device.create_stream("timing")) {}

double StreamTimer::seconds_of(FunctionRef<void(NativeStream)> kernels) {
  KernelTask task(kernels);
  return seconds_per_run([&] {
    stream_->run(task);
    task.rethrow();
  });
}

double StreamTimer::seconds_of_copy(std::span<std::byte> target,
                                    std::span<const std::byte> source) {
  return seconds_per_run([&] { stream_->copy(target, source); });
}

double StreamTimer::seconds_per_run(FunctionRef<void()> issue) {
  seconds_of_runs(1, issue);  // loads kernels
  const double one_s = seconds_of_runs(1, issue);
  const auto runs_in = [one_s](double seconds) {
    return seconds > kRunsMost * one_s ? kRunsMost : 1 + static_cast<int>(seconds / one_s);
  };
  seconds_of_runs(runs_in(kSettleS), issue);
  const int runs = runs_in(kEnoughS);
  return seconds_of_runs(runs, issue) / runs;
}

double StreamTimer::seconds_of_runs(int runs, FunctionRef<void()> issue) {
  stream_->record(*begin_);
  for (int i = 0; i < runs; ++i) issue();
  stream_->record(*end_);
  begin_->wait();
  end_->wait();
  return 1e-9 * static_cast<double>(end_->reached_ns() - begin_->reached_ns());
}

void StreamTimer::fill(std::span<std::byte> memory) {
  if (memory.empty()) return;
  const std::vector<std::byte> numbers = made_up_numbers(std::min(memory.size(), kMiB));
  stream_->copy(memory.first(numbers.size()), numbers);
  // The device copies what it has, and has twice as much.
  for (std::size_t filled = numbers.size(); filled < memory.size(); filled *= 2) {
    const std::size_t added = std::min(filled, memory.size() - filled);
    stream_->copy(memory.subspan(filled, added), memory.first(added));
  }
  stream_->synchronize();
}

void StreamTimer::put(std::span<std::byte> target, std::span<const std::byte> source) {
  stream_->copy(target, source);
  stream_->synchronize();
}

}  // namespace terrace
