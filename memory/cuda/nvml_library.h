#pragma once

#include <dlfcn.h>

#include <string>

namespace terrace {

// NVML, the library of the NVIDIA driver's figures, loaded at run time. NVML's header is not used:
// functions are looked up by name. Types and names follow the NVML API reference.
class NvmlLibrary {
 public:
  using Device = void*;

  explicit NvmlLibrary(const std::string& library)
      : library_(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    is_open_ = library_ != nullptr && call<int()>("nvmlInit_v2");
  }
  ~NvmlLibrary() {
    if (is_open_) call<int()>("nvmlShutdown");
    if (library_ != nullptr) ::dlclose(library_);
  }
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  bool is_there() const { return library_ != nullptr; }
  bool is_open() const { return is_open_; }

  // Calls the function with that name; returns false if there is none, or it fails.
  template <typename Function, typename... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    constexpr int kSuccess = 0;
    auto* const function = reinterpret_cast<Function*>(::dlsym(library_, name));
    return function != nullptr && function(arguments...) == kSuccess;
  }

  // Returns a number of a device; 0 where the driver does not say it.
  unsigned number(const char* name, Device device) const {
    unsigned value = 0;
    return call<int(Device, unsigned*)>(name, device, &value) ? value : 0;
  }

 private:
  void* const library_;
  bool is_open_ = false;
};

}  // namespace terrace
