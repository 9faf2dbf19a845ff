#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "tests/runtime/checkpoint/forwarding_files.h"

namespace terrace {

// The system's files, with a count of the bytes that were read from them. Reads are thread-safe.
class CountingFiles final : public ForwardingFiles {
 public:
  std::int64_t bytes_read() const { return bytes_read_; }

  Opened open(const std::string& path) override {
    Opened opened = ForwardingFiles::open(path);
    if (opened.file != nullptr) {
      opened.file = std::make_unique<CountedFile>(std::move(opened.file), bytes_read_);
    }
    return opened;
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

  std::atomic<std::int64_t> bytes_read_ = 0;
};

}  // namespace terrace
