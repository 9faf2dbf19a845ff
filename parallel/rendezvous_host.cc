#include "parallel/rendezvous_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

// A process that connects says who it is at once; what says nothing is not one of ours.
constexpr auto kHelloTime = std::chrono::seconds(5);
constexpr auto kSendTime = std::chrono::seconds(2);
// Strangers beside the ranks; more wait for their turn.
constexpr std::size_t kStrangersMax = 64;
constexpr std::size_t kRanksNamed = 32;

std::string name_ranks(std::vector<int> ranks) {
  const std::size_t all = ranks.size();
  ranks.resize(std::min(all, kRanksNamed));
  std::string text = fmt::format("{} {}", all == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
  if (all > kRanksNamed) text += fmt::format(" and {} more", all - kRanksNamed);
  return text;
}

}  // namespace

RendezvousHost::RendezvousHost(const RendezvousOptions& options, std::span<std::byte> blob)
    : options_(options),
      blob_(blob),
      own_(hello_of(options, blob.size())),
      deadline_(Clock::now() + options.timeout),
      has_blob_(options.rank == 0) {
  const std::vector<int> ports = rendezvous_ports(options);
  for (const int port : ports) {
    listeners_ = listen_on(port);
    if (!listeners_.empty()) return;
  }
  throw EnvironmentError(
      fmt::format("the ports {} to {}, where the ranks would meet, are all in use", ports.front(),
                  ports.back()),
      "start the job with another --master-port or --rdzv-endpoint");
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

bool RendezvousHost::all_have_come() const { return has_blob_ && missing().empty(); }

void RendezvousHost::run() {
  while (!all_have_come()) {
    if (Clock::now() >= deadline_) {
      give_up(fmt::format("{} did not come to the rendezvous within {:g} s", name_ranks(missing()),
                          std::chrono::duration<double>(options_.timeout).count()));
    }
    TcpDeadline until = deadline_;
    for (const Guest& guest : guests_) {
      if (guest.rank < 0) until = std::min(until, guest.hello_until);
    }
    wait_for_news(until);
    accept_guests();
    for (Guest& guest : guests_) {
      if (!guest.is_gone) hear(guest);
    }
    std::erase_if(guests_, [](const Guest& guest) { return guest.is_gone; });
  }
  listeners_.clear();
  pass_blob_on();
}

void RendezvousHost::wait_for_news(TcpDeadline deadline) {
  std::vector<int> descriptors;
  const bool has_room = guests_.size() < static_cast<std::size_t>(options_.size) + kStrangersMax;
  for (const TcpSocket& listener : listeners_) {
    if (has_room) descriptors.push_back(listener.descriptor());
  }
  for (const Guest& guest : guests_) {
    if (!guest.has_confirmed) descriptors.push_back(guest.socket.descriptor());
  }
  wait_for_any(descriptors, deadline);
}

void RendezvousHost::accept_guests() {
  for (const TcpSocket& listener : listeners_) {
    while (guests_.size() < static_cast<std::size_t>(options_.size) + kStrangersMax) {
      TcpSocket socket = listener.accept();
      if (!socket.is_open()) break;
      Guest guest;
      guest.socket = std::move(socket);
      guest.hello_until = Clock::now() + kHelloTime;
      guests_.push_back(std::move(guest));
    }
  }
}

// A hello may come byte by byte. What follows it is the blob, of rank 0 only.
void RendezvousHost::hear(Guest& guest) {
  std::array<std::byte, 512> bytes;
  for (;;) {
    const std::optional<std::size_t> got = guest.socket.receive_some(bytes);
    if (!got.has_value()) {
      guest.is_gone = true;  // it may come again
      return;
    }
    if (guest.rank >= 0 && *got > 0) {  // it had nothing more to say
      dismiss(guest, AnswerKind::kRefused, fmt::format("rank {} went on talking", guest.rank));
      return;
    }
    guest.received.insert(guest.received.end(), bytes.begin(), bytes.begin() + *got);
    Hello hello;
    const std::size_t known = std::min(guest.received.size(), sizeof(hello));
    std::memcpy(static_cast<void*>(&hello), guest.received.data(), known);
    const std::size_t magic = std::min(known, hello.magic.size());
    // A stranger is not answered: it would not understand.
    if (std::memcmp(hello.magic.data(), kRendezvousMagic.data(), magic) != 0) {
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
  // Whoever said to be this rank before has come again by another connection, or is its double.
  for (Guest& other : guests_) {
    if (other.rank != static_cast<int>(hello.rank)) continue;
    dismiss(other, AnswerKind::kRefused,
            fmt::format("another process has come as rank {}", hello.rank));
  }
  if (blob_bytes > 0) {
    std::copy_n(guest.received.begin() + sizeof(hello), blob_bytes, blob_.begin());
    has_blob_ = true;
  }
  guest.rank = static_cast<int>(hello.rank);
  guest.received.clear();
  guest.is_gone = !send_answer(guest.socket, AnswerKind::kWelcome, "", Clock::now() + kSendTime);
  if (guest.is_gone) guest.rank = -1;
}

std::optional<std::string> RendezvousHost::objection(const Hello& hello, AnswerKind& kind) const {
  kind = AnswerKind::kRefused;
  if (hello.version != own_.version) {
    return fmt::format(
        "rank {} is another version of Terrace: its rendezvous is version {}, this "
        "is {}",
        hello.rank, hello.version, own_.version);
  }
  kind = AnswerKind::kElsewhere;
  if (hello.job != own_.job) return fmt::format("rank {} is one of another job", hello.rank);
  if (hello.attempt != own_.attempt) {
    return fmt::format("rank {} is of attempt {} of the job, and this is attempt {}", hello.rank,
                       hello.attempt, own_.attempt);
  }
  kind = AnswerKind::kRefused;
  if (hello.size != own_.size || hello.rank >= own_.size || hello.rank == own_.rank) {
    return fmt::format("a process says that it is rank {} of {}, and this is rank {} of {}",
                       hello.rank, hello.size, own_.rank, own_.size);
  }
  if (hello.blob_bytes != own_.blob_bytes) {
    return fmt::format("rank {} wants {} bytes, and there are {}", hello.rank, hello.blob_bytes,
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
  for (const Guest& guest : guests_) {
    send_answer(guest.socket, AnswerKind::kBlob, std::span<const std::byte>(blob_),
                Clock::now() + kSendTime);
  }
  const TcpDeadline until = std::max(deadline_, Clock::now() + kSendTime);
  for (Guest& guest : guests_) {
    std::byte confirmation{};
    guest.has_confirmed = guest.socket.receive_all(std::span(&confirmation, 1), until) &&
                          confirmation == kConfirmation;
  }
  std::vector<int> gone;
  for (const Guest& guest : guests_) {
    if (!guest.has_confirmed) gone.push_back(guest.rank);
  }
  if (gone.empty()) return;
  std::ranges::sort(gone);
  throw CommError(fmt::format("{} left the rendezvous before its end", name_ranks(gone)),
                  "see what they printed");
}

void RendezvousHost::give_up(const std::string& what) {
  const std::string also =
      last_objection_.empty() ? "" : fmt::format("; turned away: {}", last_objection_);
  for (const Guest& guest : guests_) {
    if (guest.rank < 0) continue;
    send_answer(guest.socket, AnswerKind::kMissing, what + also, Clock::now() + kSendTime);
  }
  throw CommError(what + also,
                  "see whether they were started, what they printed, and whether they "
                  "reach this host's ports after that of the launcher");
}

}  // namespace terrace
