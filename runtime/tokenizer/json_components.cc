#include "runtime/tokenizer/json_components.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "runtime/tokenizer/newer_pattern.h"
#include "runtime/tokenizer/regex_finder.h"
#include "runtime/tokenizer/token_id.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

std::string type_of(const JsonNode& node) { return node.text("type"); }

// Returns the "String" of a pattern. Refuses a "Regex".
std::string literal_of(const JsonNode& node) {
  const JsonNode pattern = node.child("pattern");
  pattern.check_keys({"String", "Regex"});
  if (!pattern.has("String")) pattern.refuse("only patterns of type String are built");
  std::string literal = pattern.text("String");
  if (literal.empty()) pattern.refuse("an empty pattern");
  return literal;
}

void add_normalizers(const JsonNode& node, const UnicodeClasses& classes,
                     std::vector<std::unique_ptr<Normalizer>>& normalizers) {
  const std::string type = type_of(node);
  if (type == "Sequence") {
    node.check_keys({"type", "normalizers"});
    node.child("normalizers").for_each_item([&](const JsonNode& each) {
      add_normalizers(each, classes, normalizers);
    });
  } else if (type == "NFC") {
    node.check_keys({"type"});
    normalizers.push_back(make_nfc_normalizer(classes));
  } else if (type == "Prepend") {
    node.check_keys({"type", "prepend"});
    normalizers.push_back(make_prepend_normalizer(node.text("prepend")));
  } else if (type == "Replace") {
    node.check_keys({"type", "pattern", "content"});
    normalizers.push_back(make_replace_normalizer(literal_of(node), node.text("content")));
  } else {
    node.refuse(fmt::format("the normalizer {} is not built", type));
  }
}

SplitBehavior split_behavior(const JsonNode& node) {
  const std::string name = node.text("behavior");
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  node.refuse(fmt::format("the behavior {} of Split is not built", name));
}

PrependScheme prepend_scheme(const JsonNode& node) {
  if (!node.has("prepend_scheme")) {  // files from before there were schemes
    return node.flag("add_prefix_space", true) ? PrependScheme::kAlways : PrependScheme::kNever;
  }
  const std::string name = node.text("prepend_scheme");
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  node.refuse(fmt::format("the prepend_scheme {} is not built", name));
}

std::string metaspace_replacement(const JsonNode& node) {
  std::string text = node.text("replacement");
  if (text.empty() || code_point_at(text, 0).size_bytes != text.size()) {
    node.corrupt("replacement is not one code point");
  }
  return text;
}

// Adds the steps of a pre-tokenizer.
class PreTokenizerReader {
 public:
  explicit PreTokenizerReader(const UnicodeClasses& classes) : classes_(classes) {}

  void add(const JsonNode& node) {
    const std::string type = type_of(node);
    if (found_.byte_level) node.refuse(fmt::format("{} after ByteLevel is not built", type));
    if (type == "Sequence") {
      node.check_keys({"type", "pretokenizers"});
      node.child("pretokenizers").for_each_item([&](const JsonNode& each) { add(each); });
    } else if (type == "ByteLevel") {
      add_byte_level(node);
    } else if (type == "Split") {
      add_split(node);
    } else if (type == "Digits") {
      node.check_keys({"type", "individual_digits"});
      found_.steps.push_back(make_digits_split(classes_, node.flag("individual_digits", false)));
    } else if (type == "Metaspace") {
      add_metaspace(node);
    } else {
      node.refuse(fmt::format("the pre-tokenizer {} is not built", type));
    }
  }

  PreTokenizerSteps take() {
    found_.cuts_at_lines = has_scanner_ && !looks_far_;
    return std::move(found_);
  }

 private:
  void add_byte_level(const JsonNode& node) {
    node.check_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (node.flag("add_prefix_space", true)) {
      found_.steps.push_back(make_space_prefix());
      looks_far_ = true;
    }
    if (node.flag("use_regex", true)) {
      add_scanner(make_piece_scanner(gpt2_pattern(), classes_));
    }
    found_.byte_level = true;
  }

  void add_scanner(std::unique_ptr<PieceScanner> scanner) {
    // Further scanners see only the pieces of the first.
    if (!has_scanner_) found_.keeps_crlf = scanner->keeps_crlf();
    found_.steps.push_back(make_scanner_split(std::move(scanner)));
    has_scanner_ = true;
  }

  void add_split(const JsonNode& node) {
    node.check_keys({"type", "pattern", "behavior", "invert"});
    const SplitBehavior behavior = split_behavior(node);
    const bool inverted = node.flag("invert", false);
    const JsonNode pattern = node.child("pattern");
    if (pattern.has("String")) {
      looks_far_ = true;
      found_.steps.push_back(make_split(make_literal_finder(literal_of(node)), behavior, inverted));
      return;
    }
    pattern.check_keys({"Regex"});
    const std::string regex = pattern.text("Regex");
    // The known patterns leave no gaps, so their matches are all that there is.
    const bool takes_matches =
        behavior == SplitBehavior::kIsolated || (behavior == SplitBehavior::kRemoved && inverted);
    std::unique_ptr<PieceScanner> scanner =
        takes_matches ? make_piece_scanner(regex, classes_) : nullptr;
    if (scanner != nullptr) {
      return add_scanner(std::move(scanner));
    }
    looks_far_ = true;
    if (has_older_classes(regex)) found_.unknown_patterns.push_back(regex);
    found_.steps.push_back(
        make_split(make_regex_finder(regex, pattern.where()), behavior, inverted));
  }

