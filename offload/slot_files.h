#pragma once

#include <memory>
#include <string>
#include <vector>

#include "offload/direct_file.h"
#include "offload/job_directory.h"
#include "offload/nvme_store.h"
#include "offload/stripe_files.h"

namespace terrace {

// One preallocated file per directory, each in a job directory. Directories on one device share an
// engine.
class SlotFiles final : public StripeFiles {
 public:
  // Makes the directories and the (empty) files. Throws as make_nvme_store() does.
  SlotFiles(const NvmeStoreOptions& options, Log& log);

  // A block device, with the stripes whose directories lie on it.
  struct Device {
    std::string name;
    std::vector<std::size_t> stripes;
    std::unique_ptr<IoEngine> engine;
    std::string remark;  // why it is not the requested engine
    int depth = 0;       // whole blocks in flight
  };
  std::size_t device_count() const { return devices_.size(); }
  const Device& device(std::size_t device) const { return devices_[device]; }
  const NvmeDirectory& directory(std::size_t stripe) const { return slots_[stripe].directory; }
  DirectFile& file(std::size_t stripe) { return *slots_[stripe].file; }

  // Makes an engine for the device's files. The caller owns it.
  std::unique_ptr<IoEngine> make_engine(std::size_t device, const InFlight& in_flight,
                                        std::string& remark) const;
  // Makes the engine of the device. Called before prepare(). `depth` is the number of whole blocks
  // in flight.
  void open(std::size_t device, int depth, const InFlight& in_flight);

  std::size_t count() const override { return slots_.size(); }
  void prepare(std::span<const std::uint64_t> sizes) override;
  IoEngine& engine(std::size_t stripe) override { return *slots_[stripe].way; }
  const std::string& file_name(std::size_t stripe) const override;
  std::size_t alignment() const override { return kTransferAlignment; }
  std::size_t spacing() const override;
  std::vector<StorePath> paths() const override;

 private:
  struct Slot {
    NvmeDirectory directory;
    std::unique_ptr<JobDirectory> job;
    std::unique_ptr<DirectFile> file;
    std::size_t device = 0;
    std::unique_ptr<IoEngine> way;  // access to the file, by the device's engine
  };

  void add(const NvmeDirectory& directory, SystemFaults* faults, Log& log);
  void preallocate(Slot& slot, std::uint64_t size);

  const IoEngineKind engine_kind_;
  const bool named_;
  std::vector<Slot> slots_;
  std::vector<Device> devices_;  // last, so their engines are destroyed before the files
};

}  // namespace terrace
