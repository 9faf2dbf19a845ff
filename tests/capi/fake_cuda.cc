#include "tests/capi/fake_cuda.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "memory/cuda/driver_functions.h"

namespace {

using terrace::DriverAddress;

constexpr int kDevices = 2;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr int kIllegalAddress = 700;

[[noreturn]] void misuse(const char* what) {
  std::fprintf(stderr, "the CUDA driver that pretends: %s\n", what);
  std::abort();
}

struct Context {
  int device = 0;
  int retained = 0;
};

// Work in order. A wait for an event first runs the event's stream up to the point where the event
// was recorded.
struct Stream {
  explicit Stream(int of) : device(of) {}

  int device;
  std::int64_t given = 0;
  std::int64_t done = 0;
  std::deque<std::function<void()>> work;

  void give(std::function<void()> next) {
    work.push_back(std::move(next));
    ++given;
  }
  void run_to(std::int64_t position) {
    while (done < position) {
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      ++done;
      next();
    }
  }
};

struct Event {
  int device = 0;
  bool lets_sleep = false;
  std::shared_ptr<Stream> stream;  // null: not recorded
  std::int64_t position = 0;
};

struct Allocation {
  int device = 0;
  std::vector<std::byte> bytes;  // the content behind the host's address
  std::size_t mapped = 0;
};

struct Driver {
  std::recursive_mutex mutex;
  bool is_started = false;
  Context contexts[kDevices] = {{.device = 0}, {.device = 1}};
  std::shared_ptr<Stream> defaults[kDevices] = {std::make_shared<Stream>(0),
                                                std::make_shared<Stream>(1)};
  std::map<void*, std::shared_ptr<Stream>> streams;
  std::set<Stream*> of_driver;  // made by cuStreamCreate
  std::map<void*, std::unique_ptr<Event>> events;
  std::map<const std::byte*, Allocation> memory;
  std::map<const std::byte*, std::size_t> locked;
  bool is_lost = false;
  std::map<std::string, int> failing;
  std::map<std::string, std::int64_t> calls;
  std::int64_t copied_bytes = 0;
};

Driver& driver() {
  static Driver* const kDriver = new Driver;  // outlives everything that ends later
  return *kDriver;
}

thread_local std::vector<Context*> current;

// Returns whether this call is the one that fails.
bool fails(const char* function) {
  ++driver().calls[function];
  if (!driver().is_started && std::strcmp(function, "cuInit") != 0) misuse("cuInit was not called");
  if (driver().is_lost) return true;
  const auto found = driver().failing.find(function);
  if (found == driver().failing.end() || --found->second > 0) return false;
  driver().failing.erase(found);
  return true;
}

const Context& needs_context() {
  if (current.empty()) misuse("no context is current");
  return *current.back();
}

std::shared_ptr<Stream> stream_of(int device, void* handle) {
  if (handle == nullptr) return driver().defaults[device];
  const auto found = driver().streams.find(handle);
  if (found == driver().streams.end()) misuse("there is no such stream");
  if (found->second->device != device) misuse("the stream is of another GPU than the context");
  return found->second;
}

// Returns where the bytes are; null where they are not all in one allocation.
std::byte* bytes_at(const void* address, std::size_t size, int* device = nullptr) {
  const auto* const at = static_cast<const std::byte*>(address);
  auto found = driver().memory.upper_bound(at);
  if (found == driver().memory.begin()) return nullptr;
  --found;
  const auto offset = static_cast<std::size_t>(at - found->first);
  if (offset + size > found->second.bytes.size()) return nullptr;
  if (device != nullptr) *device = found->second.device;
  return found->second.bytes.data() + offset;
}

std::byte* bytes_of_gpu(const void* address, std::size_t size, int device) {
  int owner = -1;
  std::byte* const bytes = bytes_at(address, size, &owner);
  if (bytes == nullptr) misuse("a copy leaves the memory of a GPU");
  if (owner != device) misuse("a copy is on a stream of another GPU than its memory");
  return bytes;
}

void needs_locked(const void* host, std::size_t size) {
  const auto* const at = static_cast<const std::byte*>(host);
  auto found = driver().locked.upper_bound(at);
  if (found == driver().locked.begin()) misuse("a copy uses host memory that is not page-locked");
  --found;
  if (at + size > found->first + found->second) misuse("a copy leaves page-locked memory");
}

const void* pointer(DriverAddress address) {
  return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(address));
}

}  // namespace

extern "C" {

int cuInit(unsigned /*flags*/) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuInit")) return kNoDevice;
  driver().is_started = true;
  return 0;
}

int cuGetErrorString(int error, const char** text) {
  if (error == kIllegalAddress) *text = "an illegal memory access was encountered";
  if (error == kNoDevice) *text = "no CUDA-capable device is detected";
  return error == kIllegalAddress || error == kNoDevice ? 0 : kInvalidValue;
}

