#pragma once

#include <exception>

#include "base/function_ref.h"
#include "memory/device.h"

namespace terrace {

// A call as the work of a stream: `call` gets the stream as the vendor's handle. An exception from
// it is kept until the stream has been synchronized and rethrow() is called. Borrows the call.
class StreamCall final : public StreamTask {
 public:
  explicit StreamCall(FunctionRef<void(NativeStream)> call) : call_(call) {}

  void run(NativeStream stream) noexcept override {
    try {
      call_(stream);
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const FunctionRef<void(NativeStream)> call_;
  std::exception_ptr error_;
};

}  // namespace terrace
