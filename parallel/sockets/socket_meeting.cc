#include "parallel/sockets/socket_meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

// The longest time between two looks at everything, and the pause before a rank is called again.
constexpr auto kLook = std::chrono::milliseconds(2);
constexpr auto kCallPause = std::chrono::milliseconds(50);

// Calls one rank until it answers.
class PersistentCall {
 public:
  PersistentCall(GateAddress address, const GateHello& hello)
      : address_(std::move(address)), hello_(hello) {}

  // Returns the connection once there is one.
  TcpSocket go_on() {
    if (!call_) {
      if (Clock::now() < again_at_) return {};
      call_.emplace(address_, hello_);
    }
    const GateCall::State state = call_->go_on();
    if (state == GateCall::State::kWaits) return {};
    TcpSocket socket = state == GateCall::State::kAnswered ? call_->take() : TcpSocket();
    call_.reset();
    again_at_ = Clock::now() + kCallPause;
    return socket;
  }
  void add_waits(std::vector<TcpWait>& waits) const {
    if (call_) waits.push_back(call_->wait());
  }

 private:
  const GateAddress address_;
  const GateHello hello_;
  std::optional<GateCall> call_;
  TcpDeadline again_at_;
};

}  // namespace

std::vector<TcpSocket> SocketMeeting::connect(std::span<const int> members) const {
  std::vector<TcpSocket> sockets(members.size());
  std::vector<std::optional<PersistentCall>> calls(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] >= rank) continue;
    calls[i].emplace(addresses.address_of(members[i]),
                     GateHello{.from = rank, .to = members[i], .world = world, .group = group});
  }
  const auto is_missing = [&](std::size_t i) {
    return members[i] != rank && !sockets[i].is_open();
  };
  for (;;) {
    std::vector<TcpWait> waits;
    std::vector<std::string> missing;
    gate.look();
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!is_missing(i)) continue;
      sockets[i] = calls[i] ? calls[i]->go_on() : gate.take(group, members[i]);
      if (!is_missing(i)) continue;
      if (calls[i]) calls[i]->add_waits(waits);
      missing.push_back(calls[i] ? fmt::format("rank {} does not answer at {}", members[i],
                                               text_of(addresses.address_of(members[i])))
                                 : fmt::format("rank {} has not connected", members[i]));
    }
    if (missing.empty()) return sockets;
    check();
    if (Clock::now() > deadline) fail_to_connect(missing);
    gate.add_waits(waits);
    wait_for_any(waits, Clock::now() + kLook);
  }
}

TcpSocket call_one_of(std::span<const GateAddress> addresses, const GateHello& hello,
                      TcpDeadline deadline, std::size_t& at) {
  std::vector<GateCall> calls;
  for (const GateAddress& address : addresses) calls.emplace_back(address, hello);
  for (;;) {
    std::vector<TcpWait> waits;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const GateCall::State state = calls[i].go_on();
      if (state == GateCall::State::kAnswered) {
        at = i;
        return calls[i].take();
      }
      if (state == GateCall::State::kWaits) waits.push_back(calls[i].wait());
    }
    if (waits.empty() || Clock::now() > deadline) return {};
    wait_for_any(waits, std::min(deadline, Clock::now() + kCallPause));
  }
}

void fail_to_connect(std::span<const std::string> where) {
  throw CommError(fmt::format("ranks cannot connect to each other: {}", fmt::join(where, "; ")),
                  "TCP connections must be allowed between the machines of the job, on all ports "
                  "from 1024 on; MASTER_ADDR must be an address that all of them can reach");
}

}  // namespace terrace
