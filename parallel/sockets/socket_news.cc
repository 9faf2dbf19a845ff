#include "parallel/sockets/socket_news.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace terrace {
namespace {

constexpr std::size_t kNewsBytes = 4096;

}  // namespace

SocketNews::SocketNews(int rank, std::vector<TcpSocket> links) : rank_(rank) {
  for (TcpSocket& link : links) links_.push_back({std::move(link), {}, {}});
  for (const Link& link : links_) {
    if (link.socket.is_open()) link.socket.watch_peer();
    watched_.push_back({link.socket.descriptor(), POLLIN, 0});
  }
}

void SocketNews::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (is_aborted_.load()) return;
  set_reason(reason);
  tell_all(Kind::kAbort, std::as_bytes(std::span(reason_)));
}

bool SocketNews::is_aborted() {
  if (is_aborted_.load()) return true;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) look();
  return is_aborted_.load();
}

std::string SocketNews::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

void SocketNews::tell_end(int code) {
  const std::lock_guard lock(mutex_);
  largest_code_ = std::max(largest_code_, code);
  const auto number = static_cast<std::int32_t>(code);
  tell_all(Kind::kEnd, std::as_bytes(std::span(&number, 1)));
}

bool SocketNews::all_have_ended() {
  const std::lock_guard lock(mutex_);
  look();
  return std::ranges::all_of(links_, [](const Link& link) {
    return !link.socket.is_open() || link.has_ended || link.is_closed;
  });
}

int SocketNews::largest_code() const {
  const std::lock_guard lock(mutex_);
  return largest_code_;
}

void SocketNews::set_reason(const std::string& reason) {
  if (is_aborted_.load()) return;
  reason_ = reason.substr(0, kNewsBytes);
  is_aborted_.store(true);
}

void SocketNews::tell_all(Kind kind, std::span<const std::byte> content) {
  const Head head = {.kind = kind, .bytes = static_cast<std::uint32_t>(content.size())};
  const auto head_bytes = std::as_bytes(std::span(&head, 1));
  for (Link& link : links_) {
    if (!link.socket.is_open() || link.is_closed) continue;
    link.to_send.insert(link.to_send.end(), head_bytes.begin(), head_bytes.end());
    link.to_send.insert(link.to_send.end(), content.begin(), content.end());
    flush(link);
  }
}

// A failure is noticed when the link is read.
void SocketNews::flush(Link& link) {
  while (!link.to_send.empty()) {
    const ssize_t sent = ::send(link.socket.descriptor(), link.to_send.data(), link.to_send.size(),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;
    link.to_send.erase(link.to_send.begin(), link.to_send.begin() + sent);
  }
}

void SocketNews::look() {
  for (Link& link : links_) {
    if (!link.to_send.empty() && !link.is_closed) flush(link);
  }
  if (::poll(watched_.data(), watched_.size(), 0) <= 0) return;
  for (std::size_t rank = 0; rank < links_.size(); ++rank) {
    if (watched_[rank].revents == 0) continue;
    hear(static_cast<int>(rank), links_[rank]);
    if (links_[rank].is_closed) watched_[rank].fd = -1;
  }
}

// A rank may say that it has aborted, and end: then its words come before the end of its
// connection.
void SocketNews::hear(int rank, Link& link) {
  for (;;) {
    std::array<std::byte, 1024> bytes{};
    const std::optional<std::size_t> got = link.socket.receive_some(bytes);
    if (got.has_value() && *got == 0) break;
    if (!got) {
      link.is_closed = true;
      break;
    }
    link.received.insert(link.received.end(), bytes.begin(),
                         bytes.begin() + static_cast<std::ptrdiff_t>(*got));
  }
  understand(link);
  if (!link.is_closed || link.has_ended) return;
  largest_code_ = std::max(largest_code_, 1);
  if (is_aborted_.load()) return;
  set_reason(
      fmt::format("rank {} has died, or its machine cannot be reached: its connection to "
                  "rank {} has ended",
                  rank, rank_));
  tell_all(Kind::kAbort, std::as_bytes(std::span(reason_)));
}

void SocketNews::understand(Link& link) {
  std::span<const std::byte> rest = link.received;
  Head head;
  while (rest.size() >= sizeof(head)) {
    std::memcpy(&head, rest.data(), sizeof(head));
    if (rest.size() - sizeof(head) < head.bytes) break;
    const std::span<const std::byte> content = rest.subspan(sizeof(head), head.bytes);
    if (head.kind == Kind::kEnd && content.size() == sizeof(std::int32_t)) {
      std::int32_t code = 0;
      std::memcpy(&code, content.data(), sizeof(code));
      link.has_ended = true;
      largest_code_ = std::max(largest_code_, code);
    } else {
      set_reason({reinterpret_cast<const char*>(content.data()), content.size()});
    }
    rest = rest.subspan(sizeof(head) + head.bytes);
  }
  link.received.erase(link.received.begin(),
                      link.received.end() - static_cast<std::ptrdiff_t>(rest.size()));
}

}  // namespace terrace