  void add_metaspace(const JsonNode& node) {
    node.check_keys(
        {"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
    looks_far_ = true;
    found_.steps.push_back(make_metaspace({.replacement = metaspace_replacement(node),
                                           .prepend = prepend_scheme(node),
                                           .split = node.flag("split", true)}));
  }

  const UnicodeClasses& classes_;
  PreTokenizerSteps found_;
  bool has_scanner_ = false;
  bool looks_far_ = false;  // a step may look over the ends of lines
};

// Returns the id of TemplateProcessing's token on one side of the text; none without one.
std::optional<std::int32_t> single_id(const JsonNode& node, const std::vector<std::int32_t>& ids) {
  if (ids.size() > 1) node.refuse("more than one token on one side of the text is not built");
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

AroundText read_template(const JsonNode& node) {
  node.check_keys({"type", "single", "pair", "special_tokens"});
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> behind;
  bool has_text = false;
  node.child("single").for_each_item([&](const JsonNode& item) {
    item.check_keys({"SpecialToken", "Sequence"});
    if (item.has("Sequence")) {
      if (has_text) node.refuse("a template that contains the text twice is not built");
      has_text = true;
      return;
    }
    const std::string name = item.child("SpecialToken").text("id");
    const JsonNode special = node.child("special_tokens").child(name);
    special.child("ids").for_each_item(
        [&](const JsonNode& id) { (has_text ? behind : before).push_back(read_token_id(id)); });
  });
  if (!has_text) node.corrupt("the template has no place for the text");
  return {single_id(node, before), single_id(node, behind)};
}

void add_decoder(const JsonNode& node, TokenDecoding& options, bool& is_fused) {
  const std::string type = type_of(node);
  if (type == "Sequence") {
    node.check_keys({"type", "decoders"});
    node.child("decoders").for_each_item([&](const JsonNode& each) {
      add_decoder(each, options, is_fused);
    });
  } else if (type == "ByteLevel") {
    node.check_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    options.byte_level = true;
  } else if (type == "ByteFallback") {
    node.check_keys({"type"});
    options.byte_fallback = true;
  } else if (type == "Fuse") {
    node.check_keys({"type"});
    is_fused = true;
  } else if (type == "Replace") {
    node.check_keys({"type", "pattern", "content"});
    if (is_fused) node.refuse("the decoder Replace after Fuse is not built");
    options.replaces.emplace_back(literal_of(node), node.text("content"));
  } else if (type == "Strip") {
    node.check_keys({"type", "content", "start", "stop"});
    if (!is_fused) node.refuse("the decoder Strip before Fuse is not built");
    if (node.child("stop").integer() != 0) node.refuse("the decoder Strip at the end is not built");
    options.strip = node.text("content");
    options.strip_count = options.strip.empty() ? 0 : node.child("start").integer();
  } else if (type == "Metaspace") {
    node.check_keys(
        {"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
    const std::string mark = metaspace_replacement(node);
    options.replaces.emplace_back(mark, " ");
    if (prepend_scheme(node) != PrependScheme::kNever) options.first_token_drops = mark;
  } else {
    node.refuse(fmt::format("the decoder {} is not built", type));
  }
}

}  // namespace

std::vector<std::unique_ptr<Normalizer>> read_normalizers(const JsonNode& node,
                                                          const UnicodeClasses& classes) {
  std::vector<std::unique_ptr<Normalizer>> normalizers;
  if (!node.is_null()) add_normalizers(node, classes, normalizers);
  return normalizers;
}

PreTokenizerSteps read_pre_tokenizers(const JsonNode& node, const UnicodeClasses& classes) {
  PreTokenizerReader reader(classes);
  if (!node.is_null()) reader.add(node);
  return reader.take();
}

AroundText read_post_processor(const JsonNode& node) {
  if (node.is_null()) return {};
  const std::string type = type_of(node);
  if (type == "ByteLevel") {
    node.check_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return {};
  }
  if (type == "TemplateProcessing") return read_template(node);
  if (type != "Sequence") node.refuse(fmt::format("the post-processor {} is not built", type));
  node.check_keys({"type", "processors"});
  AroundText around;
  bool has_template = false;
  node.child("processors").for_each_item([&](const JsonNode& each) {
    if (type_of(each) == "ByteLevel") return;
    if (has_template) node.refuse("more than one template is not built");
    has_template = true;
    around = read_post_processor(each);
  });
  return around;
}

TokenDecoding read_decoder(const JsonNode& node) {
  TokenDecoding options;
  bool is_fused = false;
  if (!node.is_null()) add_decoder(node, options, is_fused);
  return options;
}

}  // namespace terrace
