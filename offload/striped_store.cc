#include "offload/striped_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace {
namespace {

constexpr const char* kMismatch = "checksum mismatch in a read";

}  // namespace

StripedStore::StripedStore(const Options& options, std::unique_ptr<StripeFiles> files, Log& log)
    : block_bytes_(options.block_bytes),
      log_(log),
      files_(std::move(files)),
      layout_(
          {.block_bytes = options.block_bytes,
           .alignment = files_->alignment(),
           .spacing = files_->spacing(),
           .shares = options.shares.empty() ? StripeShares(files_->count(), 1) : options.shares}),
      checksums_(options.checksums, options.block_bytes) {
  if (!options.shares.empty()) TERRACE_CHECK_EQ(options.shares.size(), files_->count());
  request_slots_.resize(kQueuedPiecesMax * files_->count());
  for (RequestSlot& slot : request_slots_) free_requests_.push_back(&slot);
  for (std::size_t stripe = 0; stripe < files_->count(); ++stripe) {
    std::vector<BlockSlot*>& free_slots = free_blocks_.emplace_back();
    for (std::size_t i = 0; i < kQueuedPiecesMax; ++i) {
      BlockSlot& slot = block_slots_.emplace_back();
      slot.store = this;
      free_slots.push_back(&slot);
    }
  }
  if (options.checksums && options.checksums_apart) {
    for (std::size_t stripe = 0; stripe < files_->count(); ++stripe) {
      checksum_threads_.push_back(std::make_unique<ChecksumThread>(kQueuedPiecesMax));
    }
  }
  if (options.stall_seconds <= 0) return;
  std::vector<const TransferInFlight*> transfers;
  transfers.reserve(block_slots_.size());
  for (const BlockSlot& slot : block_slots_) transfers.push_back(&slot.in_flight);
  watch_ = std::make_unique<StallWatch>(
      std::move(transfers), options.stall_seconds,
      [this](const StallWatch::Stalled& stalled) { name_stalled(stalled); });
}

StripedStore::~StripedStore() {
  drain();
  watch_.reset();
  // Ends the threads, which may still be leaving block_done().
  checksum_threads_.clear();
  zeros_thread_.reset();
  files_.reset();
}

ExtentId StripedStore::create_extent(std::size_t size_bytes) {
  TERRACE_CHECK(!prepared_);
  return layout_.add(size_bytes);
}

void StripedStore::prepare() {
  TERRACE_CHECK(!prepared_);
  files_->prepare(layout_.stripe_bytes());
  checksums_.resize(layout_.block_count());
  if (checksum_threads_.empty()) {
    zeros_thread_ = std::make_unique<ChecksumThread>(kQueuedPiecesMax * files_->count());
  }
  prepared_ = true;
}

void StripedStore::name_stalled(const StallWatch::Stalled& stalled) {
  const std::size_t stripe = stalled.transfer / kQueuedPiecesMax;
  log_.warning(
      fmt::format("the drive of {} has not answered for {:.1f} s: {}, offset {}, {} bytes; the run "
                  "waits for it",
                  files_->paths().at(stripe).directory, stalled.seconds, files_->file_name(stripe),
                  stalled.offset, stalled.size_bytes));
}

void StripedStore::register_memory(std::span<std::byte> memory) {
  TERRACE_CHECK(prepared_);
  for (std::size_t i = 0; i < files_->count(); ++i) files_->engine(i).register_memory(memory);
}

void StripedStore::check_request(const IoRequest& request) const {
  TERRACE_CHECK(prepared_);
  TERRACE_CHECK(request.completion != nullptr);
  TERRACE_CHECK_EQ(reinterpret_cast<std::uintptr_t>(request.memory.data()) % alignment(), 0U);
  check_part(request.offset, request.memory.size(), layout_.extent_bytes(request.extent));
}

void StripedStore::check_part(std::size_t offset, std::size_t size_bytes,
                              std::size_t extent_end) const {
  TERRACE_CHECK_EQ(offset % block_bytes_, 0U);
  TERRACE_CHECK_LT(0U, size_bytes);
  const std::size_t end = offset + size_bytes;
  TERRACE_CHECK_LE(end, extent_end);
  if (end != extent_end) TERRACE_CHECK_EQ(end % block_bytes_, 0U);
}

