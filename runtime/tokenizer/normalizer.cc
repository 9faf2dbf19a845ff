#include "runtime/tokenizer/normalizer.h"

#include <utility>

#include "runtime/tokenizer/nfc.h"

namespace terrace {
namespace {

class NfcNormalizer final : public Normalizer {
 public:
  explicit NfcNormalizer(const UnicodeClasses& classes) : classes_(classes) {}
  void append(std::string_view text, std::string& out) const override {
    append_nfc(classes_, text, out);
  }
  bool works_by_line() const override { return true; }
  bool composes() const override { return true; }

 private:
  const UnicodeClasses& classes_;
};

class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void append(std::string_view text, std::string& out) const override {
    if (text.empty()) return;
    out += prefix_;
    out += text;
  }
  bool works_by_line() const override { return false; }
  bool composes() const override { return false; }

 private:
  std::string prefix_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(std::string pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void append(std::string_view text, std::string& out) const override {
    std::size_t done = 0;
    for (std::size_t found = text.find(pattern_); found != std::string_view::npos;
         found = text.find(pattern_, done)) {
      out += text.substr(done, found - done);
      out += content_;
      done = found + pattern_.size();
    }
    out += text.substr(done);
  }
  bool works_by_line() const override { return false; }
  bool composes() const override { return false; }

 private:
  std::string pattern_;
  std::string content_;
};

}  // namespace

std::unique_ptr<Normalizer> make_nfc_normalizer(const UnicodeClasses& classes) {
  return std::make_unique<NfcNormalizer>(classes);
}

std::unique_ptr<Normalizer> make_prepend_normalizer(std::string prefix) {
  return std::make_unique<PrependNormalizer>(std::move(prefix));
}

std::unique_ptr<Normalizer> make_replace_normalizer(std::string pattern, std::string content) {
  return std::make_unique<ReplaceNormalizer>(std::move(pattern), std::move(content));
}

}  // namespace terrace
