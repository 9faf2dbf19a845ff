#include "runtime/machine/machine.h"

#include <fmt/format.h>

#include "base/error.h"

namespace terrace {

double Machine::value(MachineFigure figure) const {
  if (knows(figure)) return at(figure)->value;
  throw UnknownFigure(
      fmt::format("{} of the machine {} is not known", key_of(figure), name),
      fmt::format("write the machine's profile to a file, add {} = VALUE there, and "
                  "give the file: --profile FILE",
                  key_of(figure)));
}

}  // namespace terrace