void StripedStore::set_zero(ExtentId extent, std::size_t offset, std::size_t size_bytes) {
  TERRACE_CHECK(prepared_);
  check_part(offset, size_bytes, layout_.extent_bytes(extent));
  const std::size_t first = offset / block_bytes_;
  const std::size_t blocks = divide_up(size_bytes, block_bytes_);
  for (std::size_t block = first; block < first + blocks; ++block) {
    const BlockLayout::Place place = layout_.place(extent, block);
    checksums_.set_zero(place.number, place.bytes);
  }
}

void StripedStore::submit(const IoRequest& request) {
  check_request(request);
  const bool reads = request.direction == IoRequest::Direction::kRead;
  const std::size_t first = request.offset / block_bytes_;
  const std::size_t blocks = divide_up(request.memory.size(), block_bytes_);
  RequestSlot& owner = take_request_slot(request, blocks);
  std::span<std::byte> rest = request.memory;
  for (std::size_t block = first; block < first + blocks; ++block) {
    const BlockLayout::Place place = layout_.place(request.extent, block);
    const std::span<std::byte> memory = rest.first(place.bytes);
    rest = rest.subspan(place.bytes);
    BlockSlot& slot = take_block_slot(place.stripe);
    slot.request = &owner;
    slot.place = place;
    slot.direction = reads ? IoDirection::kRead : IoDirection::kWrite;
    slot.checksums = request.checksums;
    slot.memory = memory;
    slot.is_zero = reads && checksums_.is_zero(place.number);
    if (slot.is_zero) {
      read_zeros(slot);
      continue;
    }
    if (!reads) checksums_.write_begins(place.number);
    const bool takes = !reads && request.checksums == IoRequest::Checksums::kByStore;
    if (takes && !checksum_threads_.empty()) {
      checksum_threads_[place.stripe]->push_write(slot);
      continue;
    }
    if (takes) checksums_.take(place.number, 0, memory);
    start_block(slot);
  }
}

StripedStore::RequestSlot& StripedStore::take_request_slot(const IoRequest& request,
                                                           std::size_t blocks) {
  std::unique_lock lock(mutex_);
  slot_freed_.wait(lock, [this] { return !free_requests_.empty(); });
  RequestSlot& slot = *free_requests_.back();
  free_requests_.pop_back();
  slot.completion = request.completion;
  slot.blocks_left = blocks;
  slot.outcome = IoOutcome{};
  return slot;
}

StripedStore::BlockSlot& StripedStore::take_block_slot(std::size_t stripe) {
  std::unique_lock lock(mutex_);
  std::vector<BlockSlot*>& free_slots = free_blocks_[stripe];
  slot_freed_.wait(lock, [&free_slots] { return !free_slots.empty(); });
  BlockSlot& slot = *free_slots.back();
  free_slots.pop_back();
  return slot;
}

void StripedStore::start_block(BlockSlot& slot) noexcept {
  files_->engine(slot.place.stripe)
      .submit({.direction = slot.direction,
               .offset = slot.place.offset,
               .memory = slot.memory,
               .completion = &slot});
}

// Runs on another thread, because all completions do.
void StripedStore::read_zeros(BlockSlot& slot) noexcept {
  const bool has_own = checksum_threads_.empty();
  (has_own ? zeros_thread_ : checksum_threads_[slot.place.stripe])->push_read(slot);
}

// Runs on the stripe's checksum thread.
void StripedStore::take_checksum(BlockSlot& slot) noexcept {
  if (slot.is_zero) std::ranges::fill(slot.memory, std::byte{0});
  if (slot.direction == IoDirection::kRead) return block_done(slot, {.complete = true});
  checksums_.take(slot.place.number, 0, slot.memory);
  start_block(slot);
}

// Runs on a thread that keeps the drive busy, and taking a checksum here would hold that thread up.
void StripedStore::block_ended(BlockSlot& slot, PieceResult result) noexcept {
  const bool compares = slot.direction == IoDirection::kRead && result.complete &&
                        slot.checksums == IoRequest::Checksums::kByStore;
  if (compares && !checksum_threads_.empty()) {
    checksum_threads_[slot.place.stripe]->push_read(slot);
  } else {
    block_done(slot, result);
  }
}

