#include "tests/tidy/prose.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "tests/tidy/source_text.h"

namespace terrace::tidy {
namespace {

constexpr std::size_t kShortestString = 18;

// Replaces the text between backticks by x, and a link by its text.
std::string without_code_and_links(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = text.find('`', 1);
    if (text.front() == '`' && end != std::string_view::npos) {
      out += "`x`";
      text.remove_prefix(end + 1);
      continue;
    }
    if (text.starts_with("](") && text.find(')') != std::string_view::npos) {
      text.remove_prefix(text.find(')') + 1);
      continue;
    }
    if (text.front() != '[') out += text.front();
    text.remove_prefix(1);
  }
  return out;
}

// Returns where the first sentence ends: behind its mark, if a capital or code follows.
std::size_t end_of_sentence(std::string_view text) {
  for (std::size_t at = 0; at + 2 < text.size(); ++at) {
    if (std::string_view(".!?:;").find(text[at]) == std::string_view::npos || text[at + 1] != ' ') {
      continue;
    }
    const std::size_t next = std::min(text.find_first_not_of(' ', at + 1), text.size() - 1);
    if (text[next] == '`' || std::isupper(static_cast<unsigned char>(text[next])) != 0) {
      return at + 1;
    }
  }
  return text.size();
}

// Gathers lines into paragraphs, and paragraphs into sentences.
class Paragraphs {
 public:
  void add(int line, std::string_view text) {
    if (paragraph_.empty()) begin_ = line;
    if (!paragraph_.empty()) paragraph_ += ' ';
    paragraph_ += trim(text);
  }

  void end() {
    const std::string plain = without_code_and_links(paragraph_);
    std::string_view rest = trim(plain);
    while (!rest.empty()) {
      const std::size_t size = end_of_sentence(rest);
      sentences_.push_back({begin_, std::string(trim(rest.substr(0, size)))});
      rest = trim(rest.substr(size));
    }
    paragraph_.clear();
  }

  void add_alone(int line, std::string_view text) {
    end();
    add(line, text);
    end();
  }

  std::vector<Sentence> take() {
    end();
    return std::move(sentences_);
  }

 private:
  std::vector<Sentence> sentences_;
  std::string paragraph_;
  int begin_ = 1;
};

// Returns a list item's text, if the line begins one.
std::optional<std::string_view> item_of(std::string_view line) {
  const std::string_view text = trim(line);
  if (text.starts_with("* ") || text.starts_with("- ")) return text.substr(2);
  const std::size_t digits = text.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos) return std::nullopt;
  if (!text.substr(digits).starts_with(". ")) return std::nullopt;
  return text.substr(digits + 2);
}

// Adds the cells of a table's row that have more than three words.
void add_cells(int line, std::string_view row, Paragraphs& out) {
  while (!row.empty()) {
    const std::size_t end = std::min(row.find('|'), row.size());
    const std::string_view cell = trim(row.substr(0, end));
    if (std::count(cell.begin(), cell.end(), ' ') >= 3) out.add_alone(line, cell);
    row.remove_prefix(std::min(end + 1, row.size()));
  }
}

std::vector<Sentence> sentences_of_document(std::string_view text) {
  Paragraphs out;
  bool fenced = false;
  int number = 0;
  for (const std::string_view line : split_lines(text)) {
    ++number;
    const std::string_view inside = trim(line);
    const bool fence = inside.starts_with("```");
    fenced = fence ? !fenced : fenced;
    if (fence || fenced || line.starts_with("    ") || inside.empty() || inside.starts_with('#')) {
      out.end();
    } else if (inside.starts_with('|')) {
      out.end();
      add_cells(number, inside, out);
    } else {
      const std::optional<std::string_view> item = item_of(line);
      if (item) out.end();
      out.add(number, item.value_or(inside));
    }
  }
  return out.take();
}

// Adds the strings of a line that are long enough to be sentences.
void add_strings(int number, std::string_view line, Paragraphs& out) {
  for (std::size_t open = line.find('"'); open != std::string_view::npos;) {
    std::size_t close = open + 1;
    while (close < line.size() && line[close] != '"') close += line[close] == '\\' ? 2U : 1U;
    if (close >= line.size()) return;
    const std::string_view string = line.substr(open + 1, close - open - 1);
    if (string.size() >= kShortestString && string.find(' ') != std::string_view::npos) {
      out.add_alone(number, string);
    }
    open = line.find('"', close + 1);
  }
}

std::vector<Sentence> sentences_of_source(std::string_view text, std::string_view mark) {
  Paragraphs out;
  int number = 0;
  const std::string spaced = std::string(mark) + " ";
  for (const std::string_view line : split_lines(text)) {
    ++number;
    const std::string_view inside = trim(line);
    if (inside.starts_with(spaced)) {
      out.add(number, inside.substr(mark.size()));
      continue;
    }
    out.end();
    const std::size_t place = inside.find(spaced);
    const std::string_view comment =
        place == std::string_view::npos ? std::string_view{} : inside.substr(place + mark.size());
    if (!comment.empty() && comment.find('"') == std::string_view::npos) {
      out.add_alone(number, comment);
    }
    add_strings(number, line, out);
  }
  return out.take();
}

}  // namespace

std::vector<Sentence> sentences_of(std::string_view path, std::string_view text) {
  if (path.ends_with(".md")) return sentences_of_document(text);
  const bool is_cpp = path.ends_with(".h") || path.ends_with(".cc") || path.ends_with(".cu") ||
                      path.ends_with(".cuh");
  return sentences_of_source(text, is_cpp ? "//" : "#");
}

}  // namespace terrace::tidy
