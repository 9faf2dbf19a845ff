#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/file_system.h"

namespace terrace {

// The system's files. Derived classes do some calls in another way.
class ForwardingFiles : public FileSystem {
 public:
  Opened create(const std::string& path) override { return files_.create(path); }
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
};

}  // namespace terrace
