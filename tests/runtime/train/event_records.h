#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// Reads what EventFile writes, with nothing of its code.
namespace terrace {

struct ReadEvent {
  double time_s = 0;
  std::int64_t step = 0;
  std::string file_version;
  std::int64_t session_status = 0;  // 0: the event is of no session
  std::map<std::string, float> scalars;
};

// The events of a file's bytes. Throws std::runtime_error where a checksum, a length or a field is
// not what the format asks for.
std::vector<ReadEvent> read_events(const std::string& bytes);

}  // namespace terrace
