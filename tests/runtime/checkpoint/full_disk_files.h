#pragma once

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/runtime/checkpoint/forwarding_files.h"

namespace terrace {

// The system's files below a directory, as if they were on a drive of `capacity_bytes`.
class FullDiskFiles final : public ForwardingFiles {
 public:
  // With `tells`, free_bytes() says how many bytes are free.
  FullDiskFiles(std::string root, std::uint64_t capacity_bytes, bool tells)
      : root_(std::move(root)), capacity_bytes_(capacity_bytes), tells_(tells) {}

  std::uint64_t left_bytes() const {
    std::uint64_t used = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
      if (entry.is_regular_file()) used += entry.file_size();
    }
    return capacity_bytes_ - std::min(capacity_bytes_, used);
  }

  Opened create(const std::string& path) override {
    Opened opened = ForwardingFiles::create(path);
    if (opened.file != nullptr) opened.file = std::make_unique<File>(std::move(opened.file), *this);
    return opened;
  }
  std::optional<std::uint64_t> free_bytes(const std::string&) override {
    return tells_ ? std::optional(left_bytes()) : std::nullopt;
  }

 private:
  class File final : public OpenFile {
   public:
    File(std::unique_ptr<OpenFile> upstream, const FullDiskFiles& disk)
        : upstream_(std::move(upstream)), disk_(disk) {}
    std::int64_t append(std::span<const std::byte> bytes) override {
      const std::uint64_t left = disk_.left_bytes();
      if (left == 0) return -ENOSPC;
      return upstream_->append(bytes.first(std::min<std::uint64_t>(left, bytes.size())));
    }
    std::int64_t read_at(std::span<std::byte> out, std::uint64_t offset) override {
      return upstream_->read_at(out, offset);
    }
    std::int64_t size() override { return upstream_->size(); }
    int sync() override { return upstream_->sync(); }
    int close() override { return upstream_->close(); }

   private:
    std::unique_ptr<OpenFile> upstream_;
    const FullDiskFiles& disk_;
  };

  const std::string root_;
  const std::uint64_t capacity_bytes_;
  const bool tells_;
};

}  // namespace terrace
