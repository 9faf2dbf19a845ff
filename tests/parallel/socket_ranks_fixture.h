#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "parallel/sockets/socket_session.h"

// Ranks of sessions over sockets, as threads of a test.
namespace terrace {

// Returns the setting of rank 0; the other ranks have its meeting with their own number.
SocketSetting socket_setting_of(int ranks, int ranks_per_host = 0);
SocketSetting as_rank(SocketSetting setting, int rank);

// Runs `body` on each rank at the same time, in a session of its own, and ends the session. Returns
// the ranks' error texts, empty where there was none.
std::vector<std::string> run_sessions(const SocketSetting& setting, const std::vector<int>& ranks,
                                      const std::function<void(SocketSession&)>& body);

}  // namespace terrace