void StripedStore::block_done(BlockSlot& slot, PieceResult result) noexcept {
  IoOutcome outcome = judge(slot, result);
  RequestSlot& request = *slot.request;
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    const bool failed = outcome.kind != IoOutcome::Kind::kDone;
    const bool first_failure = request.outcome.kind == IoOutcome::Kind::kDone;
    if (failed && (first_failure || slot.place.number < request.failed_block)) {
      request.outcome = std::move(outcome);
      request.failed_block = slot.place.number;
    }
    last = --request.blocks_left == 0;
    free_blocks_[slot.place.stripe].push_back(&slot);
  }
  slot_freed_.notify_all();
  if (last) finish(request);
}

void StripedStore::finish(RequestSlot& request) noexcept {
  request.completion->done(request.outcome);
  {
    const std::lock_guard lock(mutex_);
    free_requests_.push_back(&request);
  }
  slot_freed_.notify_all();
}

IoOutcome StripedStore::judge(const BlockSlot& slot, PieceResult result) {
  const bool reads = slot.direction == IoDirection::kRead;
  if (!result.complete) {
    return outcome_at(slot.place, IoOutcome::Kind::kFailed, reads ? "read" : "write",
                      result.error_number);
  }
  if (!reads) {
    checksums_.write_succeeded(slot.place.number);
    return {};
  }
  if (!checksums_.is_known(slot.place.number)) {
    return outcome_at(slot.place, IoOutcome::Kind::kCorrupt,
                      "read of a block that was never written");
  }
  const bool is_good = slot.is_zero || slot.checksums == IoRequest::Checksums::kByCaller ||
                       checksums_.are_same(slot.place.number, 0, slot.memory);
  return is_good ? IoOutcome{} : outcome_at(slot.place, IoOutcome::Kind::kCorrupt, kMismatch);
}

IoOutcome StripedStore::outcome_at(const BlockLayout::Place& place, IoOutcome::Kind kind,
                                   const char* operation, int error_number) const {
  return {.kind = kind,
          .where = {.operation = operation,
                    .path = files_->file_name(place.stripe),
                    .offset = place.offset,
                    .size = place.bytes,
                    .error_number = error_number}};
}

template <typename Body>
void StripedStore::for_each_part(ExtentId extent, std::size_t offset,
                                 std::span<const std::byte> bytes, const Body& body) const {
  TERRACE_CHECK(prepared_);
  const std::size_t end = offset + bytes.size();
  TERRACE_CHECK_LE(end, layout_.extent_bytes(extent));
  if (end != layout_.extent_bytes(extent)) TERRACE_CHECK_EQ(end % kChecksumBytes, 0U);
  while (!bytes.empty()) {
    const std::size_t first = offset % block_bytes_;
    const std::size_t size = std::min(block_bytes_ - first, bytes.size());
    body(layout_.place(extent, offset / block_bytes_), first, bytes.first(size));
    offset += size;
    bytes = bytes.subspan(size);
  }
}

void StripedStore::take_checksums(ExtentId extent, std::size_t offset,
                                  std::span<const std::byte> bytes) {
  for_each_part(
      extent, offset, bytes,
      [this](const BlockLayout::Place& place, std::size_t first, std::span<const std::byte> part) {
        checksums_.take(place.number, first, part);
      });
}

IoOutcome StripedStore::compare_checksums(ExtentId extent, std::size_t offset,
                                          std::span<const std::byte> bytes) const {
  IoOutcome outcome;
  for_each_part(extent, offset, bytes,
                [&](BlockLayout::Place place, std::size_t first, std::span<const std::byte> part) {
                  if (outcome.kind != IoOutcome::Kind::kDone) return;
                  if (checksums_.are_same(place.number, first, part)) return;
                  place.offset += first;
                  place.bytes = part.size();
                  outcome = outcome_at(place, IoOutcome::Kind::kCorrupt, kMismatch);
                });
  return outcome;
}

std::vector<StorePath> StripedStore::paths() const {
  std::vector<StorePath> paths = files_->paths();
  const std::span<const std::uint64_t> used = layout_.stripe_bytes();
  TERRACE_CHECK_EQ(paths.size(), used.size());
  for (std::size_t stripe = 0; stripe < used.size(); ++stripe) {
    paths[stripe].used_bytes = used[stripe];
  }
  return paths;
}

void StripedStore::drain() {
  std::unique_lock lock(mutex_);
  slot_freed_.wait(lock, [this] { return free_requests_.size() == request_slots_.size(); });
}

}  // namespace terrace
