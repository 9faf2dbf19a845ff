#include "runtime/report/html_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace terrace::report {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Characters that mean something in HTML, and what stands for them.
constexpr std::string_view kSpecial = "&<>\"'";
constexpr auto kEntities =
    std::to_array<std::string_view>({"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"});

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  // 0: no character begins here
};

// Returns the number of bytes of a character that begins with `lead`; 0 where none does.
std::size_t bytes_of_lead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  return lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
}

Character character_at(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const std::size_t bytes = bytes_of_lead(lead);
  if (bytes == 0 || at + bytes > text.size()) return {};
  if (bytes == 1) return {lead, 1};
  std::uint32_t code = lead & (0xFFU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[at + i]);
    if ((next & 0xC0U) != 0x80) return {};
    code = (code << 6) | (next & 0x3FU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kLeast[bytes] || is_surrogate || code > 0x10FFFF) return {};
  return {code, bytes};
}

bool is_allowed_in_xml(std::uint32_t code) {
  if (code < 0x20) return code == '\t' || code == '\n' || code == '\r';
  if (code >= 0x7F && code < 0xA0) return false;
  return code != 0xFFFE && code != 0xFFFF;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    const bool is_valid = character.bytes != 0 && is_allowed_in_xml(character.code);
    valid += is_valid ? text.substr(at, character.bytes) : kReplacement;
    at += std::max<std::size_t>(character.bytes, 1);
  }
  return valid;
}

std::string escaped(std::string_view text) {
  std::string html;
  html.reserve(text.size());
  for (const char c : valid_utf8(text)) {
    const std::size_t special = kSpecial.find(c);
    if (special == std::string_view::npos) {
      html += c;
    } else {
      html += kEntities.at(special);
    }
  }
  return html;
}

std::string number_element(double value, std::string_view shown) {
  return fmt::format(R"(<data value="{}">{}</data>)", value, escaped(shown));
}

std::string curve_key(std::string_view css_class) {
  return fmt::format(
      "<svg class=\"key\" viewBox=\"0 0 26 10\" aria-hidden=\"true\"><line class=\"{}\" x1=\"0\" "
      "x2=\"26\" y1=\"5\" y2=\"5\"/></svg>",
      css_class);
}

std::string area_key(std::string_view css_class) {
  return fmt::format(
      "<svg class=\"key area\" viewBox=\"0 0 14 10\" aria-hidden=\"true\"><rect class=\"{}\" "
      "width=\"14\" height=\"10\"/></svg>",
      css_class);
}

std::string paragraph(std::string_view html, std::string_view css_class) {
  if (css_class.empty()) return fmt::format("<p>{}</p>\n", html);
  return fmt::format("<p class=\"{}\">{}</p>\n", css_class, html);
}

std::string bullet_list(const std::vector<std::string>& items, std::string_view css_class) {
  if (items.empty()) return "";
  std::string html =
      css_class.empty() ? std::string("<ul>\n") : fmt::format("<ul class=\"{}\">\n", css_class);
  for (const std::string& item : items) html += fmt::format("<li>{}</li>\n", item);
  return html + "</ul>\n";
}

HtmlTable::HtmlTable(std::string caption, std::vector<Column> columns)
    : caption_(std::move(caption)), columns_(std::move(columns)) {}

void HtmlTable::add(std::vector<std::string> cells, std::string_view css_class) {
  cells.resize(columns_.size());
  rows_ += css_class.empty() ? std::string("<tr>") : fmt::format("<tr class=\"{}\">", css_class);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const char* const number = columns_[i].is_number ? " class=\"n\"" : "";
    rows_ += i == 0 ? fmt::format("<th scope=\"row\">{}</th>", cells[i])
                    : fmt::format("<td{}>{}</td>", number, cells[i]);
  }
  rows_ += "</tr>\n";
}

std::string HtmlTable::text() const {
  if (rows_.empty()) return "";
  const std::string caption = escaped(caption_);
  std::string html = fmt::format(
      "<div class=\"scroll\" role=\"region\" aria-label=\"{0}\" tabindex=\"0\">"
      "<table><caption>{0}</caption>\n<thead><tr>",
      caption);
  for (const Column& column : columns_) {
    html += fmt::format("<th scope=\"col\"{}>{}</th>", column.is_number ? " class=\"n\"" : "",
                        escaped(column.title));
  }
  return html + "</tr></thead>\n<tbody>\n" + rows_ + "</tbody></table></div>\n";
}

}  // namespace terrace::report
