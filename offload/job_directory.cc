#include "offload/job_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file_lock.h"
#include "base/not_made.h"

namespace terrace {
namespace {

constexpr std::string_view kPrefix = "terrace-";
constexpr const char* kLockName = "lock";
constexpr const char* kSlotName = "slots.bin";

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

[[noreturn]] void refuse(const std::string& parent, int error_number) {
  throw_not_made({.what = "a directory for offloaded state in",
                  .path = parent,
                  .remedy = "name an existing directory that this user may write to, on the drive "
                            "for the offloaded state"},
                 error_number);
}

struct LockedParent {
  Descriptor descriptor;
  bool is_locked = true;
};

// Locks `parent`, so that sweeping and making are one step for all processes that use it, and no
// process removes a directory whose owner has not yet locked it. Where there are no locks, no
// process sweeps.
LockedParent lock_parent(const std::string& parent, Log& log) {
  Descriptor descriptor(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0) refuse(parent, errno);
  constexpr auto kPause = std::chrono::milliseconds(10);
  constexpr int kTries = 3000;
  for (int i = 0; i < kTries; ++i) {
    const FileLock lock = try_lock(descriptor.get());
    if (lock.kind == FileLock::Kind::kTaken) return {std::move(descriptor)};
    if (lock.kind == FileLock::Kind::kNotThere) {
      log.warning(
          fmt::format("{} cannot be locked: {}; if a run is killed while it starts, remove what it "
                      "leaves there (terrace-*) by hand",
                      parent, std::strerror(lock.error_number)));
      return {std::move(descriptor), false};
    }
    std::this_thread::sleep_for(kPause);
  }
  throw EnvironmentError(
      fmt::format("directory {}: another program has held its lock for 30 s", parent),
      "end that program, or name another directory");
}

// Returns whether the name is "terrace-<decimal>-<16 hexadecimal digits>", and nothing else.
bool is_job_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  const std::size_t dash = name.find('-');
  if (dash == 0 || dash == std::string_view::npos || name.size() != dash + 17) return false;
  return name.find_first_not_of("0123456789") == dash &&
         name.substr(dash + 1).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::vector<std::string> job_directories(const std::string& parent) {
  struct Close {
    void operator()(DIR* directory) const { ::closedir(directory); }
  };
  const std::unique_ptr<DIR, Close> directory(::opendir(parent.c_str()));
  std::vector<std::string> found;
  if (directory == nullptr) return found;
  while (const dirent* entry = ::readdir(directory.get())) {
    if (is_job_name(entry->d_name)) found.push_back(fmt::format("{}/{}", parent, entry->d_name));
  }
  std::sort(found.begin(), found.end());
  return found;
}

enum class Owner { kAlive, kDead };

// Finds out from the lock file whether the owner lives. A directory without a lock file was left
// between two steps of its making. One whose lock file cannot be opened belongs to another user and
// is left alone.
Owner owner_of(const std::string& path) {
  const std::string lock_path = fmt::format("{}/{}", path, kLockName);
  const Descriptor lock(::open(lock_path.c_str(), O_RDWR | O_CLOEXEC));
  if (lock.get() < 0) return errno == ENOENT ? Owner::kDead : Owner::kAlive;
  return try_lock(lock.get()).kind == FileLock::Kind::kTaken ? Owner::kDead : Owner::kAlive;
}

// Removes only the files that we make: a directory that holds anything else stays.
bool remove_job_directory(const std::string& path) noexcept {
  const int directory = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory < 0) return false;
  ::unlinkat(directory, kSlotName, 0);
  ::unlinkat(directory, kLockName, 0);
  ::close(directory);
  return ::rmdir(path.c_str()) == 0;
}

void sweep(const std::string& parent, Log& log) {
  for (const std::string& path : job_directories(parent)) {
    if (owner_of(path) == Owner::kAlive) continue;
    if (remove_job_directory(path)) {
      log.info(fmt::format("removed {}: the run that made it ended without removing it", path));
    } else {
      log.warning(fmt::format("cannot remove {}, whose run has ended: {}; remove it by hand", path,
                              std::strerror(errno)));
    }
  }
}

std::string new_name() {
  std::random_device device;
  const std::uint64_t number = (std::uint64_t{device()} << 32) | device();
  return fmt::format("{}{}-{:016x}", kPrefix, ::getpid(), number);
}

}  // namespace

JobDirectory::JobDirectory(const std::string& parent, Log& log) {
  const LockedParent locked = lock_parent(parent, log);
  if (locked.is_locked) sweep(parent, log);
  path_ = fmt::format("{}/{}", parent, new_name());
  if (::mkdir(path_.c_str(), 0700) != 0) refuse(parent, errno);
  const std::string lock_path = fmt::format("{}/{}", path_, kLockName);
  Descriptor lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (lock.get() < 0) {
    const int error_number = errno;
    remove_job_directory(path_);
    refuse(parent, error_number);
  }
  // The directory is new, so no other process has it. Where there are no locks, this call locks
  // nothing, and no process sweeps.
  try_lock(lock.get());
  lock_ = lock.release();
}

JobDirectory::~JobDirectory() { remove(); }

std::string JobDirectory::slot_file() const { return fmt::format("{}/{}", path_, kSlotName); }

void JobDirectory::remove() noexcept {
  if (lock_ < 0) return;
  remove_job_directory(path_);
  ::close(lock_);
  lock_ = -1;
}

}  // namespace terrace
