#include "runtime/checkpoint/background_appender.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace terrace {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::size_t kPiecesMax = BackgroundAppender::kWaitingBytesMax / kPieceBytes;

}  // namespace

BackgroundAppender::BackgroundAppender(SafetensorsWriter& file) : file_(file) {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    thread_ = std::thread();  // append() then writes itself, which only takes longer
  }
}

BackgroundAppender::~BackgroundAppender() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void BackgroundAppender::append(std::span<const std::byte> bytes) {
  if (!thread_.joinable()) return file_.append(bytes);
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPieceBytes));
    append_piece(piece);
    bytes = bytes.subspan(piece.size());
  }
}

void BackgroundAppender::append_piece(std::span<const std::byte> piece) {
  Bytes buffer;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return failure_ != nullptr || waiting_.size() < kPiecesMax; });
    rethrow_failure();
    if (!written_.empty()) {
      buffer = std::move(written_.back());
      written_.pop_back();
    }
  }
  buffer.assign(piece.begin(), piece.end());
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(buffer));
  }
  changed_.notify_all();
}

void BackgroundAppender::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return failure_ != nullptr || (waiting_.empty() && !is_writing_); });
  rethrow_failure();
}

void BackgroundAppender::rethrow_failure() const {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void BackgroundAppender::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stops_ || !waiting_.empty(); });
    if (stops_ || failure_ != nullptr) return;
    Bytes bytes = std::move(waiting_.front());
    waiting_.pop_front();
    is_writing_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      file_.append(bytes);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    is_writing_ = false;
    failure_ = failure;
    written_.push_back(std::move(bytes));
    changed_.notify_all();
    if (failure_ != nullptr) return;
  }
}

}  // namespace terrace
