#include "bench/io_load.h"

#include <fmt/format.h>

#include "base/bytes.h"

namespace terrace {

std::string name_of(IoMix mix) {
  switch (mix) {
    case IoMix::kRead:
      return "read";
    case IoMix::kWrite:
      return "write";
    case IoMix::kMixed:
      return "mixed";
  }
  return {};
}

std::string to_text(const IoShape& shape) {
  return fmt::format("{}, depth {}", format_size(shape.block_bytes), shape.depth);
}

}  // namespace terrace
