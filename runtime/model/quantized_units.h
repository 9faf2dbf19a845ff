#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "memory/host/worker_arena.h"
#include "runtime/model/parameter_layout.h"
#include "runtime/model/state_source.h"

namespace terrace {

// The bytes of the quantised matrices of units, made from the numbers of a whole model. A matrix is
// quantised when a byte of it is first asked for, and kept until a byte of another matrix is asked
// for. So ask from front to back. Used by one thread.
class QuantizedUnits {
 public:
  // Borrows all. `whole` is the layout of the whole model without quantisation, and `source` is
  // asked by it. `own` is the layout of the rank, with elements of `element_bytes` bytes.
  QuantizedUnits(const StateSource& source, const std::vector<UnitLayout>& whole,
                 const std::vector<UnitLayout>& own, std::int64_t element_bytes)
      : source_(source), whole_(whole), own_(own), element_bytes_(element_bytes) {}

  // Sets `out` to the bytes from element `begin` of the unit's sequence on, all of them within
  // UnitLayout::quantized, or all of them of experts that are quantised. Bytes that belong to no
  // matrix are zero. Throws what the source throws.
  void read(std::int32_t unit, std::int64_t begin, std::span<std::byte> out, WorkerArena& workers);

 private:
  const std::vector<std::byte>& bytes_of(std::int32_t unit, const ParameterTensor& tensor,
                                         WorkerArena& workers);

  const StateSource& source_;
  const std::vector<UnitLayout>& whole_;
  const std::vector<UnitLayout>& own_;
  const std::int64_t element_bytes_;
  // The last matrix: its unit and its first element, and its bytes.
  std::pair<std::int32_t, std::int64_t> last_ = {-1, 0};
  std::vector<std::byte> bytes_;
};

}  // namespace terrace
