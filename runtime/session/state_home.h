#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/log.h"
#include "memory/host/host_memory.h"
#include "memory/ledger.h"
#include "offload/nvme_store.h"
#include "runtime/session/parameter_table.h"
#include "runtime/session/parked_state.h"
#include "runtime/session/state_window.h"

namespace terrace {

enum class StateTier : std::uint8_t { kAuto, kHost, kNvme };

struct StateHomeOptions {
  StateTier tier = StateTier::kAuto;
  std::size_t host_budget_bytes = 0;
  std::size_t copy_bytes = 0;  // host memory for copies between host and GPUs, charged to staging
  NvmeStoreOptions nvme = {};
};

// A range of a tensor whose state is stored, moved and updated together.
struct StateChunk {
  std::int32_t tensor = 0;
  std::int64_t begin = 0;  // elements
  std::int64_t elements = 0;
  StateFormat format;
  std::size_t size_bytes = 0;  // of the state
  bool is_on_drive = false;
  std::size_t host_offset = 0;  // its place on the host, if it is at home there
  ExtentId extent = {};         // its place on a drive, else

  StateLayout layout() const;
};

// The gradient sums and the optimizer state of a session. Knows where each lies, and passes over
// the state in a way that does not show where it lies. Used by one thread at a time.
class StateHome {
 public:
  static constexpr std::int64_t kChunkElements = 1 << 20;

  // Chooses a home for each chunk, and allocates all. Throws OutOfMemory where a budget is too
  // small, and what make_nvme_store() throws. The log outlives it.
  StateHome(const ParameterTable& table, const StateHomeOptions& options, Log& log);

  const std::vector<StateChunk>& chunks() const { return chunks_; }
  // Returns the numbers of a tensor's chunks, [first, second).
  std::pair<std::size_t, std::size_t> chunks_of(std::int32_t tensor) const;
  // Returns the fp32 gradient sum of a tensor: its own, or the memory that is borrowed in its
  // place; empty for a frozen tensor.
  std::span<float> gradient(std::int32_t tensor);
  // Makes gradient() return this memory of another owner, which has the tensor's elements. With
  // null it returns the tensor's own sum again, with its old content.
  void borrow_gradient(std::int32_t tensor, float* gradient);
  bool has_borrowed(std::int32_t tensor) const;
  // Returns a share in the memory of the gradients, which keeps them beyond the session's end.
  std::shared_ptr<const HostMemory> memory() const { return memory_; }
  const Ledger& ledger() const { return ledger_; }
  StateWindow::Traffic traffic() const;

  // Calls body(chunk, state) for the numbers in `chunks`, in this order; drives read ahead and
  // write behind. Throws what the body throws, IoError, CorruptData: changes that were still to be
  // written may then be lost.
  void for_each(std::span<const std::size_t> chunks, StateAccess access,
                FunctionRef<void(std::size_t chunk, std::span<std::byte> state)> body);

  // Puts the state that is on the host, and the gradient sums of these tensors, into files in a
  // directory (empty: the drives' directories), and gives the pages of all memory back; addresses
  // stay. Until resume() only chunks(), ledger() and traffic() may be called. Throws SessionError,
  // OutOfMemory, IoError, ConfigError: nothing has changed then.
  void pause(const std::string& directory, std::span<const std::int32_t> gradients);
  // Takes the memory again, with the same content. Throws OutOfMemory, IoError, CorruptData: it
  // stays paused then.
  void resume();

 private:
  void give_pages_back();
  std::span<std::byte> window_memory() const;
  void cut(const ParameterTable& table);
  void place(const StateHomeOptions& options);
  void make_store();
  std::size_t state_bytes(bool on_drive) const;

  const NvmeStoreOptions nvme_;
  Log& log_;
  std::vector<StateChunk> chunks_;
  std::vector<std::size_t> first_chunk_;        // of each tensor, and the end of all
  std::vector<std::size_t> gradient_offset_;    // bytes in memory_, of each tensor
  std::vector<std::size_t> gradient_elements_;  // 0 of a frozen tensor
  std::vector<float*> borrowed_;                // in place of each tensor's own sum; null: nothing
  std::size_t gradient_bytes_ = 0;
  std::size_t slot_bytes_ = 0;
  std::size_t slots_ = 0;
  Ledger ledger_;
  std::shared_ptr<HostMemory> memory_;
  std::unique_ptr<BlockStore> store_;    // uses the memory
  std::unique_ptr<StateWindow> window_;  // uses the store; null where nothing is on a drive
  std::unique_ptr<ParkedState> parked_;  // from pause() to resume()
};

}  // namespace terrace
