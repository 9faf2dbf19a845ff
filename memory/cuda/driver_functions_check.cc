#include <cuda.h>

#include <type_traits>

#include "memory/cuda/driver_functions.h"

// Compares the functions that are loaded by name with cuda.h, when this file is compiled: the same
// number of parameters, of the same sizes, with pointers in the same places. The driver is not
// linked.
namespace terrace {
namespace {

template <typename Ours, typename Theirs>
constexpr bool kPassesAlike =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;

template <typename Ours, typename Theirs>
struct CallsAlike : std::false_type {};

template <typename... Ours, typename... Theirs>
struct CallsAlike<int (*)(Ours...), CUresult (*)(Theirs...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
      return (kPassesAlike<Ours, Theirs> && ...);
    }
    return false;
  }();
};

#define TERRACE_CALLS_ALIKE(ours, theirs) \
  static_assert(CallsAlike<decltype(DriverFunctions::ours), decltype(&theirs)>::value)

// The header's macros give these names to the versions of the functions that are looked up.
TERRACE_CALLS_ALIKE(init, cuInit);
TERRACE_CALLS_ALIKE(get_error_string, cuGetErrorString);
TERRACE_CALLS_ALIKE(device_get, cuDeviceGet);
TERRACE_CALLS_ALIKE(context_retain, cuDevicePrimaryCtxRetain);
TERRACE_CALLS_ALIKE(context_release, cuDevicePrimaryCtxRelease);
TERRACE_CALLS_ALIKE(context_push, cuCtxPushCurrent);
TERRACE_CALLS_ALIKE(context_pop, cuCtxPopCurrent);
TERRACE_CALLS_ALIKE(stream_create, cuStreamCreate);
TERRACE_CALLS_ALIKE(stream_destroy, cuStreamDestroy);
TERRACE_CALLS_ALIKE(stream_synchronize, cuStreamSynchronize);
TERRACE_CALLS_ALIKE(stream_wait_event, cuStreamWaitEvent);
TERRACE_CALLS_ALIKE(event_create, cuEventCreate);
TERRACE_CALLS_ALIKE(event_destroy, cuEventDestroy);
TERRACE_CALLS_ALIKE(event_record, cuEventRecord);
TERRACE_CALLS_ALIKE(event_synchronize, cuEventSynchronize);
TERRACE_CALLS_ALIKE(copy_to_host, cuMemcpyDtoHAsync);
TERRACE_CALLS_ALIKE(copy_to_device, cuMemcpyHtoDAsync);
TERRACE_CALLS_ALIKE(host_register, cuMemHostRegister);
TERRACE_CALLS_ALIKE(host_unregister, cuMemHostUnregister);
TERRACE_CALLS_ALIKE(pointer_attribute, cuPointerGetAttribute);

}  // namespace
}  // namespace terrace
