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
#include "base/lfs_pointer.h"
#include "runtime/data/file_signature.h"
#include "runtime/data/id_check.h"
#include "runtime/data/megatron_index.h"
#include "runtime/data/readable_file.h"
#include "runtime/data/run_directories.h"
#include "runtime/data/token_files.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// llm.c's files begin with 256 int32.
constexpr std::uint64_t kLlmcHeaderBytes = 1024;
constexpr std::size_t kSniffBytes = 64 * 1024;
constexpr std::size_t kSignatureBytes = 512;

struct LlmcKind {
  std::int32_t magic;
  std::int32_t version;
  std::int64_t width;
  const char* ids;
};
constexpr std::array<LlmcKind, 2> kLlmcKinds = {
    {{20240520, 1, 2, "GPT-2 tokens (llm.c, 16 bits)"},
     {20240801, 7, 4, "Llama 3 tokens (llm.c, 32 bits)"}}};
constexpr const char* kBytesOfText = "bytes of text";

// Other files of the same makers, which a glob picks up easily.
constexpr std::array<std::pair<std::int32_t, const char*>, 4> kLlmcOthers = {{
    {20240522, "an evaluation set"},
    {20240326, "a model"},
    {20240527, "a training state"},
    {20240328, "a tokenizer"},
}};

constexpr std::array<std::pair<std::string_view, DataFormat>, 7> kFormats = {{
    {"auto", DataFormat::kAuto},
    {"text", DataFormat::kText},
    {"llmc", DataFormat::kLlmc},
    {"raw-u16", DataFormat::kRawU16},
    {"raw-u32", DataFormat::kRawU32},
    {"jsonl", DataFormat::kJsonl},
    {"megatron", DataFormat::kMegatron},
}};

// Returns whether a file belongs to another one, so that it tells no format.
bool is_companion(const std::string& path) {
  std::error_code ignored;
  for (const std::string_view ending : {".idx", ".mask"}) {
    if (path.ends_with(ending) &&
        fs::is_regular_file(path.substr(0, path.size() - ending.size()), ignored)) {
      return true;
    }
  }
  return path.ends_with(".idx") && has_megatron_index(megatron_ids_path(path));
}

std::vector<std::string> files_that_tell(const std::vector<std::string>& paths, DataUse use) {
  std::vector<std::string> files = list_data_files(paths, use);
  const auto more_than_one = [&] { return files.size() > 1; };
  if (more_than_one()) std::erase_if(files, is_companion);
  return files;
}

constexpr const char* kNameFormat = "say what it holds: --data-format text, raw-u16 or raw-u32";

