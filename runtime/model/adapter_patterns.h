#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/model_config.h"
#include "runtime/tokenizer/pre_tokenizer.h"

// The layers that the patterns of an adapter's ranks and alphas match. A pattern is one of Python's
// regular expressions. It matches a module if it matches the whole of its name or the end of its
// name after a dot: PEFT's get_pattern_key() calls re.match(rf"(.*\.)?({pattern})$", name).
namespace terrace {

// The patterns of an adapter, compiled. Reads are thread-safe.
class AdapterPatterns {
 public:
  // Throws ConfigError, which names `origin` and the pattern, for a pattern that does not compile.
  AdapterPatterns(const AdapterOptions& options, const std::string& origin);

  // Returns the rank and the alpha of a module; none where no pattern matches its name.
  std::optional<AdapterSize> size_of(std::string_view module) const;

 private:
  template <typename Value>
  struct Rule {
    std::unique_ptr<PatternFinder> finder;
    Value value;
  };

  AdapterSize usual_;
  std::vector<Rule<std::int64_t>> ranks_;
  std::vector<Rule<double>> alphas_;
};

// Returns `config`, which has an adapter, with the sizes of the layers that its patterns match.
// Throws as AdapterPatterns() does.
ModelConfig with_adapter_sizes(ModelConfig config, const std::string& origin);

}  // namespace terrace
