#include "runtime/data/token_file_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file_lock.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "numbers in files are little-endian");

constexpr const char* kStateKind = "terrace-tokens-2";

// A file that is appended to.
class PartialFile {
 public:
  explicit PartialFile(std::string path) : path_(std::move(path)) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail("open", errno);
  }
  // Opens the file for this process alone, where the file system has locks. Throws IoError where
  // another process has it.
  struct Alone {};
  PartialFile(std::string path, Alone) : PartialFile(std::move(path)) {
    const FileLock lock = try_lock(descriptor_);
    if (lock.kind == FileLock::Kind::kHeldByOther) refuse_second();
    // Another process may have given the file its final name after it was opened here.
    if (!is_at_path()) refuse_second();
  }
  ~PartialFile() { ::close(descriptor_); }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // Keeps the first bytes, and continues after them.
  void truncate(std::uint64_t size_bytes) {
    if (::ftruncate(descriptor_, static_cast<off_t>(size_bytes)) != 0) fail("truncate", errno);
    if (::lseek(descriptor_, static_cast<off_t>(size_bytes), SEEK_SET) < 0) fail("seek", errno);
  }
  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("write", written < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  // Has the system begin to write what was appended, without waiting, so that sync() has little
  // left to wait for. On a file system that cannot do this, sync() writes it.
  void begin_writing_back() { ::sync_file_range(descriptor_, 0, 0, SYNC_FILE_RANGE_WRITE); }
  void sync() {
    if (::fdatasync(descriptor_) != 0) fail("sync", errno);
  }
  void rename(const std::string& name) {
    if (std::rename(path_.c_str(), name.c_str()) != 0) fail("rename", errno);
  }

 private:
  [[noreturn]] void fail(const char* operation, int error_number) const {
    throw IoError({.operation = operation, .path = path_, .error_number = error_number});
  }
  [[noreturn]] void refuse_second() const {
    throw IoError({.operation = "lock", .path = path_, .error_number = EWOULDBLOCK},
                  "another process is writing this file: wait until it has ended, or name another "
                  "file");
  }
  bool is_at_path() const {
    struct stat open = {};
    struct stat there = {};
    return ::fstat(descriptor_, &open) == 0 && ::stat(path_.c_str(), &there) == 0 &&
           open.st_dev == there.st_dev && open.st_ino == there.st_ino;
  }

  std::string path_;
  int descriptor_ = -1;
};

std::uint64_t size_or_none(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

std::string partial_path(const std::string& path) { return path + ".partial"; }
std::string index_path(const std::string& path) { return path + ".idx"; }
std::string mask_path(const std::string& path) { return path + ".mask"; }
std::string state_path(const std::string& path) { return path + ".state"; }
std::string new_state_path(const std::string& path) { return state_path(path) + ".new"; }

void remove_if_there(const std::string& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) throw IoError({.operation = "remove", .path = path, .error_number = error.value()});
}

}  // namespace

std::vector<std::string> token_file_names(const std::string& path) {
  return {path,
          index_path(path),
          mask_path(path),
          partial_path(path),
          partial_path(index_path(path)),
          partial_path(mask_path(path)),
          state_path(path),
          new_state_path(path)};
}

struct TokenFileWriter::Files {
  Files(const std::string& path, bool has_mask)
      : tokens(partial_path(path), PartialFile::Alone()), index(partial_path(index_path(path))) {
    if (has_mask) mask.emplace(partial_path(mask_path(path)));
  }
  void sync() {
    tokens.sync();
    index.sync();
    if (mask) mask->sync();
  }

  PartialFile tokens;
  PartialFile index;
  std::optional<PartialFile> mask;
};

TokenFileWriter::TokenFileWriter(Options options) : options_(std::move(options)) {
  // This comes first, so that no other process writes what is read here.
  files_ = std::make_unique<Files>(options_.path, options_.writes_mask);
  resumed_ = read_state();
  state_ = resumed_.value_or(TokenFileState{});
  files_->tokens.truncate(state_.tokens * static_cast<std::uint64_t>(options_.width));
  files_->index.truncate(state_.documents * sizeof(std::uint64_t));
  if (files_->mask) files_->mask->truncate(state_.tokens);
}

