#include <memory>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "offload/faulty_file.h"
#include "offload/memory_file.h"
#include "offload/nvme_store.h"
#include "offload/posix_engine.h"
#include "offload/striped_store.h"

namespace terrace {
namespace {

// Smaller than a drive's blocks, so that small tests have many of them.
constexpr std::size_t kBlockBytes = 64 * kKiB;
constexpr int kDepth = 8;

// One stripe of memory, with or without faults.
class MemoryStripe final : public StripeFiles {
 public:
  explicit MemoryStripe(const FaultPlan& plan)
      : faults_(plan, MemoryFile::kAlignment),
        faulty_(file_, faults_),
        engine_({&faulty_}, InFlight{.pieces_max = kDepth}, "memory") {}

  // The log is for stalled transfers, and memory does not stall.
  Log& log() { return log_; }
  std::size_t count() const override { return 1; }
  void prepare(std::span<const std::uint64_t> sizes) override { file_.resize(sizes[0]); }
  IoEngine& engine(std::size_t /*stripe*/) override { return engine_; }
  const std::string& file_name(std::size_t /*stripe*/) const override { return name_; }
  std::size_t alignment() const override { return MemoryFile::kAlignment; }
  std::size_t spacing() const override { return MemoryFile::kAlignment; }
  std::vector<StorePath> paths() const override {
    StorePath path;
    path.directory = name_;
    path.engine = "memory";
    return {path};
  }

 private:
  const std::string name_ = "memory";
  SilentLog log_;
  MemoryFile file_;
  SeededFaults faults_;
  FaultyFile faulty_;
  PosixEngine engine_;
};

}  // namespace

std::unique_ptr<BlockStore> make_memory_store() { return make_faulty_store(FaultPlan{}); }

std::unique_ptr<BlockStore> make_faulty_store(const FaultPlan& plan) {
  auto stripe = std::make_unique<MemoryStripe>(plan);
  Log& log = stripe->log();
  return std::make_unique<StripedStore>(StripedStore::Options{.block_bytes = kBlockBytes},
                                        std::move(stripe), log);
}

}  // namespace terrace
