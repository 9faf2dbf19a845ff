#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "offload/block_checksums.h"
#include "offload/block_layout.h"
#include "offload/block_store.h"
#include "offload/checksum_thread.h"
#include "offload/stall_watch.h"
#include "offload/stripe_files.h"

namespace terrace {

// The block store over any kind of files. It cuts requests into blocks, hands them to the stripes'
// engines, and checks the bytes that have been read. Everything that a request needs is made in
// advance, so a request that succeeds allocates nothing.
class StripedStore final : public BlockStore {
 public:
  struct Options {
    std::size_t block_bytes = 0;
    bool checksums = true;
    double stall_seconds = 10;  // a transfer that takes longer is reported; 0: never
    // Whether a thread per stripe takes checksums, instead of submit() and the engine's thread.
    bool checksums_apart = false;
    StripeShares shares = {};  // of the blocks; empty: all stripes have equal shares
  };

  // `log` outlives the store. Throws EnvironmentError where a thread does not start.
  StripedStore(const Options& options, std::unique_ptr<StripeFiles> files, Log& log);
  ~StripedStore() override;

  ExtentId create_extent(std::size_t size_bytes) override;
  void prepare() override;
  void register_memory(std::span<std::byte> memory) override;
  void submit(const IoRequest& request) override;
  void set_zero(ExtentId extent, std::size_t offset, std::size_t size_bytes) override;
  void take_checksums(ExtentId extent, std::size_t offset,
                      std::span<const std::byte> bytes) override;
  IoOutcome compare_checksums(ExtentId extent, std::size_t offset,
                              std::span<const std::byte> bytes) const override;
  void drain() override;

  std::size_t alignment() const override { return files_->alignment(); }
  std::size_t block_bytes() const override { return block_bytes_; }
  std::size_t used_bytes() const override { return layout_.used_bytes(); }
  std::vector<StorePath> paths() const override;

 private:
  // A request on its way. Guarded by mutex_ once its first block has been started.
  struct RequestSlot {
    IoCompletion* completion = nullptr;
    std::size_t blocks_left = 0;
    // The outcome of the first block, in the order of the extent, that failed. The order in which
    // blocks end must not matter.
    IoOutcome outcome;
    std::size_t failed_block = 0;
  };

  struct BlockSlot final : PieceCompletion, ChecksumJob {
    void piece_started() noexcept override { in_flight.begin(place.offset, place.bytes); }
    void piece_done(PieceResult result) noexcept override {
      in_flight.end();
      store->block_ended(*this, result);
    }
    void take_checksum() noexcept override { store->take_checksum(*this); }

    StripedStore* store = nullptr;
    RequestSlot* request = nullptr;
    BlockLayout::Place place;
    IoDirection direction = IoDirection::kRead;
    IoRequest::Checksums checksums = IoRequest::Checksums::kByStore;
    bool is_zero = false;  // a read of zeros, which does not go to an engine
    std::span<std::byte> memory;
    TransferInFlight in_flight;
  };

  void check_part(std::size_t offset, std::size_t size_bytes, std::size_t extent_end) const;
  void check_request(const IoRequest& request) const;
  RequestSlot& take_request_slot(const IoRequest& request, std::size_t blocks);
  BlockSlot& take_block_slot(std::size_t stripe);
  void read_zeros(BlockSlot& slot) noexcept;
  void start_block(BlockSlot& slot) noexcept;
  void take_checksum(BlockSlot& slot) noexcept;
  void block_ended(BlockSlot& slot, PieceResult result) noexcept;
  void block_done(BlockSlot& slot, PieceResult result) noexcept;
  IoOutcome judge(const BlockSlot& slot, PieceResult result);
  IoOutcome outcome_at(const BlockLayout::Place& place, IoOutcome::Kind kind, const char* operation,
                       int error_number = 0) const;
  // Calls body(place, offset in the block, part) for the part of `bytes` in each block.
  template <typename Body>
  void for_each_part(ExtentId extent, std::size_t offset, std::span<const std::byte> bytes,
                     const Body& body) const;
  void finish(RequestSlot& request) noexcept;
  void name_stalled(const StallWatch::Stalled& stalled);

  const std::size_t block_bytes_;
  Log& log_;
  std::unique_ptr<StripeFiles> files_;
  BlockLayout layout_;
  BlockChecksums checksums_;
  bool prepared_ = false;

  std::mutex mutex_;
  std::condition_variable slot_freed_;
  std::vector<RequestSlot> request_slots_;
  std::deque<BlockSlot> block_slots_;                 // stripe after stripe
  std::vector<RequestSlot*> free_requests_;           // guarded by mutex_
  std::vector<std::vector<BlockSlot*>> free_blocks_;  // of each stripe; guarded by mutex_
  std::vector<std::unique_ptr<ChecksumThread>> checksum_threads_;  // of each stripe; may be empty
  std::unique_ptr<ChecksumThread> zeros_thread_;  // fills in zeros where there are no such threads
  std::unique_ptr<StallWatch> watch_;             // null where none is needed
};

}  // namespace terrace
