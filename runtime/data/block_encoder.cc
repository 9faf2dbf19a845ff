#include "runtime/data/block_encoder.h"

#include <utility>

namespace terrace {
namespace {

constexpr std::size_t kBlocksPerThread = 3;
// More blocks keep the threads busy while the thread that takes waits for a drive: at 20 ms of work
// for each block, they keep two threads busy for 80 ms.
constexpr std::size_t kBlocksMore = 8;

}  // namespace

BlockEncoder::BlockEncoder(EncodeBlock encode, int threads)
    : encode_(std::move(encode)),
      jobs_max_(kBlocksPerThread * static_cast<std::size_t>(threads) + kBlocksMore) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

BlockEncoder::~BlockEncoder() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
}

void BlockEncoder::put(TextBlock block) {
  auto job = std::make_shared<Job>();
  job->result.text_bytes = block.text.size();
  job->result.block = std::move(block);
  jobs_.push_back(job);
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(job));
  }
  changed_.notify_all();
}

BlockEncoder::Encoded BlockEncoder::take() {
  const std::shared_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return job->is_done; });
  if (job->failure) std::rethrow_exception(job->failure);
  return std::move(job->result);
}

void BlockEncoder::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
    const std::shared_ptr<Job> job = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    try {
      encode_(job->result.block, job->result.documents);
    } catch (...) {
      job->failure = std::current_exception();
    }
    job->result.block.text = {};
    lock.lock();
    job->is_done = true;
    changed_.notify_all();
  }
}

}  // namespace terrace
