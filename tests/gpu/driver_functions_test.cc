#include "memory/cuda/driver_functions.h"

#include <cuda.h>

#include <type_traits>

// The functions that are loaded by name take what cuda.h says that they take, as far as a call
// shows it: as many parameters, each as large, pointers where pointers are. It is known when this
// is compiled: the driver is not linked.
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

#define EXPECT_ALIKE(ours, theirs) \
  static_assert(CallsAlike<decltype(DriverFunctions::ours), decltype(&theirs)>::value)

// The header's macros have the names that it gives the versions which are looked up.
EXPECT_ALIKE(init, cuInit);
EXPECT_ALIKE(get_error_string, cuGetErrorString);
EXPECT_ALIKE(device_get, cuDeviceGet);
EXPECT_ALIKE(context_retain, cuDevicePrimaryCtxRetain);
EXPECT_ALIKE(context_release, cuDevicePrimaryCtxRelease);
EXPECT_ALIKE(context_push, cuCtxPushCurrent);
EXPECT_ALIKE(context_pop, cuCtxPopCurrent);
EXPECT_ALIKE(stream_create, cuStreamCreate);
EXPECT_ALIKE(stream_destroy, cuStreamDestroy);
EXPECT_ALIKE(stream_synchronize, cuStreamSynchronize);
EXPECT_ALIKE(stream_wait_event, cuStreamWaitEvent);
EXPECT_ALIKE(event_create, cuEventCreate);
EXPECT_ALIKE(event_destroy, cuEventDestroy);
EXPECT_ALIKE(event_record, cuEventRecord);
EXPECT_ALIKE(event_synchronize, cuEventSynchronize);
EXPECT_ALIKE(copy_to_host, cuMemcpyDtoHAsync);
EXPECT_ALIKE(copy_to_device, cuMemcpyHtoDAsync);
EXPECT_ALIKE(host_register, cuMemHostRegister);
EXPECT_ALIKE(host_unregister, cuMemHostUnregister);
EXPECT_ALIKE(pointer_attribute, cuPointerGetAttribute);

}  // namespace
}  // namespace terrace
