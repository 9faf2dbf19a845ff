#pragma once

#include <string>

#include "offload/raw_file.h"
#include "offload/system_faults.h"

namespace terrace {

// A new file of our own, opened past the page cache (O_DIRECT) where the file system can. The
// alignment is what the file reports by statx, or what was tried out where it reports nothing.
class DirectFile final : public RawFile {
 public:
  // Makes the file; it must not be there. Throws ConfigError naming the path. `faults` outlives it.
  explicit DirectFile(std::string path, SystemFaults* faults = nullptr);
  ~DirectFile() override;
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  std::int64_t read_at(std::span<std::byte> memory, std::uint64_t offset) noexcept override;
  std::int64_t write_at(std::span<const std::byte> memory, std::uint64_t offset) noexcept override;
  std::size_t alignment() const override { return alignment_; }

  // Gives the file its size, with space reserved for it. Returns 0 or an errno.
  int preallocate(std::uint64_t size_bytes);
  // Gives its space back. Returns 0 or an errno.
  int clear();

  int descriptor() const { return descriptor_; }
  // What an engine that transfers by itself must ask; null for none.
  SystemFaults* faults() const { return faults_; }
  const std::string& path() const { return path_; }
  bool direct() const { return direct_; }
  // Why I/O goes through the page cache, or space is not reserved; empty otherwise.
  const std::string& remark() const { return remark_; }

 private:
  void settle_direct();
  void give_up_direct(const std::string& reason);
  std::size_t reported_alignment() const;
  std::size_t tried_alignment() const;
  std::size_t file_system_block() const;

  std::string path_;
  SystemFaults* faults_;
  int descriptor_ = -1;
  bool direct_ = false;
  std::size_t alignment_ = 0;
  std::string remark_;
};

}  // namespace terrace
