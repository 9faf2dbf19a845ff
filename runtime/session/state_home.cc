#include "runtime/session/state_home.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace terrace {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::int64_t kStateGrain = 4096;  // elements that a layout is in multiples of
constexpr std::size_t kSlotsMost = 8;
constexpr std::size_t kSlotsLeast = 2;

constexpr const char* kBudgetRemedy =
    "raise host_memory_bytes or the drives' budget_bytes, or train fewer parameters";

std::int64_t padded(std::int64_t elements) {
  return (elements + kStateGrain - 1) / kStateGrain * kStateGrain;
}

}  // namespace

StateLayout StateChunk::layout() const { return format.layout(padded(elements)); }

StateHome::StateHome(const ParameterTable& table, const StateHomeOptions& options, Log& log)
    : nvme_(options.nvme), log_(log) {
  cut(table);
  place(options);
  if (!fits(ledger_)) {
    throw OutOfMemory("the session does not fit: " + describe_shortfall(ledger_), kBudgetRemedy);
  }
  const std::size_t host = ledger_[Tier::kHost].peak_bytes - options.copy_bytes;
  memory_ = std::make_shared<HostMemory>(host, HostMemoryOptions());
  // Forked processes get no copy of the memory, so no page is copied for them. If the system
  // refuses this, a fork costs more, but nothing else changes.
  if (!memory_->bytes().empty()) {
    madvise(memory_->bytes().data(), memory_->bytes().size(), MADV_DONTFORK);
  }
  if (slots_ > 0) make_store();
}

void StateHome::cut(const ParameterTable& table) {
  std::int32_t number = 0;
  for (const SessionTensor& tensor : table.tensors()) {
    first_chunk_.push_back(chunks_.size());
    gradient_offset_.push_back(gradient_bytes_);
    gradient_elements_.push_back(tensor.is_frozen ? 0 : static_cast<std::size_t>(tensor.elements));
    gradient_bytes_ += round_up(gradient_elements_.back() * sizeof(float), kPageBytes);
    borrowed_.push_back(nullptr);
    const StateFormat format = state_format_of(tensor, table.group_of(tensor));
    const std::int64_t elements = tensor.is_frozen ? 0 : tensor.elements;
    for (std::int64_t begin = 0; begin < elements; begin += kChunkElements) {
      StateChunk chunk = {.tensor = number,
                          .begin = begin,
                          .elements = std::min(kChunkElements, elements - begin),
                          .format = format};
      chunk.size_bytes = chunk.layout().size_bytes;
      slot_bytes_ = std::max(slot_bytes_, chunk.size_bytes);
      chunks_.push_back(chunk);
    }
    ++number;
  }
  first_chunk_.push_back(chunks_.size());
}

std::size_t StateHome::state_bytes(bool on_drive) const {
  std::size_t sum = 0;
  for (const StateChunk& chunk : chunks_) {
    if (chunk.is_on_drive == on_drive) sum += chunk.size_bytes;
  }
  return sum;
}

// Chooses a home for each chunk. With kAuto the first chunks stay on the host, as many as leave
// room for a window for the others.
void StateHome::place(const StateHomeOptions& options) {
  const bool may_use_drives = options.tier != StateTier::kHost && !options.nvme.directories.empty();
  const std::size_t fixed = gradient_bytes_ + options.copy_bytes;
  const std::size_t all = fixed + state_bytes(false);
  const bool uses_drives =
      options.tier == StateTier::kNvme || (may_use_drives && all > options.host_budget_bytes);
  std::size_t host_state = all - fixed;
  if (uses_drives) {
    const std::size_t room = options.host_budget_bytes - std::min(options.host_budget_bytes, fixed);
    slots_ = std::clamp(room / std::max<std::size_t>(slot_bytes_, 1), kSlotsLeast, kSlotsMost);
    const std::size_t window = slots_ * slot_bytes_;
    std::size_t left = options.tier == StateTier::kNvme ? 0 : room - std::min(room, window);
    host_state = 0;
    for (StateChunk& chunk : chunks_) {
      chunk.is_on_drive = chunk.size_bytes > left;
      if (chunk.is_on_drive) left = 0;
      if (!chunk.is_on_drive) left -= chunk.size_bytes;
    }
    host_state = state_bytes(false);
    if (state_bytes(true) == 0) slots_ = 0;
  }
  std::size_t offset = gradient_bytes_;
  for (StateChunk& chunk : chunks_) {
    if (chunk.is_on_drive) continue;
    chunk.host_offset = offset;
    offset += chunk.size_bytes;
  }
  const auto charge = [this](Tier tier, Account account, std::size_t bytes) {
    ledger_[tier][account] += bytes;
    ledger_[tier].peak_bytes += bytes;
    ledger_[tier].live_peak_bytes += bytes;
  };
  charge(Tier::kHost, Account::kGradients, gradient_bytes_);
  charge(Tier::kHost, Account::kOptimizerState, host_state);
  charge(Tier::kHost, Account::kStaging, slots_ * slot_bytes_ + options.copy_bytes);
  charge(Tier::kNvme, Account::kOptimizerState, state_bytes(true));
  ledger_[Tier::kHost].budget_bytes = options.host_budget_bytes;
  std::size_t drives = 0;
  for (const NvmeDirectory& directory : options.nvme.directories) {
    if (!directory.budget_bytes) return;
    drives += *directory.budget_bytes;
  }
  ledger_[Tier::kNvme].budget_bytes = drives;
}