TokenFileWriter::~TokenFileWriter() = default;

// Returns nothing where there is no state, where it is of other ids, or where the files are shorter
// than it says.
std::optional<TokenFileState> TokenFileWriter::read_state() const {
  std::ifstream file(state_path(options_.path));
  std::string kind;
  std::uint64_t fingerprint = 0;
  TokenFileState state;
  bool has_said = false;
  std::uint64_t trained = 0;
  file >> kind >> fingerprint >> state.source.file >> state.source.offset >> state.tokens >>
      state.documents >> has_said >> trained;
  if (has_said) state.trained = trained;
  if (!file || kind != kStateKind || fingerprint != options_.fingerprint) return std::nullopt;
  const std::uint64_t tokens = size_or_none(partial_path(options_.path));
  const std::uint64_t documents = size_or_none(partial_path(index_path(options_.path)));
  if (tokens / static_cast<std::uint64_t>(options_.width) < state.tokens) return std::nullopt;
  if (documents / sizeof(std::uint64_t) < state.documents) return std::nullopt;
  const std::string mask = partial_path(mask_path(options_.path));
  if (options_.writes_mask && size_or_none(mask) < state.tokens) return std::nullopt;
  return state;
}

void TokenFileWriter::write_state() const {
  PartialFile file(new_state_path(options_.path));
  file.truncate(0);
  const std::string text =
      fmt::format("{} {} {} {} {} {} {:d} {}\n", kStateKind, options_.fingerprint,
                  state_.source.file, state_.source.offset, state_.tokens, state_.documents,
                  state_.trained.has_value(), state_.trained.value_or(0));
  file.append(std::as_bytes(std::span(text)));
  file.sync();
  file.rename(state_path(options_.path));
}

void TokenFileWriter::append(const DocumentIds& documents) {
  std::vector<std::uint64_t> ends;
  for (const std::size_t end : documents.ends) ends.push_back(state_.tokens + end);
  if (files_->mask) append_mask(documents);
  append_ids(documents.ids);
  files_->index.append(std::as_bytes(std::span(ends)));
  state_.documents += ends.size();
}

// Appends the mask of ids that are not appended yet.
void TokenFileWriter::append_mask(const DocumentIds& documents) {
  std::vector<std::uint8_t> mask = documents.mask;
  if (documents.has_mask && !state_.trained) state_.trained = state_.tokens;
  mask.resize(documents.ids.size(), 1);
  files_->mask->append(std::as_bytes(std::span(mask)));
  if (!state_.trained) return;
  *state_.trained += static_cast<std::uint64_t>(std::ranges::count(mask, std::uint8_t{1}));
}

void TokenFileWriter::append_ids(const std::vector<std::int32_t>& ids) {
  if (options_.width == 2) {
    narrow_ids_.assign(ids.begin(), ids.end());
    files_->tokens.append(std::as_bytes(std::span(narrow_ids_)));
  } else {
    files_->tokens.append(std::as_bytes(std::span(ids)));
  }
  files_->tokens.begin_writing_back();
  state_.tokens += ids.size();
}

void TokenFileWriter::save(const TextPosition& source) {
  state_.source = source;
  files_->sync();
  write_state();
}

void TokenFileWriter::finish() {
  files_->sync();
  const std::string mask = mask_path(options_.path);
  if (files_->mask && state_.trained) {
    files_->mask->rename(mask);
  } else {
    remove_if_there(mask);  // it belongs to the ids that were there before
    remove_if_there(partial_path(mask));
  }
  // The token file comes last: where it is there, everything is.
  files_->index.rename(index_path(options_.path));
  files_->tokens.rename(options_.path);
  std::error_code ignored;
  fs::remove(state_path(options_.path), ignored);
}

}  // namespace terrace
