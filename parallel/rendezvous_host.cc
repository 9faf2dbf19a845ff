#include "parallel/rendezvous_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

// Messages are so short that sending them needs no waiting.
constexpr auto kSendTime = std::chrono::seconds(2);
constexpr std::size_t kRanksNamed = 32;

std::string name_ranks(std::vector<int> ranks) {
  const std::size_t all = ranks.size();
  ranks.resize(std::min(all, kRanksNamed));
  std::string text = fmt::format("{} {}", all == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
  if (all > kRanksNamed) text += fmt::format(" and {} more", all - kRanksNamed);
  return text;
}

}  // namespace

RendezvousHost::RendezvousHost(const RendezvousOptions& options, std::span<std::byte> blob,
                               TcpDeadline deadline, Now now)
    : options_(options),
      blob_(blob),
      own_(hello_of(options, blob.size())),
      deadline_(deadline),
      now_(std::move(now)),
      has_come_(static_cast<std::size_t>(options.size)),
      has_blob_(options.rank == 0) {
  has_come_[static_cast<std::size_t>(options.rank)] = true;
  const std::vector<int> ports = rendezvous_ports(options);
  for (const int port : ports) {
    port_ = port;
    listeners_ = listen_on(port);
    if (!listeners_.empty()) return;
  }
  throw EnvironmentError(
      fmt::format("the ports {} to {}, on which the ranks would meet, are all in use",
                  ports.front(), ports.back()),
      "start the job with another master port or rendezvous endpoint");
}

bool RendezvousHost::has_room() const {
  return guests_.size() < static_cast<std::size_t>(options_.size) + kRendezvousStrangersMax;
}

