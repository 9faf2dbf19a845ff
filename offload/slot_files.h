#pragma once

#include <memory>
#include <string>
#include <vector>

#include "offload/direct_file.h"
#include "offload/job_directory.h"
#include "offload/nvme_store.h"
#include "offload/stripe_files.h"

namespace terrace {

// One preallocated file per directory, each in a job directory, each with its own engine.
class SlotFiles final : public StripeFiles {
 public:
  // Makes the directories and the (empty) files. Throws as make_nvme_store() does.
  SlotFiles(const NvmeStoreOptions& options, Log& log);

  std::size_t count() const override { return slots_.size(); }
  void prepare(std::span<const std::uint64_t> sizes) override;
  IoEngine& engine(std::size_t stripe) override { return *slots_[stripe].engine; }
  const std::string& file_name(std::size_t stripe) const override;
  std::size_t alignment() const override;
  std::vector<StorePath> paths() const override;

 private:
  struct Slot {
    NvmeDirectory directory;
    std::unique_ptr<JobDirectory> job;
    std::unique_ptr<DirectFile> file;
    std::unique_ptr<IoEngine> engine;
    std::string engine_remark;  // why it is not the engine that was asked for
  };

  static void make_engine(const NvmeStoreOptions& options, Slot& slot);
  void preallocate(Slot& slot, std::uint64_t size);

  std::vector<Slot> slots_;
};

}  // namespace terrace
