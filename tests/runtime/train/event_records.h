#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// A reader of the files that EventFile writes. It shares no code with EventFile.
namespace terrace {

struct ReadEvent {
  double time_s = 0;
  std::int64_t step = 0;
  std::string file_version;
  std::int64_t session_status = 0;  // 0: the event has no session
  std::map<std::string, float> scalars;
};

// Returns the events that a file contains, given its bytes. Throws std::runtime_error if a
// checksum, a length or a field is not as the format requires.
std::vector<ReadEvent> read_events(const std::string& bytes);

}  // namespace terrace
