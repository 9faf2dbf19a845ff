#include "runtime/train/event_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "base/host_name.h"
#include "runtime/checkpoint/file_system.h"

namespace terrace {
namespace {

constexpr std::string_view kEventsPrefix = "events.out.tfevents.";

// Returns the CRC of each byte value, shifted through the reversed polynomial.
constexpr std::array<std::uint32_t, 256> make_crc_table() {
  constexpr std::uint32_t kReversedPolynomial = 0x82f63b78U;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? kReversedPolynomial : 0U);
    }
    table.at(byte) = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

// Returns a record's checksum: the CRC is rotated and offset, so that the data itself may contain
// checksums.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

template <typename Number>
std::string little_endian(Number number) {
  std::string bytes;
  for (std::size_t byte = 0; byte < sizeof(Number); ++byte) {
    bytes += static_cast<char>((number >> (8 * byte)) & 0xffU);
  }
  return bytes;
}

// The kinds of fields in protocol buffers. A field is a key of number and kind, then the value.
enum class WireKind : std::uint8_t { kVarint = 0, kEightBytes = 1, kBytes = 2, kFourBytes = 5 };

std::string varint(std::uint64_t number) {
  std::string bytes;
  for (; number >= 0x80U; number >>= 7U) bytes += static_cast<char>((number & 0x7fU) | 0x80U);
  return bytes + static_cast<char>(number);
}

std::string key_of_field(std::uint64_t number, WireKind kind) {
  return varint((number << 3U) | static_cast<std::uint64_t>(kind));
}

std::string integer_field(std::uint64_t number, std::int64_t value) {
  return key_of_field(number, WireKind::kVarint) + varint(static_cast<std::uint64_t>(value));
}

std::string double_field(std::uint64_t number, double value) {
  return key_of_field(number, WireKind::kEightBytes) +
         little_endian(std::bit_cast<std::uint64_t>(value));
}

std::string float_field(std::uint64_t number, float value) {
  return key_of_field(number, WireKind::kFourBytes) +
         little_endian(std::bit_cast<std::uint32_t>(value));
}

std::string bytes_field(std::uint64_t number, std::string_view bytes) {
  return key_of_field(number, WireKind::kBytes) + varint(bytes.size()) + std::string(bytes);
}

// Returns an Event: wall_time = 1, step = 2, then one of file_version = 3, summary = 5, session_log
// = 7.
std::string event_of(double time_s, std::int64_t step, const std::string& what) {
  return double_field(1, time_s) + integer_field(2, step) + what;
}

std::string file_version() { return bytes_field(3, "brain.Event:2"); }

// Returns a SessionLog: status = 1, where START is 1.
std::string session_start() { return bytes_field(7, integer_field(1, 1)); }

// Returns a Summary: value = 1, made of tag = 1 and simple_value = 2.
std::string summary_of(std::span<const Scalar> scalars) {
  std::string values;
  for (const Scalar& scalar : scalars) {
    values += bytes_field(
        1, bytes_field(1, scalar.name) + float_field(2, static_cast<float>(scalar.value)));
  }
  return bytes_field(5, values);
}

// Returns the seconds in the name of the latest event file in the directory; 0 where there is none.
std::int64_t latest_seconds(const std::string& directory) {
  std::int64_t latest = 0;
  for (const std::string& name : system_files().list(directory)) {
    if (!name.starts_with(kEventsPrefix)) continue;
    std::int64_t seconds = 0;
    std::from_chars(name.data() + kEventsPrefix.size(), name.data() + name.size(), seconds);
    latest = std::max(latest, seconds);
  }
  return latest;
}

std::string name_of_this_host() {
  const std::string name = host_name();
  return name.empty() ? "localhost" : name;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc = (crc >> 8U) ^ kCrcTable.at((crc ^ static_cast<unsigned char>(byte)) & 0xffU);
  }
  return ~crc;
}

EventFile::EventFile(const std::string& directory, std::int64_t first_step, double time_s) {
  // TensorBoard reads the files in the order of their names.
  const std::int64_t seconds =
      std::max(static_cast<std::int64_t>(time_s), latest_seconds(directory) + 1);
  path_ = (std::filesystem::path(directory) /
           fmt::format("{}{:010}.{}", kEventsPrefix, seconds, name_of_this_host()))
              .string();
  stream_.open(path_, std::ios::binary | std::ios::trunc);
  if (!stream_) throw IoError({.operation = "open", .path = path_, .error_number = errno});
  write_record(event_of(time_s, first_step, file_version()));
  write_record(event_of(time_s, first_step, session_start()));
}

void EventFile::add(std::int64_t step, double time_s, std::span<const Scalar> scalars) {
  write_record(event_of(time_s, step, summary_of(scalars)));
}

void EventFile::write_record(const std::string& data) {
  const std::string length = little_endian(static_cast<std::uint64_t>(data.size()));
  stream_ << length << little_endian(masked_crc(length)) << data << little_endian(masked_crc(data))
          << std::flush;
  if (stream_) return;
  throw IoError({.operation = "write", .path = path_, .error_number = errno},
                "free space in the run directory");
}

}  // namespace terrace