int cuDeviceGet(int* device, int ordinal) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuDeviceGet") || ordinal < 0 || ordinal >= kDevices) return kInvalidDevice;
  *device = ordinal;
  return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuDevicePrimaryCtxRetain")) return kIllegalAddress;
  ++driver().contexts[device].retained;
  *context = &driver().contexts[device];
  return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuDevicePrimaryCtxRelease")) return kIllegalAddress;
  if (--driver().contexts[device].retained < 0) misuse("a context is released too often");
  return 0;
}

int cuCtxPushCurrent_v2(void* context) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuCtxPushCurrent")) return kIllegalAddress;
  current.push_back(static_cast<Context*>(context));
  return 0;
}

int cuCtxPopCurrent_v2(void** context) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuCtxPopCurrent")) return kIllegalAddress;
  if (current.empty()) misuse("a context is popped, and none is current");
  *context = current.back();
  current.pop_back();
  return 0;
}

int cuStreamCreate(void** stream, unsigned flags) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuStreamCreate")) return kIllegalAddress;
  if (flags != 1) misuse("the stream would wait for the default stream");
  *stream = fake_cuda_stream(needs_context().device);
  driver().of_driver.insert(driver().streams[*stream].get());
  return 0;
}

int cuStreamDestroy_v2(void* stream) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuStreamDestroy")) return kIllegalAddress;
  driver().of_driver.erase(stream_of(needs_context().device, stream).get());
  fake_cuda_stream_free(stream);
  return 0;
}

int cuStreamSynchronize(void* stream) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuStreamSynchronize")) return kIllegalAddress;
  const std::shared_ptr<Stream> of = stream_of(needs_context().device, stream);
  of->run_to(of->given);
  return 0;
}

int cuStreamWaitEvent(void* stream, void* event, unsigned /*flags*/) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuStreamWaitEvent")) return kIllegalAddress;
  const Event recorded = *driver().events.at(event);
  if (recorded.stream == nullptr) return 0;
  stream_of(needs_context().device, stream)->give([recorded] {
    recorded.stream->run_to(recorded.position);
  });
  return 0;
}

int cuEventCreate(void** event, unsigned flags) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuEventCreate")) return kIllegalAddress;
  if (flags != 2 && flags != 3) misuse("the event takes times");
  auto made = std::make_unique<Event>(
      Event{.device = needs_context().device, .lets_sleep = (flags & 1U) != 0, .stream = nullptr});
  *event = made.get();
  driver().events[*event] = std::move(made);
  return 0;
}

int cuEventDestroy_v2(void* event) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuEventDestroy")) return kIllegalAddress;
  if (driver().events.erase(event) == 0) misuse("an event is destroyed twice");
  return 0;
}

int cuEventRecord(void* event, void* stream) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuEventRecord")) return kIllegalAddress;
  Event& of = *driver().events.at(event);
  if (of.device != needs_context().device) misuse("the event is of another GPU than the context");
  of.stream = stream_of(of.device, stream);
  of.position = of.stream->given;
  return 0;
}

int cuEventSynchronize(void* event) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuEventSynchronize")) return kIllegalAddress;
  needs_context();
  const Event& of = *driver().events.at(event);
  if (!of.lets_sleep) misuse("who waits for the event burns a core");
  if (of.stream != nullptr) of.stream->run_to(of.position);
  return 0;
}

int cuMemcpyDtoHAsync_v2(void* host, DriverAddress from, std::size_t bytes, void* stream) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuMemcpyDtoHAsync")) return kIllegalAddress;
  const int device = needs_context().device;
  bytes_of_gpu(pointer(from), bytes, device);
  needs_locked(host, bytes);
  std::memset(host, 0xA5, bytes);
  driver().copied_bytes += static_cast<std::int64_t>(bytes);
  stream_of(device, stream)->give([=] {
    needs_locked(host, bytes);
    std::memcpy(host, bytes_of_gpu(pointer(from), bytes, device), bytes);
  });
  return 0;
}

int cuMemcpyHtoDAsync_v2(DriverAddress to, const void* host, std::size_t bytes, void* stream) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuMemcpyHtoDAsync")) return kIllegalAddress;
  const int device = needs_context().device;
  bytes_of_gpu(pointer(to), bytes, device);
  needs_locked(host, bytes);
  driver().copied_bytes += static_cast<std::int64_t>(bytes);
  stream_of(device, stream)->give([=] {
    needs_locked(host, bytes);
    std::memcpy(bytes_of_gpu(pointer(to), bytes, device), host, bytes);
  });
  return 0;
}

int cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuMemHostRegister")) return kOutOfMemory;
  needs_context();
  if (flags != 1) misuse("page-locked memory is known to one GPU only");
  driver().locked[static_cast<const std::byte*>(memory)] = bytes;
  return 0;
}

