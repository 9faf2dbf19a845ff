#include "tests/runtime/train/event_records.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string_view>

namespace terrace {
namespace {

// Computes the CRC-32C bit by bit, as RFC 3720 defines it.
std::uint32_t slow_crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1U) != 0 ? (crc >> 1U) ^ 0x82f63b78U : crc >> 1U;
  }
  return crc ^ 0xffffffffU;
}

std::uint32_t masked(std::string_view bytes) {
  const std::uint32_t crc = slow_crc32c(bytes);
  return ((crc >> 15U) | (crc << 17U)) + 0xa282ead8U;
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  bool is_done() const { return bytes_.empty(); }

  std::string_view take(std::size_t count) {
    if (count > bytes_.size()) throw std::runtime_error("the bytes end too early");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  template <typename Number>
  Number fixed() {
    static_assert(std::endian::native == std::endian::little);
    Number number{};
    std::memcpy(&number, take(sizeof(number)).data(), sizeof(number));
    return number;
  }

  std::uint64_t varint() {
    std::uint64_t number = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      number |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
      if ((byte & 0x80U) == 0) return number;
    }
    throw std::runtime_error("a number does not end");
  }

  std::string_view bytes_with_length() { return take(varint()); }

 private:
  std::string_view bytes_;
};

[[noreturn]] void refuse_key(std::uint64_t key) {
  throw std::runtime_error("unexpected key " + std::to_string(key));
}

void read_value(std::string_view bytes, ReadEvent& event) {
  Reader value(bytes);
  std::string tag;
  while (!value.is_done()) {
    const std::uint64_t key = value.varint();
    if (key == 0x0a) {
      tag = value.bytes_with_length();
    } else if (key == 0x15) {
      event.scalars[tag] = value.fixed<float>();
    } else {
      refuse_key(key);
    }
  }
}

ReadEvent event_in(std::string_view bytes) {
  ReadEvent event;
  Reader fields(bytes);
  while (!fields.is_done()) {
    const std::uint64_t key = fields.varint();
    if (key == 0x09) {
      event.time_s = fields.fixed<double>();
    } else if (key == 0x10) {
      event.step = static_cast<std::int64_t>(fields.varint());
    } else if (key == 0x1a) {
      event.file_version = fields.bytes_with_length();
    } else if (key == 0x2a) {
      Reader summary(fields.bytes_with_length());
      while (!summary.is_done()) {
        if (summary.varint() != 0x0a) throw std::runtime_error("no value in a summary");
        read_value(summary.bytes_with_length(), event);
      }
    } else if (key == 0x3a) {
      Reader session(fields.bytes_with_length());
      if (session.varint() != 0x08) throw std::runtime_error("no status in a session");
      event.session_status = static_cast<std::int64_t>(session.varint());
    } else {
      refuse_key(key);
    }
  }
  return event;
}

}  // namespace

std::vector<ReadEvent> read_events(const std::string& bytes) {
  std::vector<ReadEvent> events;
  Reader file(bytes);
  while (!file.is_done()) {
    const std::string_view length = file.take(8);
    const auto length_crc = file.fixed<std::uint32_t>();
    if (length_crc != masked(length)) throw std::runtime_error("a length's checksum differs");
    const std::string_view data = file.take(Reader(length).fixed<std::uint64_t>());
    const auto data_crc = file.fixed<std::uint32_t>();
    if (data_crc != masked(data)) throw std::runtime_error("a record's checksum differs");
    events.push_back(event_in(data));
  }
  return events;
}

}  // namespace terrace
