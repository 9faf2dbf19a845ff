#include "runtime/jinja/python_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "runtime/jinja/errors.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace::jinja {
namespace {

// Returns repr() of a number: the shortest digits that read as the same number, with an exponent
// below 1e-4 and from 1e16 on.
std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                 std::chars_format::scientific)
                       .ptr;
  const std::string scientific(buffer.data(), end);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  constexpr int kFixedFrom = -4;
  constexpr int kFixedBelow = 16;
  if (exponent < kFixedFrom || exponent >= kFixedBelow) return scientific;
  const auto fixed_end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), number, std::chars_format::fixed)
          .ptr;
  std::string fixed(buffer.data(), fixed_end);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

// Returns whether repr() shows the code point as it is: str.isprintable().
bool is_printable(char32_t code_point) {
  if (code_point == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string escaped(char32_t code_point) {
  const auto number = static_cast<std::uint32_t>(code_point);
  if (number < 0x100) return fmt::format("\\x{:02x}", number);
  if (number < 0x10000) return fmt::format("\\u{:04x}", number);
  return fmt::format("\\U{:08x}", number);
}

std::string text_repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const std::string_view bytes = text.substr(at, point.size_bytes);
    at += point.size_bytes;
    if (point.value == static_cast<char32_t>(quote) || point.value == '\\') {
      out += '\\';
      out += bytes;
    } else if (point.value == '\n') {
      out += "\\n";
    } else if (point.value == '\r') {
      out += "\\r";
    } else if (point.value == '\t') {
      out += "\\t";
    } else if (is_printable(point.value)) {
      out += bytes;
    } else {
      out += escaped(point.value);
    }
  }
  return out + quote;
}

std::string entries_repr(const Mapping& mapping) {
  std::string out = "{";
  for (const auto& [key, value] : mapping.entries()) {
    if (out.size() > 1) out += ", ";
    out += repr(key) + ": " + repr(value);
  }
  return out + "}";
}

std::string list_repr(const List& list) {
  if (list.kind == List::Kind::kRange || list.is_view()) {
    throw RenderError(
        "printing a range, or the keys, values or items of a mapping, is not supported; put it "
        "through the filter list first");
  }
  std::string out = list.is_tuple() ? "(" : "[";
  for (const Value& item : list.items) {
    if (out.size() > 1) out += ", ";
    out += repr(item);
  }
  if (list.is_tuple() && list.items.size() == 1) out += ",";
  return out + (list.is_tuple() ? ")" : "]");
}

