#include "runtime/checkpoint/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class SystemFile final : public OpenFile {
 public:
  explicit SystemFile(int descriptor) : descriptor_(descriptor) {}
  ~SystemFile() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  SystemFile(const SystemFile&) = delete;
  SystemFile& operator=(const SystemFile&) = delete;

  std::int64_t append(std::span<const std::byte> bytes) override {
    go_past_cache(may_be_direct_ && is_of_whole_blocks(bytes));
    std::int64_t written = write(bytes);
    if (written == -EINVAL && is_direct_) {  // a device with larger blocks, or a file system
      may_be_direct_ = false;                // that refuses it now
      go_past_cache(false);
      written = write(bytes);
    }
    return written;
  }
  std::int64_t read_at(std::span<std::byte> out, std::uint64_t offset) override {
    return or_errno(::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset)));
  }
  std::int64_t size() override {
    struct stat facts = {};
    return ::fstat(descriptor_, &facts) == 0 ? static_cast<std::int64_t>(facts.st_size) : -errno;
  }
  int sync() override { return ::fsync(descriptor_) == 0 ? 0 : errno; }
  int close() override { return ::close(std::exchange(descriptor_, -1)) == 0 ? 0 : errno; }

 private:
  // Direct writes are for pieces of at least this size that are aligned to blocks in memory and in
  // the file.
  static constexpr std::size_t kDirectMinBytes = std::size_t{1} << 20;
  static constexpr std::size_t kBlockBytes = 4096;

  static std::int64_t or_errno(ssize_t result) { return result < 0 ? -errno : result; }

  std::int64_t write(std::span<const std::byte> bytes) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written > 0) appended_ += static_cast<std::uint64_t>(written);
    return or_errno(written);
  }
  bool is_of_whole_blocks(std::span<const std::byte> bytes) const {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    return bytes.size() >= kDirectMinBytes &&
           (bytes.size() | address | appended_) % kBlockBytes == 0;
  }
  // Makes writes bypass the page cache, or not: the cache costs a copy, and fills with pages that
  // are not read again.
  void go_past_cache(bool direct) {
    if (direct == is_direct_) return;
    const int flags = ::fcntl(descriptor_, F_GETFL);
    const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
    if (flags < 0 || ::fcntl(descriptor_, F_SETFL, wanted) != 0) {
      may_be_direct_ = false;
      return;
    }
    is_direct_ = direct;
  }

  int descriptor_;
  std::uint64_t appended_ = 0;
  bool may_be_direct_ = true;
  bool is_direct_ = false;
};

class SystemFiles final : public FileSystem {
 public:
  Opened create(const std::string& path) override {
    return opened(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  }
  Opened open(const std::string& path) override {
    // If the path is a pipe, neither an open without O_NONBLOCK nor a read would return.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat facts = {};
    if (descriptor < 0 || ::fstat(descriptor, &facts) != 0 || S_ISREG(facts.st_mode)) {
      return opened(descriptor);
    }
    ::close(descriptor);
    return {nullptr, S_ISDIR(facts.st_mode) ? EISDIR : EINVAL};
  }
  int make_directory(const std::string& path) override {
    return ::mkdir(path.c_str(), 0777) == 0 ? 0 : errno;
  }
  int rename(const std::string& from, const std::string& to) override {
    return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  }
  int remove(const std::string& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    return error.value();
  }
  int sync_directory(const std::string& path) override {
    const int directory = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return errno;
    const int error_number = ::fsync(directory) == 0 ? 0 : errno;
    ::close(directory);
    // Some file systems have nothing to sync in a directory and say EINVAL.
    return error_number == EINVAL ? 0 : error_number;
  }
  bool exists(const std::string& path) override {
    struct stat facts = {};
    if (::stat(path.c_str(), &facts) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    throw IoError({.operation = "stat", .path = path, .error_number = errno});
  }
  std::vector<std::string> list(const std::string& directory) override {
    std::vector<std::string> names;
    if (!exists(directory)) return names;
    std::error_code error;
    fs::directory_iterator entry(directory, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (!error) return names;
    throw IoError({.operation = "list", .path = directory, .error_number = error.value()});
  }
  std::optional<std::uint64_t> free_bytes(const std::string& directory) override {
    struct statvfs facts = {};
    const bool is_told = ::statvfs(directory.c_str(), &facts) == 0 && facts.f_blocks > 0;
    if (!is_told) return std::nullopt;
    return static_cast<std::uint64_t>(facts.f_bavail) * facts.f_frsize;
  }

 private:
  static Opened opened(int descriptor) {
    if (descriptor < 0) return {nullptr, errno};
    return {std::make_unique<SystemFile>(descriptor), 0};
  }
};

}  // namespace

FileSystem& system_files() {
  static SystemFiles files;
  return files;
}

void make_directories(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw IoError({.operation = "make", .path = path, .error_number = error.value()});
}

void remove_file(const std::string& path) {
  std::error_code error;
  fs::remove(path, error);
  if (!error) return;
  throw IoError({.operation = "remove", .path = path, .error_number = error.value()},
                "check whether the file or its directory is protected against changes, or write to "
                "another directory");
}

void read_fully(OpenFile& file, const std::string& path, std::uint64_t offset,
                std::span<std::byte> out) {
  while (!out.empty()) {
    const std::int64_t got = file.read_at(out, offset);
    if (got == -EINTR) continue;
    if (got <= 0) {
      throw IoError({.operation = "read",
                     .path = path,
                     .offset = offset,
                     .size = out.size(),
                     .error_number = static_cast<int>(-got)});
    }
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

std::string read_whole_file(FileSystem& disk, const std::string& path) {
  const FileSystem::Opened opened = disk.open(path);
  if (opened.file == nullptr) {
    throw IoError({.operation = "open", .path = path, .error_number = opened.error_number});
  }
  const std::int64_t size = opened.file->size();
  if (size < 0) {
    throw IoError({.operation = "stat", .path = path, .error_number = static_cast<int>(-size)});
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  read_fully(*opened.file, path, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace terrace
