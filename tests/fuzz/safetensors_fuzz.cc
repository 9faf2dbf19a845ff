#include <vector>

#include "runtime/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

// Reads a safetensors file: its header, and the bytes of each tensor that the header names.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace terrace;
  static const fuzz::Folder folder;
  const std::string path = folder.write("a.safetensors", fuzz::text_of(data, size));
  fuzz::may_refuse([&] {
    const SafetensorsFile file(path);
    for (const SafetensorsTensor& tensor : file.header().tensors) {
      fuzz::expect(tensor.size_bytes() <= size, "a tensor is in the file");
      fuzz::expect(tensor.elements() * bits_of(tensor.type) == 8 * tensor.size_bytes(),
                   "a tensor has the bytes of its elements");
      std::vector<std::byte> bytes(tensor.size_bytes());
      file.read(tensor, 0, bytes);
    }
  });
  return 0;
}
