#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/checkpoint/file_system.h"

namespace terrace {

// The system's files, and how many bytes were read from them. Reads are thread-safe.
class CountingFiles final : public FileSystem {
 public:
  std::int64_t bytes_read() const { return bytes_read_; }

  Opened create(const std::string& path) override { return files_.create(path); }
  Opened open(const std::string& path) override {
    Opened opened = files_.open(path);
    if (opened.file != nullptr) {
      opened.file = std::make_unique<CountedFile>(std::move(opened.file), bytes_read_);
    }
    return opened;
  }
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
  class CountedFile final : public OpenFile {
   public:
    CountedFile(std::unique_ptr<OpenFile> upstream, std::atomic<std::int64_t>& bytes_read)
        : upstream_(std::move(upstream)), bytes_read_(bytes_read) {}
    std::int64_t append(std::span<const std::byte> bytes) override {
      return upstream_->append(bytes);
    }
    std::int64_t read_at(std::span<std::byte> out, std::uint64_t offset) override {
      const std::int64_t got = upstream_->read_at(out, offset);
      if (got > 0) bytes_read_ += got;
      return got;
    }
    std::int64_t size() override { return upstream_->size(); }
    int sync() override { return upstream_->sync(); }
    int close() override { return upstream_->close(); }

   private:
    std::unique_ptr<OpenFile> upstream_;
    std::atomic<std::int64_t>& bytes_read_;
  };

  FileSystem& files_ = system_files();
  std::atomic<std::int64_t> bytes_read_ = 0;
};

}  // namespace terrace
