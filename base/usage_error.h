#pragma once

#include "base/error.h"

namespace terrace {

// A program that embeds Terrace called it wrongly: in the wrong order, with a wrong size, with a
// description that contradicts itself. The call has changed nothing. Exit code 1.
class UsageError : public Error {
 public:
  using Error::Error;
};

}  // namespace terrace
