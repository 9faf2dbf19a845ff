#include "tests/tidy/source_text.h"

#include <algorithm>
#include <cctype>

namespace terrace::tidy {
namespace {

bool is_word_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Walks over the text once and blanks comments, and literals where asked.
class Blanker {
 public:
  Blanker(std::string_view text, bool literals) : text_(text), out_(text), literals_(literals) {}

  std::string run() {
    while (at_ < text_.size()) step();
    return std::move(out_);
  }

 private:
  void step() {
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with("//")) {
      blank_to(end_of_line());
    } else if (rest.starts_with("/*")) {
      const std::size_t end = text_.find("*/", at_ + 2);
      blank_to(end == std::string_view::npos ? text_.size() : end + 2);
    } else if (rest.starts_with("R\"") && (at_ == 0 || !is_word_character(text_[at_ - 1]))) {
      raw_string();
    } else if (rest.front() == '"' || (rest.front() == '\'' && !digit_separator())) {
      literal(rest.front());
    } else {
      ++at_;
    }
  }

  bool digit_separator() const {
    return at_ > 0 && std::isxdigit(static_cast<unsigned char>(text_[at_ - 1])) != 0 &&
           at_ + 1 < text_.size() && std::isxdigit(static_cast<unsigned char>(text_[at_ + 1])) != 0;
  }

  std::size_t end_of_line() const { return std::min(text_.find('\n', at_), text_.size()); }

  void literal(char quote) {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote && text_[end] != '\n') {
      end += text_[end] == '\\' ? 2 : 1;
    }
    end = std::min(end, text_.size());
    ++at_;
    if (literals_) blank_to(end);
    at_ = std::min(end + 1, text_.size());
  }

  void raw_string() {
    const std::size_t open = text_.find('(', at_);
    if (open == std::string_view::npos) {
      at_ = text_.size();
      return;
    }
    const std::string close = ")" + std::string(text_.substr(at_ + 2, open - at_ - 2)) + "\"";
    const std::size_t found = text_.find(close, open);
    const std::size_t end = found == std::string_view::npos ? text_.size() : found + close.size();
    at_ += 2;
    if (literals_) blank_to(end - (found == std::string_view::npos ? 0 : 1));
    at_ = end;
  }

  void blank_to(std::size_t end) {
    for (; at_ < end; ++at_) {
      if (out_[at_] != '\n') out_[at_] = ' ';
    }
  }

  std::string_view text_;
  std::string out_;
  bool literals_;
  std::size_t at_ = 0;
};

}  // namespace

std::string blank_comments(std::string_view text) { return Blanker(text, false).run(); }

std::string blank_comments_and_literals(std::string_view text) { return Blanker(text, true).run(); }

std::string blank_directives(std::string_view text) {
  std::string out(text);
  bool inside = false;
  std::size_t begin = 0;
  for (const std::string_view line : split_lines(text)) {
    inside = inside || trim(line).starts_with('#');
    if (inside) std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(begin), line.size(), ' ');
    inside = inside && line.ends_with('\\');
    begin += line.size() + 1;
  }
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

bool has_word(std::string_view line, std::string_view word) {
  for (std::size_t at = line.find(word); at != std::string_view::npos;
       at = line.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool starts = at == 0 || !is_word_character(line[at - 1]);
    if (starts && (end == line.size() || !is_word_character(line[end]))) return true;
  }
  return false;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

}  // namespace terrace::tidy
