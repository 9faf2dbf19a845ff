#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace terrace {

// Reads the documents of a JSON file, one after the other, each as JSON text.
class JsonTexts {
 public:
  virtual ~JsonTexts() = default;

  // Returns the next document, without an end of a line in it; none at the end of the file. It is
  // valid until the next call. Throws IoError, and CorruptData if the file is damaged.
  virtual std::optional<std::string_view> next() = 0;
  // Returns the number of bytes of the file that have been read so far.
  virtual std::uint64_t file_bytes() const = 0;
};

// The parts of a file of JSON.
enum class JsonLayout : std::uint8_t {
  kLines,   // each line is an object; lines may be blank
  kArray,   // one array of objects, on any number of lines
  kObject,  // one object on several lines
  kOther,
};

// Returns the layout of a text that begins with `front`: the whole text, or 64 KiB or more of it.
JsonLayout json_layout(std::string_view front);

// Opens a file, which may be compressed: JSON lines, or an array. Throws IoError, CorruptData.
std::unique_ptr<JsonTexts> open_json_texts(const std::string& path, JsonLayout layout);

// Returns the layout of a file, which may be compressed. Throws IoError, CorruptData.
JsonLayout json_layout_of_file(const std::string& path);

// Returns where a document stands, for messages: "FILE:LINE", or "FILE: object N". Counts from 1.
std::string json_place(const std::string& path, JsonLayout layout, std::uint64_t number);

}  // namespace terrace