std::vector<int> RendezvousHost::missing() const {
  std::vector<bool> is_here(static_cast<std::size_t>(options_.size));
  is_here[static_cast<std::size_t>(options_.rank)] = true;
  for (const Guest& guest : guests_) {
    if (guest.rank >= 0) is_here[static_cast<std::size_t>(guest.rank)] = true;
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (!is_here[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

std::string RendezvousHost::absence() const {
  std::vector<int> never = missing();
  const auto seen = std::ranges::stable_partition(
      never, [&](int rank) { return !has_come_[static_cast<std::size_t>(rank)]; });
  const std::vector<int> left(seen.begin(), seen.end());
  never.erase(seen.begin(), seen.end());
  const double seconds = std::chrono::duration<double>(options_.timeout).count();
  if (never.empty()) {
    return fmt::format("{} joined the rendezvous, left it, and did not come back within {:g} s",
                       name_ranks(left), seconds);
  }
  std::string text =
      fmt::format("{} did not join the rendezvous within {:g} s", name_ranks(never), seconds);
  if (!left.empty()) text += fmt::format("; {} joined and left", name_ranks(left));
  return text;
}

void RendezvousHost::run() {
  try {
    gather();
  } catch (const EnvironmentError&) {
    const std::string why = fmt::format(
        "rank {}, which hosts the rendezvous, has failed: see what it printed", options_.rank);
    tell_all(AnswerKind::kMissing, std::as_bytes(std::span(why)));
    throw;
  }
  pass_blob_on();
}

void RendezvousHost::gather() {
  while (!has_blob_ || !missing().empty()) {
    if (now_() >= deadline_) {
      give_up(
          absence() +
              (last_objection_.empty() ? "" : fmt::format("; turned away: {}", last_objection_)),
          "check whether they were started, what they printed, and whether they can reach the "
          "ports of this host that follow the launcher's port");
    }
    wait_for_news();
    accept_guests();
    for (Guest& guest : guests_) {
      if (!guest.is_gone) hear(guest);
    }
    std::erase_if(guests_, [](const Guest& guest) { return guest.is_gone; });
  }
  listeners_.clear();
}

void RendezvousHost::wait_for_news() {
  std::vector<TcpWait> waits;
  TcpDeadline until = deadline_;
  if (has_room()) {
    for (const TcpSocket& listener : listeners_) waits.push_back({listener.descriptor()});
  }
  for (const Guest& guest : guests_) {
    waits.push_back({guest.socket.descriptor()});
    if (guest.rank < 0) until = std::min(until, guest.hello_until);
  }
  // The connections that are ready are found by reading from all.
  wait_for_any(waits, until);
}

void RendezvousHost::accept_guests() {
  for (const TcpSocket& listener : listeners_) {
    while (has_room()) {
      TcpSocket socket = listener.accept();
      if (!socket.is_open()) break;
      Guest guest;
      guest.socket = std::move(socket);
      guest.hello_until = Clock::now() + options_.hello_time;
      guests_.push_back(std::move(guest));
    }
  }
}

// A hello may come byte by byte. After it comes the blob, from rank 0 only.
void RendezvousHost::hear(Guest& guest) {
  std::array<std::byte, 512> bytes;
  for (;;) {
    const std::optional<std::size_t> got = guest.socket.receive_some(bytes);
    if (!got.has_value()) {
      guest.is_gone = true;  // it may come again
      return;
    }
    if (guest.rank >= 0 && *got > 0) {  // it should have sent nothing more
      dismiss(guest, AnswerKind::kRefused,
              fmt::format("rank {} sent more than expected", guest.rank));
      return;
    }
    guest.received.insert(guest.received.end(), bytes.begin(), bytes.begin() + *got);
    Hello hello;
    const std::size_t known = std::min(guest.received.size(), sizeof(hello));
    std::copy_n(guest.received.begin(), known, reinterpret_cast<std::byte*>(&hello));
    const std::size_t magic = std::min(known, hello.magic.size());
    // A stranger gets no answer, because it would not understand one.
    if (std::memcmp(hello.magic.data(), kHelloMagic.data(), magic) != 0) {
      guest.is_gone = true;
    } else if (known == sizeof(hello) && guest.rank < 0) {
      greet(guest, hello);
    } else if (guest.rank < 0 && Clock::now() >= guest.hello_until) {
      guest.is_gone = true;
    }
    if (guest.is_gone || *got == 0) return;
  }
}

void RendezvousHost::greet(Guest& guest, const Hello& hello) {
  AnswerKind kind = AnswerKind::kElsewhere;
  if (const std::optional<std::string> why = objection(hello, kind)) {
    return dismiss(guest, kind, *why);
  }
  const std::size_t blob_bytes = hello.rank == 0 ? blob_.size() : 0;
  if (guest.received.size() < sizeof(hello) + blob_bytes) {
    guest.is_gone = Clock::now() >= guest.hello_until;
    return;
  }
  replace(hello);
  if (blob_bytes > 0) {
    std::copy_n(guest.received.begin() + sizeof(hello), blob_bytes, blob_.begin());
    has_blob_ = true;
  }
  guest.received.clear();
  guest.attempt = static_cast<int>(hello.attempt);
  has_come_[hello.rank] = true;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - now_());
  guest.is_gone = !send_welcome(guest.socket, left, Clock::now() + kSendTime);
  if (!guest.is_gone) guest.rank = static_cast<int>(hello.rank);
}

void RendezvousHost::replace(const Hello& hello) {
  for (Guest& other : guests_) {
    if (other.is_gone || other.rank != static_cast<int>(hello.rank)) continue;
    dismiss(other, AnswerKind::kRefused,
            fmt::format("another process has joined as rank {} (attempt {}; this is attempt {})",
                        hello.rank, hello.attempt, other.attempt));
  }
}

std::optional<std::string> RendezvousHost::objection(const Hello& hello, AnswerKind& kind) const {
  kind = AnswerKind::kElsewhere;
  if (hello.job != own_.job) {
    return "a process came to the rendezvous of another job";
  }
  kind = AnswerKind::kRefused;
  if (hello.version != own_.version) {
    return fmt::format(
        "a rank runs another version of Terrace: its rendezvous has version {}, this one has {}",
        hello.version, own_.version);
  }
  if (hello.size != own_.size || hello.rank >= own_.size || hello.rank == own_.rank) {
    return fmt::format("a process says that it is rank {} of {}, but this is rank {} of {}",
                       hello.rank, hello.size, own_.rank, own_.size);
  }
  if (hello.blob_bytes != own_.blob_bytes) {
    return fmt::format("rank {} expects {} bytes, but there are {}", hello.rank, hello.blob_bytes,
                       own_.blob_bytes);
  }
  return std::nullopt;
}

void RendezvousHost::dismiss(Guest& guest, AnswerKind kind, const std::string& why) {
  last_objection_ = why;
  send_answer(guest.socket, kind, why, Clock::now() + kSendTime);
  guest.rank = -1;
  guest.is_gone = true;
}

void RendezvousHost::pass_blob_on() {
  std::erase_if(guests_, [](const Guest& guest) { return guest.rank < 0; });
  tell_all(AnswerKind::kBlob, blob_);
  const TcpDeadline until = std::max(deadline_, Clock::now() + kSendTime);
  std::vector<int> gone;
  for (const Guest& guest : guests_) {
    std::byte said{};
    const bool has_confirmed =
        guest.socket.receive_all(std::span(&said, 1), until) && said == kConfirmation;
    if (!has_confirmed) gone.push_back(guest.rank);
  }
  if (gone.empty()) return tell_all(AnswerKind::kDone, {});
  std::ranges::sort(gone);
  give_up(fmt::format("{} left the rendezvous before it ended", name_ranks(gone)),
          "see what they printed");
}

void RendezvousHost::give_up(const std::string& what, const std::string& remedy) {
  tell_all(AnswerKind::kMissing, std::as_bytes(std::span(what)));
  throw CommError(what, remedy);
}

void RendezvousHost::tell_all(AnswerKind kind, std::span<const std::byte> bytes) {
  const TcpDeadline until = Clock::now() + kSendTime;
  for (const Guest& guest : guests_) {
    if (guest.rank >= 0) send_answer(guest.socket, kind, bytes, until);
  }
}

}  // namespace terrace
