#include "runtime/data/file_signature.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/lfs_pointer.h"

namespace terrace {
namespace {

using namespace std::string_view_literals;

struct Magic {
  std::string_view bytes;
  std::size_t offset;
  const char* what;
  const char* remedy;
};

constexpr const char* kUnpack = "unpack it first";
constexpr const char* kToText =
    "write its text to a file for --data-format text, or its ids as bare integers";
constexpr const char* kNotData = "leave it out of --data";

// The bytes by which files of other kinds are known. They are long enough that ids do not begin so
// by chance.
constexpr auto kMagics = std::to_array<Magic>({
    {"MMIDIDX"sv, 0, "a Megatron index", "name the .bin file beside it, which contains the tokens"},
    {"TNTIDX"sv, 0, "a fairseq index", "name the .bin file beside it, which contains the tokens"},
    {"ARROW1\0\0"sv, 0, "an Arrow file", kToText},
    {"\x89HDF\r\n\x1a\n"sv, 0, "an HDF5 file", kToText},
    {"SQLite format 3\0"sv, 0, "an SQLite database", kToText},
    {"Obj\x01"sv, 0, "an Avro file", kToText},
    {"%PDF-"sv, 0, "a PDF", kToText},
    {"GGUF"sv, 0, "model weights (GGUF)", kNotData},
    {"\x7f"
     "ELF"sv,
     0, "a program", kNotData},
    {"1AY&SY"sv, 4, "packed by bzip2", kUnpack},
    {"\x28\xb5\x2f\xfd"sv, 0, "packed by zstd", kUnpack},
    {"\xfd"
     "7zXZ\0"sv,
     0, "packed by xz", kUnpack},
    {"\x04\x22\x4d\x18"sv, 0, "packed by lz4", kUnpack},
    {"7z\xbc\xaf\x27\x1c"sv, 0, "a 7z archive", kUnpack},
    {"ustar"sv, 257, "a tar archive", kUnpack},
    {kLfsPointerBegin, 0, kLfsPointerKind, kLfsPointerRemedy},
});

template <typename T>
T number_at(std::string_view bytes, std::size_t offset) {
  T value{};
  if (bytes.size() >= offset + sizeof(T)) std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

bool is_gzip(std::string_view front) {
  return front.size() > 10 && front.starts_with("\x1f\x8b\x08"sv) &&
         (static_cast<unsigned char>(front[3]) & 0xe0U) == 0;  // flags that are not defined yet
}

bool is_zip(std::string_view front) {
  return front.starts_with("PK\x03\x04"sv) && number_at<std::uint16_t>(front, 4) < 100;  // version
}

// A stream of Arrow, as datasets writes it: a marker, the length of the metadata, its bytes.
bool is_arrow_stream(std::string_view front, std::uint64_t size_bytes) {
  const auto length = number_at<std::uint32_t>(front, 4);
  return front.starts_with("\xff\xff\xff\xff"sv) && length > 0 && length % 8 == 0 &&
         length < size_bytes;
}

// Pickles of all protocols end with a dot. From the fourth protocol on, a frame tells its length.
bool is_pickle(std::string_view front, char last, std::uint64_t size_bytes) {
  if (front.size() < 4 || front[0] != '\x80' || last != '.') return false;
  const char protocol = front[1];
  if (protocol == '\x02' || protocol == '\x03')
    return "c}](lX\x8aqN"sv.find(front[2]) != std::string_view::npos;
  return (protocol == '\x04' || protocol == '\x05') && front[2] == '\x95' &&
         number_at<std::uint64_t>(front, 3) <= size_bytes;
}

bool is_safetensors(std::string_view front, std::uint64_t size_bytes) {
  const auto length = number_at<std::uint64_t>(front, 0);
  return front.size() > 9 && length > 2 && length < size_bytes && front.substr(8, 2) == "{\"";
}

}  // namespace

std::string conversion(const std::string& array, const std::string& path) {
  return fmt::format(
      "convert it with python3 -c \"import numpy as np; {}.astype('<u4').tofile('{}.u32')\", and "
      "train on that file with --data-format raw-u32",
      array, path);
}

std::optional<FileSignature> find_signature(const std::string& path, std::string_view front,
                                            char last, std::uint64_t size_bytes) {
  if (front.starts_with("\x93NUMPY"sv)) {
    return FileSignature{"a NumPy file (.npy), which has a header",
                         conversion(fmt::format("np.load('{}').ravel()", path), path)};
  }
  if (is_zip(front)) {
    return FileSignature{
        "a zip archive (.npz, .zip, .pt)",
        "unpack it; if it is an .npz, " +
            conversion(fmt::format("next(iter(np.load('{}').values())).ravel()", path), path)};
  }
  if (front.starts_with("PAR1"sv) && last == '1') {
    return FileSignature{"a Parquet file",
                         "convert its conversations or texts to JSON lines: python -m terrace.data "
                         "prepare (docs/conversations.md)"};
  }
  if (is_arrow_stream(front, size_bytes)) return FileSignature{"an Arrow stream", kToText};
  if (is_gzip(front)) return FileSignature{"packed by gzip", kUnpack};
  if (is_pickle(front, last, size_bytes)) {
    return FileSignature{"a Python pickle",
                         "load it with Python, and write its ids as bare integers"};
  }
  if (is_safetensors(front, size_bytes)) {
    return FileSignature{"model weights (safetensors)", kNotData};
  }
  for (const Magic& magic : kMagics) {
    if (front.substr(std::min(magic.offset, front.size())).starts_with(magic.bytes)) {
      return FileSignature{magic.what, magic.remedy};
    }
  }
  return std::nullopt;
}

}  // namespace terrace
