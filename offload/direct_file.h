#pragma once

#include <string>

#include "offload/raw_file.h"
#include "offload/system_faults.h"

namespace terrace {

// A new file of our own. It is opened past the page cache (O_DIRECT) where the file system supports
// that for transfers of kTransferAlignment: statx reports that it does, or does not say, and a
// first transfer succeeds. Elsewhere transfers go through the page cache, which accepts any.
class DirectFile final : public RawFile {
 public:
  // Makes the file, which must not exist. Throws naming the path, as throw_not_made() does.
  // `faults` outlives the file.
  explicit DirectFile(std::string path, SystemFaults* faults = nullptr);
  ~DirectFile() override;
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  std::int64_t read_at(std::span<std::byte> memory, std::uint64_t offset) noexcept override;
  std::int64_t write_at(std::span<const std::byte> memory, std::uint64_t offset) noexcept override;
  std::size_t alignment() const override { return kTransferAlignment; }

  // Gives the file its size, with space reserved for it. Returns 0 or an errno.
  int preallocate(std::uint64_t size_bytes);
  // Gives the file's space back. Returns 0 or an errno.
  int clear();

  int descriptor() const { return descriptor_; }
  // The faults that an engine which makes its own transfers must ask; null for none.
  SystemFaults* faults() const { return faults_; }
  const std::string& path() const { return path_; }
  bool direct() const { return direct_; }
  // Extents begin at multiples of this, a power of two, because a file system serialises direct
  // writes that begin inside of its blocks.
  std::size_t spacing() const { return spacing_; }
  // Says why I/O goes through the page cache, or why space is not reserved; empty otherwise.
  const std::string& remark() const { return remark_; }

 private:
  void settle_direct();
  void give_up_direct(const std::string& reason);
  int try_direct() const;
  std::size_t file_system_block() const;

  std::string path_;
  SystemFaults* faults_;
  int descriptor_ = -1;
  bool direct_ = false;
  std::size_t spacing_ = kTransferAlignment;
  std::string remark_;
};

}  // namespace terrace
