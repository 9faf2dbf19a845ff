#include "parallel/rendezvous_guest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

// A host of ours answers a hello at once; a process that does not is a stranger.
constexpr auto kAnswerTime = std::chrono::seconds(2);
constexpr auto kGuestPause = std::chrono::milliseconds(50);
// After its own deadline the host still tells every guest the outcome.
constexpr auto kVerdictTime = std::chrono::seconds(5);

}  // namespace

RendezvousGuest::RendezvousGuest(const RendezvousOptions& options, std::span<std::byte> blob,
                                 TcpDeadline deadline)
    : options_(options), blob_(blob), deadline_(deadline), ports_(rendezvous_ports(options)) {}

void RendezvousGuest::run() {
  for (;;) {
    const TcpResolved resolved = resolve_tcp(options_.address);
    if (!resolved.problem.empty()) news_ = resolved.problem;
    for (const TcpAddress& address : resolved.addresses) {
      const std::optional<Place> place = look_at(address);
      if (place.has_value() && stay(*place)) return;
      if (Clock::now() >= deadline_) break;
    }
    if (Clock::now() >= deadline_) break;
    std::this_thread::sleep_for(kGuestPause);
  }
  fail(fmt::format("found no rendezvous at {}, ports {} to {}, within {:g} s{}", options_.address,
                   ports_.front(), ports_.back(),
                   std::chrono::duration<double>(options_.timeout).count(),
                   news_.empty() ? "" : fmt::format(" ({})", news_)));
}

std::optional<RendezvousGuest::Place> RendezvousGuest::look_at(const TcpAddress& address) {
  std::vector<Visit> visits(ports_.size());
  for (std::size_t i = 0; i < visits.size(); ++i) {
    visits[i].socket = TcpSocket::start_connecting(at_port(address, ports_[i]));
  }
  const TcpDeadline until = Clock::now() + kAnswerTime;
  do {
    std::erase_if(visits, [](const Visit& visit) { return !visit.socket.is_open(); });
    if (visits.empty()) return std::nullopt;
    std::vector<TcpWait> waits;
    for (const Visit& visit : visits) {
      waits.push_back({visit.socket.descriptor(), !visit.has_said_hello});
    }
    wait_for_any(waits, until);
    for (std::size_t i = 0; i < visits.size(); ++i) {
      if (!waits[i].is_ready) continue;
      if (std::optional<Place> place = go_on(visits[i])) return place;
    }
  } while (Clock::now() < until);
  return std::nullopt;
}

std::optional<RendezvousGuest::Place> RendezvousGuest::go_on(Visit& visit) {
  if (!visit.has_said_hello) {
    visit.has_said_hello = true;
    if (!visit.socket.has_connected() || !say_hello(visit.socket)) visit.socket.close();
    return std::nullopt;
  }
  switch (visit.answer.read(visit.socket)) {
    case AnswerReader::State::kPart:
      return std::nullopt;
    case AnswerReader::State::kWhole:
      return judge(visit.answer.take(), visit.socket);
    case AnswerReader::State::kNone:
      break;
  }
  visit.socket.close();
  return std::nullopt;
}

bool RendezvousGuest::say_hello(const TcpSocket& socket) const {
  const Hello hello = hello_of(options_, blob_.size());
  std::vector<std::byte> message(sizeof(hello));
  std::memcpy(message.data(), &hello, sizeof(hello));
  if (options_.rank == 0) message.insert(message.end(), blob_.begin(), blob_.end());
  return socket.send_all(message, Clock::now() + kAnswerTime);
}

std::optional<RendezvousGuest::Place> RendezvousGuest::judge(const Answer& answer,
                                                             TcpSocket& socket) {
  if (answer.kind == AnswerKind::kElsewhere) {  // in any version
    news_ = answer.text();
    socket.close();
    return std::nullopt;
  }
  check_version(answer);
  if (answer.kind != AnswerKind::kWelcome) fail(answer.text());
  const auto left = std::min(answer.left, options_.timeout);
  return Place{std::move(socket), Clock::now() + left + kVerdictTime};
}

bool RendezvousGuest::stay(const Place& place) {
  const std::optional<Answer> answer = receive_answer(place.socket, place.until);
  if (!answer.has_value()) {
    news_ = "the process that hosted the rendezvous has ended or does not answer";
    return false;
  }
  check_version(*answer);
  if (answer->kind != AnswerKind::kBlob) fail(answer->text());
  if (answer->bytes.size() != blob_.size()) {
    fail(fmt::format("the rendezvous sent {} bytes, but {} are expected", answer->bytes.size(),
                     blob_.size()));
  }
  std::ranges::copy(answer->bytes, blob_.begin());
  end(place);
  return true;
}

// From now on the host knows whether all are there, so this rank cannot come back for another try.
void RendezvousGuest::end(const Place& place) const {
  place.socket.send_all(std::span(&kConfirmation, 1), place.until);
  const std::optional<Answer> answer = receive_answer(place.socket, place.until);
  if (!answer.has_value()) {
    fail(
        "the process that hosted the rendezvous ended before it confirmed that all ranks have met");
  }
  check_version(*answer);
  if (answer->kind != AnswerKind::kDone) fail(answer->text());
}

void RendezvousGuest::check_version(const Answer& answer) const {
  if (answer.version == kRendezvousVersion) return;
  fail(
      fmt::format("the host of the rendezvous runs another version of Terrace: its rendezvous has "
                  "version {}, this one has {}",
                  answer.version, kRendezvousVersion));
}

void RendezvousGuest::fail(const std::string& what) const {
  throw CommError(fmt::format("rank {}: {}", options_.rank, what),
                  "check that all ranks were started, and read what they printed; the address must "
                  "belong to a host of the job, and these ports must be open between its hosts");
}

}  // namespace terrace
