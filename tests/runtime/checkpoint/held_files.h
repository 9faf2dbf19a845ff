#pragma once

#include <atomic>
#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/file_system.h"

namespace terrace {

// Files that are made only when release() was called.
class HeldFiles final : public FileSystem {
 public:
  void release() {
    is_released_ = true;
    is_released_.notify_all();
  }

  // From then on no file is made.
  void fail() { error_number_ = EIO; }

  Opened create(const std::string& path) override {
    is_released_.wait(false);
    if (error_number_ != 0) return {nullptr, error_number_};
    return files_.create(path);
  }
  Opened open(const std::string& path) override { return files_.open(path); }
  int make_directory(const std::string& path) override { return files_.make_directory(path); }
  int rename(const std::string& from, const std::string& to) override {
    return files_.rename(from, to);
  }
  int remove(const std::string& path) override { return files_.remove(path); }
  int sync_directory(const std::string& path) override { return files_.sync_directory(path); }
  bool exists(const std::string& path) override { return files_.exists(path); }
  std::vector<std::string> list(const std::string& directory) override {
    return files_.list(directory);
  }
  std::optional<std::uint64_t> free_bytes(const std::string& directory) override {
    return files_.free_bytes(directory);
  }

 private:
  FileSystem& files_ = system_files();
  std::atomic<bool> is_released_{false};
  std::atomic<int> error_number_{0};
};

}  // namespace terrace