// Writes JSON as json.dumps() does.
class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value) {
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.boolean() ? "true" : "false";
    } else if (value.is_integer()) {
      out_ += fmt::format("{}", value.integer());
    } else if (value.is_float()) {
      write_float(value.number());
    } else if (value.is_text()) {
      write_text(value.text());
    } else if (value.is_markup()) {
      write_text(value.markup());
    } else if (value.is_list() &&
               (value.list().is_tuple() || value.list().kind == List::Kind::kList)) {
      write_list(value.items());
    } else if (value.is_mapping()) {
      write_mapping(value.mapping());
    } else {
      throw RenderError(
          fmt::format("a value of type {} cannot be written as JSON", value.type_name()));
    }
  }
  std::string take() { return std::move(out_); }

 private:
  void write_float(double number) {
    if (std::isnan(number)) {
      out_ += "NaN";
    } else if (std::isinf(number)) {
      out_ += number > 0 ? "Infinity" : "-Infinity";
    } else {
      out_ += float_text(number);
    }
  }

  void write_text(std::string_view text) {
    out_ += '"';
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint point = code_point_at(text, at);
      write_code_point(point.value, text.substr(at, point.size_bytes));
      at += point.size_bytes;
    }
    out_ += '"';
  }

  void write_code_point(char32_t point, std::string_view bytes) {
    constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
    constexpr std::string_view kLetters = "\"\\nrtfb";
    const std::size_t escape =
        point < 0x80 ? kEscaped.find(static_cast<char>(point)) : std::string_view::npos;
    const auto number = static_cast<std::uint32_t>(point);
    if (escape != std::string_view::npos) {
      out_ += '\\';
      out_ += kLetters[escape];
    } else if (number < 0x20 || (style_.ensure_ascii && number >= 0x7F && number < 0x10000)) {
      // json.dumps() leaves U+007F as it is.
      out_ += number == 0x7F ? std::string(bytes) : fmt::format("\\u{:04x}", number);
    } else if (style_.ensure_ascii && number >= 0x10000) {
      const std::uint32_t above = number - 0x10000;
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (above >> 10), 0xDC00 + (above & 0x3FF));
    } else {
      out_ += bytes;
    }
  }

  void end_line() {
    if (!style_.is_indented) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += style_.indent;
  }

  void write_list(const std::vector<Value>& items) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.between;
      end_line();
      write(items[i]);
    }
    --level_;
    end_line();
    out_ += ']';
  }

  static std::string key_of(const Value& key) {
    if (key.is_text()) return key.text();
    if (key.is_bool()) return key.boolean() ? "true" : "false";
    if (key.is_none()) return "null";
    if (key.is_number()) return str(key);
    throw RenderError(fmt::format("a key of type {} cannot be written as JSON", key.type_name()));
  }

  static void sort_by_key(std::vector<const Mapping::Entry*>& entries) {
    if (entries.size() < 2) return;
    const auto all_are = [&entries](auto is) {
      return std::ranges::all_of(entries, [is](const auto* entry) { return (entry->first.*is)(); });
    };
    if (!all_are(&Value::is_text) && !all_are(&Value::is_number)) {
      throw RenderError("tojson cannot sort keys of different types");
    }
    std::ranges::stable_sort(entries, [](const auto* a, const auto* b) {
      if (a->first.is_number()) return order_of_numbers(a->first, b->first) < 0;
      return a->first.text() < b->first.text();
    });
  }

  void write_mapping(const Mapping& mapping) {
    if (mapping.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const Mapping::Entry*> entries;
    for (const Mapping::Entry& entry : mapping.entries()) entries.push_back(&entry);
    if (style_.sorts_keys) sort_by_key(entries);
    out_ += '{';
    ++level_;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += style_.between;
      end_line();
      write_text(key_of(entries[i]->first));
      out_ += style_.after_key;
      write(entries[i]->second);
    }
    --level_;
    end_line();
    out_ += '}';
  }

  const JsonStyle& style_;
  std::string out_;
  int level_ = 0;
};

// Returns whether strip() removes the code point.
bool is_stripped(char32_t point, std::string_view bytes,
                 std::optional<std::string_view> characters) {
  if (!characters) return is_space(point);
  return characters->find(bytes) != std::string_view::npos;
}

}  // namespace

std::string str(const Value& value) {
  if (value.is_text()) return value.text();
  if (value.is_markup()) return value.markup();
  if (value.is_undefined()) return "";
  return repr(value);
}

std::string repr(const Value& value) {
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.boolean() ? "True" : "False";
  if (value.is_integer()) return fmt::format("{}", value.integer());
  if (value.is_float()) return float_text(value.number());
  if (value.is_text()) return text_repr(value.text());
  if (value.is_list()) return list_repr(value.list());
  if (value.is_mapping()) return entries_repr(value.mapping());
  if (value.is_undefined()) return "Undefined";
  throw RenderError(fmt::format("printing a value of type {} is not supported", value.type_name()));
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value);
  return writer.take();
}

bool is_space(char32_t point) {
  return (point >= 0x09 && point <= 0x0D) || (point >= 0x1C && point <= 0x20) || point == 0x85 ||
         point == 0xA0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200A) ||
         point == 0x2028 || point == 0x2029 || point == 0x202F || point == 0x205F ||
         point == 0x3000;
}

std::size_t find_in(std::string_view text, std::string_view wanted, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* const found =
      memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t length_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = code_point_at(text, at).size_bytes;
    characters.push_back(text.substr(at, size));
    at += size;
  }
  return characters;
}

std::string_view strip_front(std::string_view text, std::optional<std::string_view> characters) {
  while (!text.empty()) {
    const CodePoint point = code_point_at(text, 0);
    if (!is_stripped(point.value, text.substr(0, point.size_bytes), characters)) break;
    text.remove_prefix(point.size_bytes);
  }
  return text;
}

std::string_view strip_end(std::string_view text, std::optional<std::string_view> characters) {
  while (!text.empty()) {
    const CodePoint point = code_point_before(text, text.size());
    if (!is_stripped(point.value, text.substr(text.size() - point.size_bytes), characters)) break;
    text.remove_suffix(point.size_bytes);
  }
  return text;
}

}  // namespace terrace::jinja
