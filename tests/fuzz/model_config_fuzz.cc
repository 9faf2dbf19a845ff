#include "runtime/model/model_config.h"
#include "tests/fuzz/fuzz_input.h"

// Reads a config.json, as a model's and as a checkpoint's.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace terrace;
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::may_refuse([&] {
    const ModelConfig config = parse_model_config(text, "config.json");
    fuzz::expect(config.vocabulary > 0 && config.positions > 0, "a model has sizes");
    parse_saved_config(config_json_to_save(config), "config.json");
  });
  return 0;
}
