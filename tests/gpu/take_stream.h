#pragma once

#include "memory/device.h"

namespace terrace::test {

// Takes the native stream of the stream that runs it.
class TakeStream final : public StreamTask {
 public:
  void run(NativeStream stream) noexcept override { native = stream; }
  NativeStream native;
};

}  // namespace terrace::test
