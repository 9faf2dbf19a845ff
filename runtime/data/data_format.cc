#include "runtime/data/data_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>

#include "base/error.h"
#include "runtime/data/token_files.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// llm.c's files begin with 256 int32.
constexpr std::uint64_t kLlmcHeaderBytes = 1024;
constexpr std::size_t kSniffBytes = 64 * 1024;

struct LlmcKind {
  std::int32_t magic;
  std::int32_t version;
  std::int64_t width;
};
constexpr std::array<LlmcKind, 2> kLlmcKinds = {{{20240520, 1, 2}, {20240801, 7, 4}}};

// Other files of the same makers, which a glob picks up easily.
constexpr std::array<std::pair<std::int32_t, const char*>, 4> kLlmcOthers = {{
    {20240522, "an evaluation set"},
    {20240326, "a model"},
    {20240527, "a training state"},
    {20240328, "a tokenizer"},
}};

constexpr std::array<std::pair<std::string_view, DataFormat>, 5> kFormats = {{
    {"auto", DataFormat::kAuto},
    {"text", DataFormat::kText},
    {"llmc", DataFormat::kLlmc},
    {"raw-u16", DataFormat::kRawU16},
    {"raw-u32", DataFormat::kRawU32},
}};

constexpr const char* kNameFormat = "say what it holds: --data-format text, raw-u16 or raw-u32";

std::string read_front(const std::string& path, std::size_t limit) {
  std::string front(limit, '\0');
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw IoError({.operation = "open", .path = path, .error_number = errno});
  stream.read(front.data(), static_cast<std::streamsize>(limit));
  if (stream.bad()) throw IoError({.operation = "read", .path = path, .error_number = errno});
  front.resize(static_cast<std::size_t>(stream.gcount()));
  return front;
}

std::uint64_t size_of_file(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) throw IoError({.operation = "stat", .path = path, .error_number = error.value()});
  return size;
}

std::optional<std::int32_t> integer_at(std::string_view bytes, std::size_t index) {
  if (bytes.size() < 4 * (index + 1)) return std::nullopt;
  std::int32_t value = 0;
  std::memcpy(&value, bytes.data() + 4 * index, 4);
  return value;
}

bool is_llmc(std::string_view front) {
  const auto magic = integer_at(front, 0);
  return magic && std::any_of(kLlmcKinds.begin(), kLlmcKinds.end(),
                              [&](const LlmcKind& kind) { return kind.magic == *magic; });
}

DataFormat detect(const std::string& path) {
  const std::string front = read_front(path, kSniffBytes);
  if (is_llmc(front)) return DataFormat::kLlmc;
  const auto magic = integer_at(front, 0);
  for (const auto& [number, what] : kLlmcOthers) {
    if (magic == number) {
      throw ConfigError(fmt::format("{}: this llm.c file is {}, not tokens", path, what),
                        "leave it out of --data");
    }
  }
  if (front.starts_with("MMIDIDX")) {
    throw ConfigError(fmt::format("{}: a Megatron index, which is not built yet", path),
                      "convert the data to llm.c's .bin or to text");
  }
  if (path.ends_with(".jsonl")) {
    throw ConfigError(fmt::format("{}: jsonl is not built yet", path),
                      "convert it to text, or train on the bytes as they are: --data-format text");
  }
  if (path.ends_with(".bin") || path.ends_with(".idx")) {
    throw ConfigError(fmt::format("{}: holds tokens of a width it does not tell", path),
                      kNameFormat);
  }
  if (front.find('\0') != std::string::npos) {
    throw ConfigError(fmt::format("{}: holds zero bytes, so it is not text", path), kNameFormat);
  }
  return DataFormat::kText;
}

DataFormat detect_all(const std::vector<std::string>& files) {
  const DataFormat first = detect(files.front());
  for (const std::string& path : files) {
    const DataFormat format = detect(path);
    if (format != first) {
      throw ConfigError(fmt::format("{} is {}, and {} is {}: --data mixes formats", files.front(),
                                    name_of(first), path, name_of(format)),
                        "give files of one format, or name it with --data-format");
    }
  }
  return first;
}

