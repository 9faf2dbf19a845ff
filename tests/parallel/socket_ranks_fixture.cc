#include "tests/parallel/socket_ranks_fixture.h"

#include <thread>

#include "base/error.h"
#include "tests/parallel/rendezvous_fixture.h"

namespace terrace {

SocketSetting socket_setting_of(int ranks, int ranks_per_host) {
  return {.meeting = rendezvous_of(ranks), .ranks_per_host = ranks_per_host};
}

SocketSetting as_rank(SocketSetting setting, int rank) {
  setting.meeting = as_rank(setting.meeting, rank);
  return setting;
}

std::vector<std::string> run_sessions(const SocketSetting& setting, const std::vector<int>& ranks,
                                      const std::function<void(SocketSession&)>& body) {
  std::vector<std::string> errors(ranks.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        SocketSession session(as_rank(setting, ranks[i]));
        body(session);
      } catch (const Error& error) {
        errors[i] = error.what();
      }
    });
  }
  threads.clear();
  return errors;
}

}  // namespace terrace
