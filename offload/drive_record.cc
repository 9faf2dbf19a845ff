#include "offload/drive_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "base/hash.h"

namespace terrace {
namespace {

constexpr std::string_view kFirstLine = "terrace drive 1";
constexpr std::size_t kTextMax = 4096;

std::uint64_t hash_text(std::string_view text) {
  return hash_bytes(std::as_bytes(std::span(text)));
}

// Returns false if another process has held the lock for long.
bool lock_alone(int descriptor) {
  constexpr auto kPause = std::chrono::milliseconds(20);
  constexpr int kTries = 500;
  for (int i = 0; i < kTries; ++i) {
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK && errno != EINTR) return false;
    std::this_thread::sleep_for(kPause);
  }
  return false;
}

bool plausible(const DriveFacts& facts) {
  constexpr std::size_t kBlockMin = 64 * kKiB;
  constexpr std::size_t kBlockMax = 64 * kMiB;
  constexpr int kDepthMax = 1024;
  const auto is_rate = [](double value) { return std::isfinite(value) && value > 0; };
  return std::has_single_bit(facts.shape.block_bytes) && facts.shape.block_bytes >= kBlockMin &&
         facts.shape.block_bytes <= kBlockMax && facts.shape.depth >= 1 &&
         facts.shape.depth <= kDepthMax && is_rate(facts.read_gb_per_s) &&
         is_rate(facts.write_gb_per_s);
}

}  // namespace

DriveRecord::DriveRecord(const std::string& directory, std::string key, Use use)
    : key_(std::move(key)) {
  if (directory.empty()) return;
  path_ = fmt::format("{}/drive-{:016x}.txt", directory, hash_text(key_));
  if (use == Use::kRead) {
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    return;
  }
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  constexpr mode_t kMode = 0600;
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kMode);
  if (descriptor_ < 0 || lock_alone(descriptor_)) return;
  ::close(std::exchange(descriptor_, -1));
}

DriveRecord::~DriveRecord() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// Returns the lines of the file: its kind and version, the drive, the facts, and a checksum of the
// lines before.
std::string DriveRecord::text_of(const DriveFacts& facts) const {
  const std::string text =
      fmt::format("{}\n{}\n{} {} {} {}\n", kFirstLine, key_, facts.shape.block_bytes,
                  facts.shape.depth, facts.read_gb_per_s, facts.write_gb_per_s);
  return fmt::format("{}{:016x}\n", text, hash_text(text));
}

std::optional<DriveFacts> DriveRecord::facts() const {
  if (descriptor_ < 0) return std::nullopt;
  std::array<char, kTextMax> bytes = {};
  const ssize_t size = ::pread(descriptor_, bytes.data(), bytes.size(), 0);
  if (size <= 0) return std::nullopt;
  const std::string text(bytes.data(), static_cast<std::size_t>(size));
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  std::getline(lines, line);
  DriveFacts facts;
  lines >> facts.shape.block_bytes >> facts.shape.depth >> facts.read_gb_per_s >>
      facts.write_gb_per_s;
  // The file must have exactly the bytes that would be written for these facts. Otherwise it is not
  // ours.
  if (!lines || !plausible(facts) || text != text_of(facts)) return std::nullopt;
  return facts;
}

bool DriveRecord::keep(const DriveFacts& facts) {
  if (descriptor_ < 0) return false;
  const std::string text = text_of(facts);
  return ::ftruncate(descriptor_, 0) == 0 &&
         ::pwrite(descriptor_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

std::optional<DriveFacts> remembered_drive(const std::string& directory) {
  for (const char* const engine : {"io_uring", "posix"}) {
    const DriveRecord record(user_cache_directory(), drive_record_key(directory, engine),
                             DriveRecord::Use::kRead);
    if (const std::optional<DriveFacts> facts = record.facts()) return facts;
  }
  return std::nullopt;
}

std::string drive_record_key(const std::string& directory, std::string_view engine) {
  return fmt::format("{}, {}", drive_key(directory), engine);
}

std::string user_cache_directory() {
  const auto named = [](const char* variable) {
    const char* value = std::getenv(variable);
    return value != nullptr && value[0] == '/' ? std::string(value) : std::string();
  };
  const std::string cache = named("XDG_CACHE_HOME");
  if (!cache.empty()) return cache + "/terrace";
  const std::string home = named("HOME");
  return home.empty() ? home : home + "/.cache/terrace";
}

std::string device_of(const std::string& directory) {
  struct stat facts = {};
  if (::stat(directory.c_str(), &facts) != 0) return directory;
  const std::string number = fmt::format("{}:{}", major(facts.st_dev), minor(facts.st_dev));
  std::error_code none;
  const std::filesystem::path device = std::filesystem::canonical("/sys/dev/block/" + number, none);
  if (none) return number;
  const bool partition = std::filesystem::exists(device / "partition", none);
  return (partition ? device.parent_path() : device).filename().string();
}

std::string drive_key(const std::string& directory) {
  struct statfs facts = {};
  struct utsname system = {};
  if (::statfs(directory.c_str(), &facts) != 0 || ::uname(&system) != 0) return directory;
  return fmt::format(
      "{} fs {:x} {:x}:{:x} {} bytes, {}", device_of(directory), facts.f_type,
      facts.f_fsid.__val[0], facts.f_fsid.__val[1],
      static_cast<std::uint64_t>(facts.f_blocks) * static_cast<std::uint64_t>(facts.f_bsize),
      system.release);
}

}  // namespace terrace
