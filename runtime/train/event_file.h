#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// A number of a step, by the name that TensorBoard shows it under.
struct Scalar {
  std::string name;
  double value = 0;
};

// CRC-32C (Castagnoli, RFC 3720), which records of such files have.
std::uint32_t crc32c(std::string_view bytes);

// A file of scalars that TensorBoard reads: events.out.tfevents.<seconds since 1970>.<host>. It is
// a sequence of records, each a length, the data and masked checksums of both
// (tensorflow/core/lib/io/record_writer.h), and the data is an Event, a protocol buffer
// (tensorflow/core/util/event.proto and framework/summary.proto), of which few fields are needed.
class EventFile {
 public:
  // Begins a file in the directory, later by its name than those that are there. `first_step`: the
  // events of that step and later ones in earlier files count no more. Throws IoError.
  EventFile(const std::string& directory, std::int64_t first_step, double time_s);

  // Adds the scalars of a step; `time_s`: since 1970. What was added is in the file. Throws
  // IoError.
  void add(std::int64_t step, double time_s, std::span<const Scalar> scalars);

 private:
  void write_record(const std::string& data);

  std::string path_;
  std::ofstream stream_;
};

}  // namespace terrace