// Reads as many bytes as there are, up to the limit.
std::string read_range(const std::string& path, std::uint64_t offset, std::size_t limit) {
  std::string front(limit, '\0');
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw IoError({.operation = "open", .path = path, .error_number = errno});
  stream.seekg(static_cast<std::streamoff>(offset));
  stream.read(front.data(), static_cast<std::streamsize>(limit));
  if (stream.bad()) throw IoError({.operation = "read", .path = path, .error_number = errno});
  front.resize(static_cast<std::size_t>(stream.gcount()));
  return front;
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

// Refuses files that llm.c's makers write besides token files.
void refuse_other_llmc(const std::string& path, std::string_view front) {
  const auto magic = integer_at(front, 0);
  for (const auto& [number, what] : kLlmcOthers) {
    if (magic == number) {
      throw ConfigError(fmt::format("{}: this llm.c file is {}, not tokens", path, what),
                        "leave it out of --data");
    }
  }
}

// Returns the format of ids that have the ends of their documents beside them: the one that gives
// the number of ids that the last end tells.
std::optional<DataFormat> detect_by_ends(const std::string& path) {
  const std::string index = path + ".idx";
  std::error_code ignored;
  if (!fs::is_regular_file(index, ignored)) return std::nullopt;
  const std::uint64_t index_bytes = size_of_file(index);
  if (index_bytes < sizeof(std::uint64_t)) return std::nullopt;
  const std::string last =
      read_range(index, index_bytes - sizeof(std::uint64_t), sizeof(std::uint64_t));
  std::uint64_t tokens = 0;
  std::memcpy(&tokens, last.data(), std::min(last.size(), sizeof(tokens)));
  const std::uint64_t size = size_of_file(path);
  if (tokens == 0 || size % tokens != 0) return std::nullopt;
  if (size / tokens == 2) return DataFormat::kRawU16;
  return size / tokens == 4 ? std::optional(DataFormat::kRawU32) : std::nullopt;
}

// Refuses files of text that hold something else: tables, and lines of JSON with a name that does
// not say so.
void refuse_misnamed_text(const std::string& path, std::string_view front) {
  constexpr const char* kAsText = "give --data-format text to train on its characters as they are";
  for (const std::string_view ending : {".csv", ".tsv"}) {
    if (!path.ends_with(ending)) continue;
    throw ConfigError(fmt::format("{}: tables in {} files are not read", path, ending.substr(1)),
                      fmt::format("convert it to JSON lines, for example with Python's pandas: "
                                  "read_csv(...).to_json(\"data.jsonl\", orient=\"records\", "
                                  "lines=True); or {}",
                                  kAsText));
  }
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = front.find_first_not_of(kSpace);
  if (begin == std::string_view::npos || front[begin] != '{') return;
  const std::size_t key = front.find_first_not_of(kSpace, begin + 1);
  if (key == std::string_view::npos || front[key] != '"') return;
  throw ConfigError(
      fmt::format("{}: looks like JSON lines, but its name does not end in .jsonl", path),
      fmt::format("give --data-format jsonl, or {}", kAsText));
}

DataFormat detect(const std::string& path) {
  if (holds_json_documents(path)) return DataFormat::kJsonl;
  if (const auto format = detect_by_ends(path)) return *format;
  if (has_megatron_index(path)) return DataFormat::kMegatron;
  const std::string front = read_range(path, 0, kSniffBytes);
  if (is_llmc(front)) return DataFormat::kLlmc;
  refuse_other_llmc(path, front);
  const std::uint64_t size = size_of_file(path);
  const char last = size > 0 ? read_range(path, size - 1, 1).front() : '\0';
  if (const auto signature = find_signature(path, front, last, size); signature.has_value()) {
    throw ConfigError(fmt::format("{}: {}, neither text nor tokens", path, signature->what),
                      signature->remedy);
  }
  if (path.ends_with(".bin") || path.ends_with(".idx")) {
    throw ConfigError(fmt::format("{}: holds tokens, but does not say how wide they are", path),
                      kNameFormat);
  }
  if (front.find('\0') != std::string::npos) {
    throw ConfigError(fmt::format("{}: contains zero bytes, so it is not text", path), kNameFormat);
  }
  refuse_misnamed_text(path, front);
  return DataFormat::kText;
}

DataFormat detect_all(const std::vector<std::string>& files) {
  const DataFormat first = detect(files.front());
  for (const std::string& path : files) {
    const DataFormat format = detect(path);
    if (format != first) {
      throw ConfigError(fmt::format("{} is {}, but {} is {}: --data mixes formats", files.front(),
                                    name_of(first), path, name_of(format)),
                        "give files of only one format, or name it with --data-format");
    }
  }
  return first;
}

TokenFile describe_llmc(const std::string& path) {
  const std::string front = read_range(path, 0, kLlmcHeaderBytes);
  if (!is_llmc(front)) {
    throw ConfigError(
        fmt::format("{}: not an llm.c token file (its magic number is missing)", path),
        "choose another --data-format");
  }
  if (front.size() < kLlmcHeaderBytes) {
    throw CorruptData(fmt::format("{}: has {} bytes, fewer than its header of {}", path,
                                  front.size(), kLlmcHeaderBytes),
                      "make the file again");
  }
  const auto kind = std::find_if(kLlmcKinds.begin(), kLlmcKinds.end(), [&](const LlmcKind& one) {
    return one.magic == *integer_at(front, 0);
  });
  const std::int32_t version = *integer_at(front, 1);
  if (version != kind->version) {
    throw ConfigError(fmt::format("{}: has version {} of this llm.c format; only {} is supported",
                                  path, version, kind->version),
                      "create the file again with a current llm.c");
  }
  const std::int64_t tokens = *integer_at(front, 2);
  const std::uint64_t size = size_of_file(path);
  if (tokens < 0 || size != kLlmcHeaderBytes + static_cast<std::uint64_t>(tokens * kind->width)) {
    throw CorruptData(fmt::format("{}: its header promises {} tokens of {} bytes, but the file has "
                                  "{} bytes",
                                  path, tokens, kind->width, size),
                      "make the file again");
  }
  return {.path = path,
          .first_byte = kLlmcHeaderBytes,
          .width = kind->width,
          .tokens = tokens,
          .kind_of_ids = kind->ids};
}

// Refuses a file that tells that it is something else.
void check_signature(const std::string& path, std::string_view front, std::uint64_t size) {
  const char last = size > 0 ? read_range(path, size - 1, 1).front() : '\0';
  const std::optional<FileSignature> signature = find_signature(path, front, last, size);
  if (!signature) return;
  throw ConfigError(fmt::format("{}: {}, not bare token ids", path, signature->what),
                    signature->remedy);
}

// Checks the width of ids against Megatron's .idx, which tells the type of the ids in the .bin file
// beside it.
void check_megatron_width(const std::string& path, std::int64_t width) {
  constexpr std::size_t kTypeAt = 17;
  constexpr std::array<std::int64_t, 9> kWidths = {0, 1, 1, 2, 4, 8, 8, 4, 2};  // by type
  const fs::path index = fs::path(path).replace_extension(".idx");
  std::error_code ignored;
  if (!path.ends_with(".bin") || !fs::is_regular_file(index, ignored)) return;
  const std::string front = read_range(index.string(), 0, kTypeAt + 1);
  if (!front.starts_with("MMIDIDX") || front.size() <= kTypeAt) return;
  const auto type = static_cast<unsigned char>(front[kTypeAt]);
  if (type >= kWidths.size() || kWidths.at(type) == width) return;
  throw ConfigError(fmt::format("{}: its ids have {} bytes according to {}, but --data-format says "
                                "{}",
                                path, kWidths.at(type), index.filename().string(), width),
                    "use --data-format raw-u16 for 2 bytes, raw-u32 for 4");
}

// Adds FILE.idx and FILE.mask, where they are there.
void add_companions(TokenFile& file) {
  std::error_code ignored;
  const std::string index = file.path + ".idx";
  if (fs::is_regular_file(index, ignored)) file.documents = open_ends(index, file.tokens);
  const std::string mask = file.path + ".mask";
  if (!fs::is_regular_file(mask, ignored)) return;
  const std::uint64_t size = size_of_file(mask);
  if (size != static_cast<std::uint64_t>(file.tokens)) {
    throw CorruptData(fmt::format("{}: has {} bytes, but needs one for each of {} tokens", mask,
                                  size, file.tokens),
                      "create it again, together with the file of ids");
  }
  file.mask_path = mask;
}

TokenFile describe_raw(const std::string& path, std::int64_t width) {
  const std::uint64_t size = size_of_file(path);
  const std::string front = read_range(path, 0, kSignatureBytes);
  check_signature(path, front, size);
  if (size % static_cast<std::uint64_t>(width) != 0) {
    throw CorruptData(fmt::format("{}: its {} bytes are not a whole number of tokens of {} bytes",
                                  path, size, width),
                      "check --data-format, or make the file again");
  }
  if (is_llmc(front)) {
    throw ConfigError(fmt::format("{}: an llm.c file, which has a header", path),
                      "use --data-format llmc");
  }
  refuse_other_llmc(path, front);
  check_megatron_width(path, width);
  TokenFile file = {
      .path = path, .width = width, .tokens = static_cast<std::int64_t>(size) / width};
  add_companions(file);
  return file;
}

TokenFile describe(const std::string& path, DataFormat format) {
  switch (format) {
    case DataFormat::kLlmc:
      return describe_llmc(path);
    case DataFormat::kRawU16:
      return describe_raw(path, 2);
    case DataFormat::kRawU32:
      return describe_raw(path, 4);
    case DataFormat::kMegatron:
      return open_megatron(path);
    case DataFormat::kText:
    case DataFormat::kAuto:
    case DataFormat::kJsonl:
      break;
  }
  return {.path = path,
          .width = 1,
          .tokens = static_cast<std::int64_t>(size_of_file(path)),
          .kind_of_ids = kBytesOfText,
          .documents = {.kind = DocumentIndex::Kind::kWhole, .path = {}}};
}

std::vector<TokenFile> describe_all(const std::vector<std::string>& files, DataFormat format) {
  std::vector<TokenFile> described;
  described.reserve(files.size());
  for (const std::string& path : files) {
    refuse_lfs_pointer(read_range(path, 0, kLfsPointerBegin.size()), path);
    described.push_back(describe(path, format));
  }
  return described;
}

// Adds a file of each kind that is not known yet.
void add_known_ids(const std::vector<TokenFile>& files, std::vector<KnownIds>& known) {
  for (const TokenFile& file : files) {
    const std::string kind = file.is_text ? kBytesOfText : file.kind_of_ids;
    if (kind.empty() || std::ranges::find(known, kind, &KnownIds::kind) != known.end()) continue;
    known.push_back({file.path, kind});
  }
  check_one_kind_of_ids(known);
}

// Opens token files. Checks the ids, and adds to `data` what is odd about them and which kind they
// are.
std::unique_ptr<TokenSource> open_tokens(const std::vector<std::string>& files,
                                         const DataRequest& request, OpenedData& data) {
  std::vector<TokenFile> described = describe_all(files, request.format);
  add_known_ids(described, data.known_ids);
  const std::string doubt = check_ids(described, request.vocabulary);
  if (!doubt.empty()) data.doubts.push_back(doubt);
  return std::make_unique<TokenFiles>(std::move(described), request.vocabulary);
}

std::unique_ptr<TokenSource> tokenize(const std::vector<std::string>& files,
                                      const DataRequest& request, OpenedData& data) {
  if (!request.tokenize) {
    throw ConfigError(
        fmt::format("terrace tokenize does not read {} files", name_of(request.format)),
        "give them to terrace train, which detects what they hold (--dry-run)");
  }
  const TokenFile file = request.tokenize(files, request.format);
  TokenFile named = file;
  named.path = files.front();
  add_known_ids({named}, data.known_ids);
  return std::make_unique<TokenFiles>(std::vector<TokenFile>{file}, request.vocabulary);
}

OpenedData open_text(const DataRequest& request) {
  OpenedData data;
  if (request.tokenizes_text) {
    data.tokens = tokenize(list_data_files(request.paths, request.use), request, data);
    return data;
  }
  if (request.vocabulary < 256) {
    throw ConfigError(fmt::format("text has ids 0 to 255, but the model's vocabulary is only {}",
                                  request.vocabulary),
                      "choose a model with a vocabulary of 256 or more");
  }
  std::vector<TokenFile> files =
      describe_all(list_data_files(request.paths, request.use), DataFormat::kText);
  add_known_ids(files, data.known_ids);
  data.tokens = std::make_unique<TokenFiles>(std::move(files), request.vocabulary);
  return data;
}

OpenedData open_jsonl(const DataRequest& request) {
  const TokenFileNames files = list_jsonl_files(request.paths, request.use);
  OpenedData data;
  data.left_out = files.left_out;
  data.tokens = tokenize(files.taken, request, data);
  if (files.validation.empty()) return data;
  data.validation_files = files.validation;
  data.validation = tokenize(files.validation, request, data);
  return data;
}

}  // namespace

