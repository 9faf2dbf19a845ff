#pragma once

#include <cstdint>

#include "parallel/communicator.h"

namespace terrace {

// A call as it is sent to other processes, without its memory addresses.
struct WireCall {
  std::uint64_t elements = 0;
  std::int32_t peer = -1;
  std::uint8_t kind = 0;
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  std::uint8_t hierarchical = 0;  // the HierarchicalUse of a staged communicator
};

inline WireCall to_wire(const CollectiveCall& call) {
  return {.elements = call.elements,
          .peer = call.peer,
          .kind = static_cast<std::uint8_t>(call.kind),
          .op = static_cast<std::uint8_t>(call.op),
          .dtype = static_cast<std::uint8_t>(call.dtype)};
}

inline CollectiveCall from_wire(const WireCall& wire) {
  return {.kind = static_cast<CollectiveKind>(wire.kind),
          .op = static_cast<ReduceOp>(wire.op),
          .dtype = static_cast<DType>(wire.dtype),
          .peer = wire.peer,
          .elements = wire.elements};
}

}  // namespace terrace