void StateHome::make_store() {
  NvmeStoreOptions nvme = nvme_;
  nvme.expected_bytes = state_bytes(true);
  store_ = make_nvme_store(nvme, log_);
  if (kPageBytes % store_->alignment() != 0) {
    throw EnvironmentError(
        fmt::format("a drive needs transfers in multiples of {} bytes", store_->alignment()),
        "choose directories on other drives");
  }
  for (StateChunk& chunk : chunks_) {
    if (chunk.is_on_drive) chunk.extent = store_->create_extent(chunk.size_bytes);
  }
  store_->prepare();
  store_->register_memory(window_memory());
  window_ = std::make_unique<StateWindow>(*store_, window_memory(), slot_bytes_);
}

std::span<std::byte> StateHome::window_memory() const {
  return memory_->bytes().last(slots_ * slot_bytes_);
}

void StateHome::pause(const std::string& directory, std::span<const std::int32_t> gradients) {
  std::vector<std::span<std::byte>> kept;
  for (const std::int32_t tensor : gradients) {
    const auto i = static_cast<std::size_t>(tensor);
    const std::size_t size = round_up(gradient_elements_[i] * sizeof(float), kPageBytes);
    kept.push_back(memory_->bytes().subspan(gradient_offset_[i], size));
  }
  kept.push_back(memory_->bytes().subspan(gradient_bytes_, state_bytes(false)));
  std::erase_if(kept, [](std::span<std::byte> bytes) { return bytes.empty(); });
  if (!kept.empty()) {
    const std::vector<StorePath> used =
        store_ == nullptr ? std::vector<StorePath>() : store_->paths();
    parked_ = std::make_unique<ParkedState>(parking_of(directory, nvme_, used), kept, log_);
  }
  give_pages_back();
}

void StateHome::resume() {
  memory_->take_pages();
  try {
    if (parked_ != nullptr) parked_->read();
  } catch (...) {
    memory_->give_pages_back();
    throw;
  }
  if (store_ != nullptr) store_->register_memory(window_memory());
  parked_.reset();
}

// Gives the pages back, and unregisters the window first: drives would otherwise go on with its old
// pages.
void StateHome::give_pages_back() {
  if (store_ != nullptr) store_->register_memory({});
  memory_->give_pages_back();
}

std::pair<std::size_t, std::size_t> StateHome::chunks_of(std::int32_t tensor) const {
  const auto i = static_cast<std::size_t>(tensor);
  return {first_chunk_[i], first_chunk_[i + 1]};
}

std::span<float> StateHome::gradient(std::int32_t tensor) {
  const auto i = static_cast<std::size_t>(tensor);
  if (borrowed_[i] != nullptr) return {borrowed_[i], gradient_elements_[i]};
  return {reinterpret_cast<float*>(memory_->bytes().data() + gradient_offset_[i]),
          gradient_elements_[i]};
}

void StateHome::borrow_gradient(std::int32_t tensor, float* gradient) {
  borrowed_[static_cast<std::size_t>(tensor)] = gradient;
}

bool StateHome::has_borrowed(std::int32_t tensor) const {
  return borrowed_[static_cast<std::size_t>(tensor)] != nullptr;
}

StateWindow::Traffic StateHome::traffic() const {
  return window_ == nullptr ? StateWindow::Traffic() : window_->traffic();
}

void StateHome::for_each(std::span<const std::size_t> chunks, StateAccess access,
                         FunctionRef<void(std::size_t chunk, std::span<std::byte> state)> body) {
  std::vector<StateWindow::Extent> extents;
  for (const std::size_t i : chunks) {
    if (chunks_[i].is_on_drive) extents.push_back({chunks_[i].extent, chunks_[i].size_bytes});
  }
  if (!extents.empty()) window_->start(std::move(extents), access);
  for (const std::size_t i : chunks) {
    const StateChunk& chunk = chunks_[i];
    if (!chunk.is_on_drive) {
      body(i, memory_->bytes().subspan(chunk.host_offset, chunk.size_bytes));
      continue;
    }
    body(i, window_->fetch());
    window_->release();
  }
  if (window_ != nullptr) window_->finish();
}

}  // namespace terrace
