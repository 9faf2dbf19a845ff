#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "runtime/tokenizer/tokenizer.h"

namespace terrace {
namespace {

constexpr std::int64_t kBytes = 256;

class BytesTokenizer final : public Tokenizer {
 public:
  std::int64_t vocabulary() const override { return kBytes; }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  }

  void encode_with_ends(std::string_view text, std::vector<std::int32_t>& ids,
                        std::vector<std::size_t>& ends) const override {
    encode(text, ids);
    for (std::size_t end = 1; end <= text.size(); ++end) ends.push_back(end);
  }
  std::vector<std::string> special_texts() const override { return {}; }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= kBytes) {
        throw ConfigError(fmt::format("id {} is not a byte", id),
                          "decode it with the tokenizer that made it");
      }
      text.push_back(static_cast<char>(id));
    }
    return text;
  }

  std::optional<std::int32_t> begin_token() const override { return std::nullopt; }
  std::optional<std::int32_t> end_token() const override { return std::nullopt; }
  std::size_t find_cut(std::string_view text, std::size_t from) const override {
    return std::min(from, text.size());
  }
};

}  // namespace

std::size_t Tokenizer::find_cut(std::string_view text, std::size_t) const { return text.size(); }

std::unique_ptr<Tokenizer> make_bytes_tokenizer() { return std::make_unique<BytesTokenizer>(); }

}  // namespace terrace