int cuMemHostUnregister(void* memory) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuMemHostUnregister")) return kIllegalAddress;
  if (driver().locked.erase(static_cast<const std::byte*>(memory)) == 0) {
    misuse("memory is unlocked that is not locked");
  }
  return 0;
}

int cuPointerGetAttribute(void* value, int attribute, DriverAddress address) {
  const std::scoped_lock lock(driver().mutex);
  if (fails("cuPointerGetAttribute")) return kIllegalAddress;
  needs_context();
  int device = -1;
  const auto* const at = static_cast<const std::byte*>(pointer(address));
  const bool is_gpu = bytes_at(at, 1, &device) != nullptr;
  const auto range = driver().locked.upper_bound(at);
  const bool is_locked =
      range != driver().locked.begin() && at < std::prev(range)->first + std::prev(range)->second;
  if (!is_gpu && !is_locked) return kInvalidValue;
  const unsigned type = is_gpu ? 2 : 1;
  if (attribute == 2) {
    std::memcpy(value, &type, sizeof type);
  } else if (attribute == 9) {
    std::memcpy(value, &device, sizeof device);
  } else {
    misuse("an attribute of a pointer that this does not know");
  }
  return 0;
}

void* fake_cuda_allocate(int device, std::size_t bytes) {
  const std::scoped_lock lock(driver().mutex);
  Allocation made = {.device = device, .bytes = std::vector<std::byte>(bytes, std::byte{0xCD})};
  made.mapped = (bytes + 4095) / 4096 * 4096;
  void* const address =
      mmap(nullptr, made.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) misuse("no addresses are left");
  driver().memory[static_cast<const std::byte*>(address)] = std::move(made);
  return address;
}

void fake_cuda_free(void* memory) {
  const std::scoped_lock lock(driver().mutex);
  const auto found = driver().memory.find(static_cast<const std::byte*>(memory));
  if (found == driver().memory.end()) misuse("memory is freed that is none");
  munmap(memory, found->second.mapped);
  driver().memory.erase(found);
}

void* fake_cuda_stream(int device) {
  const std::scoped_lock lock(driver().mutex);
  auto made = std::make_shared<Stream>(device);
  void* const handle = made.get();
  driver().streams[handle] = std::move(made);
  return handle;
}

void fake_cuda_stream_free(void* stream) {
  const std::scoped_lock lock(driver().mutex);
  if (driver().streams.erase(stream) == 0) misuse("a stream is destroyed twice");
}

void fake_cuda_write(int device, void* stream, void* to, const void* bytes, std::size_t size) {
  const std::scoped_lock lock(driver().mutex);
  const auto* const begin = static_cast<const std::byte*>(bytes);
  stream_of(device, stream)->give([=, kept = std::vector<std::byte>(begin, begin + size)] {
    std::memcpy(bytes_of_gpu(to, size, device), kept.data(), size);
  });
}

void fake_cuda_read_later(int device, void* stream, void* host, const void* from,
                          std::size_t size) {
  const std::scoped_lock lock(driver().mutex);
  stream_of(device, stream)->give([=] {
    std::memcpy(host, bytes_of_gpu(from, size, device), size);
  });
}

void fake_cuda_peek(void* host, const void* from, std::size_t size) {
  const std::scoped_lock lock(driver().mutex);
  const std::byte* const bytes = bytes_at(from, size);
  if (bytes == nullptr) misuse("memory is looked at that is none");
  std::memcpy(host, bytes, size);
}

void fake_cuda_finish(int device, void* stream) {
  const std::scoped_lock lock(driver().mutex);
  const std::shared_ptr<Stream> of = stream_of(device, stream);
  of->run_to(of->given);
}

void fake_cuda_fail(const char* function, int n) {
  const std::scoped_lock lock(driver().mutex);
  driver().failing.erase(function);
  if (n > 0) driver().failing[function] = n;
}

void fake_cuda_lose(bool is_lost) {
  const std::scoped_lock lock(driver().mutex);
  driver().is_lost = is_lost;
}

std::int64_t fake_cuda_calls(const char* function) {
  const std::scoped_lock lock(driver().mutex);
  return driver().calls[function];
}

std::int64_t fake_cuda_copied_bytes() {
  const std::scoped_lock lock(driver().mutex);
  return driver().copied_bytes;
}

std::int64_t fake_cuda_alive() {
  const std::scoped_lock lock(driver().mutex);
  std::size_t alive = driver().of_driver.size() + driver().events.size() + driver().locked.size();
  alive += current.size();
  for (const Context& context : driver().contexts) {
    alive += static_cast<std::size_t>(context.retained);
  }
  return static_cast<std::int64_t>(alive);
}
}