TokenFile describe_llmc(const std::string& path) {
  const std::string front = read_front(path, kLlmcHeaderBytes);
  if (!is_llmc(front)) {
    throw ConfigError(
        fmt::format("{}: not an llm.c token file (its magic number is missing)", path),
        "choose another --data-format");
  }
  if (front.size() < kLlmcHeaderBytes) {
    throw CorruptData(fmt::format("{}: {} bytes, shorter than its header of {}", path, front.size(),
                                  kLlmcHeaderBytes),
                      "make the file again");
  }
  const auto kind = std::find_if(kLlmcKinds.begin(), kLlmcKinds.end(), [&](const LlmcKind& one) {
    return one.magic == *integer_at(front, 0);
  });
  const std::int32_t version = *integer_at(front, 1);
  if (version != kind->version) {
    throw ConfigError(fmt::format("{}: version {} of this llm.c format; {} is known", path, version,
                                  kind->version),
                      "make the file again with the present llm.c");
  }
  const std::int64_t tokens = *integer_at(front, 2);
  const std::uint64_t size = size_of_file(path);
  if (tokens < 0 || size != kLlmcHeaderBytes + static_cast<std::uint64_t>(tokens * kind->width)) {
    throw CorruptData(fmt::format("{}: its header tells {} tokens of {} bytes, and it has {} bytes",
                                  path, tokens, kind->width, size),
                      "make the file again");
  }
  return {.path = path, .first_byte = kLlmcHeaderBytes, .width = kind->width, .tokens = tokens};
}

TokenFile describe_raw(const std::string& path, std::int64_t width) {
  const std::uint64_t size = size_of_file(path);
  if (size % static_cast<std::uint64_t>(width) != 0) {
    throw CorruptData(
        fmt::format("{}: {} bytes are not whole tokens of {} bytes", path, size, width),
        "check --data-format, or make the file again");
  }
  if (is_llmc(read_front(path, 4))) {
    throw ConfigError(fmt::format("{}: an llm.c file, which has a header", path),
                      "use --data-format llmc");
  }
  return {.path = path, .width = width, .tokens = static_cast<std::int64_t>(size) / width};
}

TokenFile describe(const std::string& path, DataFormat format) {
  switch (format) {
    case DataFormat::kLlmc:
      return describe_llmc(path);
    case DataFormat::kRawU16:
      return describe_raw(path, 2);
    case DataFormat::kRawU32:
      return describe_raw(path, 4);
    case DataFormat::kText:
    case DataFormat::kAuto:
      break;
  }
  return {.path = path, .width = 1, .tokens = static_cast<std::int64_t>(size_of_file(path))};
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::vector<std::string> list_directory(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  std::string last = directory;  // looked at
  fs::recursive_directory_iterator entry(directory, error);
  const fs::recursive_directory_iterator end;
  for (; !error && entry != end; entry.increment(error)) {
    last = entry->path().string();
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (std::error_code unreadable; entry->is_regular_file(unreadable)) {
      files.push_back(entry->path().string());
    }
  }
  if (error) {
    throw IoError({.operation = "list", .path = last, .error_number = error.value()});
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

DataFormat parse_data_format(std::string_view text) {
  for (const auto& [name, format] : kFormats) {
    if (name == text) return format;
  }
  if (text == "megatron" || text == "jsonl") {
    throw ConfigError(fmt::format("--data-format {} is not built yet", text),
                      "convert the data to llm.c's .bin or to text");
  }
  throw ConfigError(fmt::format("--data-format {}: unknown", text),
                    "choose auto, text, llmc, raw-u16 or raw-u32");
}

std::string_view name_of(DataFormat format) {
  for (const auto& [name, known] : kFormats) {
    if (known == format) return name;
  }
  return "";
}

std::vector<std::string> list_data_files(const std::vector<std::string>& paths,
                                         std::string_view flag) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status)) {
      const std::vector<std::string> found = list_directory(path);
      if (found.empty()) {
        throw ConfigError(fmt::format("{} {}: no files in this directory", flag, path),
                          "hidden files are left out; name them to use them");
      }
      files.insert(files.end(), found.begin(), found.end());
    } else if (fs::is_regular_file(status)) {
      files.push_back(path);
    } else if (fs::exists(status)) {
      throw ConfigError(fmt::format("{} {}: neither a file nor a directory", flag, path),
                        "copy the data to a file");
    } else {
      throw ConfigError(fmt::format("{} {}: {}", flag, path, error ? error.message() : "not found"),
                        "check the path");
    }
  }
  if (files.empty()) throw ConfigError(fmt::format("{} names no files", flag), "name at least one");
  return files;
}

std::unique_ptr<TokenSource> open_token_source(const std::vector<std::string>& paths,
                                               DataFormat format, std::int64_t vocabulary,
                                               std::string_view flag) {
  const std::vector<std::string> files = list_data_files(paths, flag);
  if (format == DataFormat::kAuto) format = detect_all(files);
  if (format == DataFormat::kText && vocabulary < 256) {
    throw ConfigError(
        fmt::format("text has ids 0 to 255, and the model's vocabulary is {}", vocabulary),
        "choose a model with a vocabulary of 256 or more");
  }
  std::vector<TokenFile> described;
  described.reserve(files.size());
  for (const std::string& path : files) described.push_back(describe(path, format));
  return std::make_unique<TokenFiles>(std::move(described), vocabulary);
}

}  // namespace terrace
