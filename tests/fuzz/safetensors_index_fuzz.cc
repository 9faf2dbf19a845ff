#include "runtime/checkpoint/hf_index.h"
#include "runtime/checkpoint/hf_weight_files.h"
#include "tests/fuzz/fuzz_input.h"

// Reads model.safetensors.index.json. No name may lead out of the directory.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace terrace;
  static const fuzz::Folder folder;
  folder.write(kHfIndexFile, fuzz::text_of(data, size));
  fuzz::may_refuse([&] {
    for (const std::string& name : read_hf_index(folder.path()).files()) {
      fuzz::expect(
          name.find('/') == std::string::npos && !name.empty() && name != "." && name != "..",
          "an index names files of its directory");
    }
  });
  return 0;
}
