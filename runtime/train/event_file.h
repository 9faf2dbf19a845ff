#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// A number of a step, with the name that TensorBoard shows it under.
struct Scalar {
  std::string name;
  double value = 0;
};

// Returns the CRC-32C (Castagnoli, RFC 3720), which the records of event files have.
std::uint32_t crc32c(std::string_view bytes);

// A file of scalars that TensorBoard reads: events.out.tfevents.<seconds since 1970>.<host>. It is
// a sequence of records, each a length, the data and masked checksums of both
// (tensorflow/core/lib/io/record_writer.h), and the data is an Event, a protocol buffer
// (tensorflow/core/util/event.proto and framework/summary.proto). Only a few of its fields are
// needed.
class EventFile {
 public:
  // Begins a file in the directory, with a name that sorts after the event files already there.
  // `first_step`: events of that step and later ones in earlier files no longer count. Throws
  // IoError.
  EventFile(const std::string& directory, std::int64_t first_step, double time_s);

  // Adds the scalars of a step; `time_s`: since 1970. They are in the file when it returns. Throws
  // IoError.
  void add(std::int64_t step, double time_s, std::span<const Scalar> scalars);

 private:
  void write_record(const std::string& data);

  std::string path_;
  std::ofstream stream_;
};

}  // namespace terrace
