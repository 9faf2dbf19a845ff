#pragma once

#include <cstddef>
#include <cstdint>

// A library that pretends to be the CUDA driver, libcuda.so.1, with two GPUs. Their memory is at
// addresses that the host must not touch; copies run only when somebody waits for them, and until
// then the bytes that they will write are filled with 0xA5. A call that no caller of CUDA may make
// ends the program with a message: a copy from or to host memory that is not page-locked, for
// instance. These functions are the tests' view of it. Any thread.
extern "C" {

// Returns memory of a GPU, filled with 0xCD; freed by fake_cuda_free().
void* fake_cuda_allocate(int device, std::size_t bytes);
void fake_cuda_free(void* memory);
// Returns a stream of a GPU, as a caller has one.
void* fake_cuda_stream(int device);
void fake_cuda_stream_free(void* stream);
// Adds work to a stream, as a kernel would: when it runs, it writes these bytes, which are copied
// now. A null stream is the GPU's default stream.
void fake_cuda_write(int device, void* stream, void* to, const void* bytes, std::size_t size);
// Adds work to a stream that reads memory of a GPU when it runs, into memory of the host that lives
// until then.
void fake_cuda_read_later(int device, void* stream, void* host, const void* from, std::size_t size);
// Copies the present content of memory of a GPU, whatever work is still to run.
void fake_cuda_peek(void* host, const void* from, std::size_t size);
// Runs all work that the stream was given.
void fake_cuda_finish(int device, void* stream);

// Makes the n-th call from now on of a function fail with CUDA_ERROR_ILLEGAL_ADDRESS (for
// cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY, for cuInit: CUDA_ERROR_NO_DEVICE); 0: none.
void fake_cuda_fail(const char* function, int n);
// Makes every call fail from now on, as on a GPU that is lost; false: calls work again.
void fake_cuda_lose(bool is_lost);
// Returns the number of calls of one function since the start.
std::int64_t fake_cuda_calls(const char* function);
// Returns the bytes that were copied since the start, in both directions.
std::int64_t fake_cuda_copied_bytes();
// Returns the number of contexts, streams, events and page-locked ranges that were made by the
// driver's functions and are still there, and of contexts that are current on this thread.
std::int64_t fake_cuda_alive();
}