void check_one_kind_of_ids(const std::vector<KnownIds>& known) {
  const auto other = std::ranges::find_if(
      known, [&](const KnownIds& one) { return one.kind != known.front().kind; });
  if (other == known.end()) return;
  const bool has_text = other->kind == kBytesOfText || known.front().kind == kBytesOfText;
  throw ConfigError(fmt::format("{} has {}, but {} has {}: the ids come from two tokenizers",
                                known.front().path, known.front().kind, other->path, other->kind),
                    has_text ? "name the tokenizer of the tokens with --tokenizer FILE; then it "
                               "tokenizes the text, too"
                             : "give only files of the model's tokenizer");
}

DataFormat parse_data_format(std::string_view text) {
  for (const auto& [name, format] : kFormats) {
    if (name == text) return format;
  }
  throw ConfigError(fmt::format("--data-format {}: unknown", text),
                    "choose auto, text, llmc, raw-u16, raw-u32, megatron or jsonl");
}

std::string_view name_of(DataFormat format) {
  for (const auto& [name, known] : kFormats) {
    if (known == format) return name;
  }
  return "";
}

namespace {

OpenedData open_token_files(DataRequest request) {
  const bool is_megatron = request.format == DataFormat::kMegatron;
  if (is_megatron) std::ranges::transform(request.paths, request.paths.begin(), megatron_ids_path);
  TokenFileNames files = list_token_files(request.paths, request.use);
  if (is_megatron) std::erase_if(files.left_out, is_companion);
  OpenedData data;
  data.tokens = open_tokens(files.taken, request, data);
  data.left_out = files.left_out;
  if (files.validation.empty()) return data;
  data.validation_files = files.validation;
  const std::vector<std::string> doubts = data.doubts;
  data.validation = open_tokens(files.validation, request, data);
  data.doubts = doubts;  // the same program wrote both, so both have the same ones
  return data;
}

}  // namespace

OpenedData open_data(const DataRequest& asked) {
  DataRequest request = asked;
  if (request.format == DataFormat::kAuto) {
    request.format = detect_all(files_that_tell(request.paths, request.use));
  }
  OpenedData data = request.format == DataFormat::kText    ? open_text(request)
                    : request.format == DataFormat::kJsonl ? open_jsonl(request)
                                                           : open_token_files(request);
  data.format = request.format;
  data.run_directories =
      describe_left_out(request.use == DataUse::kValidation ? "--validation-data" : "--data",
                        run_directories_below(request.paths));
  return data;
}

}  // namespace terrace
