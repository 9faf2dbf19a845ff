#pragma once

#include <atomic>
#include <cerrno>
#include <string>

#include "tests/runtime/checkpoint/forwarding_files.h"

namespace terrace {

// Files of which none is made until release() is called.
class HeldFiles final : public ForwardingFiles {
 public:
  void release() {
    is_released_ = true;
    is_released_.notify_all();
  }

  // From then on no file can be made.
  void fail() { error_number_ = EIO; }

  Opened create(const std::string& path) override {
    is_released_.wait(false);
    if (error_number_ != 0) return {nullptr, error_number_};
    return ForwardingFiles::create(path);
  }

 private:
  std::atomic<bool> is_released_{false};
  std::atomic<int> error_number_{0};
};

}  // namespace terrace
