#pragma once

#include <array>
#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <vector>

// A strict check of the XML that pages of reports are written in.
namespace terrace::report {

class XmlCheck {
 public:
  explicit XmlCheck(std::string_view text) : text_(text) {}

  // Returns the first problem, with the text around it; empty for a well-formed text whose ids are
  // unique and whose references to ids lead somewhere.
  std::string problem() {
    constexpr std::string_view kDocument = "<!DOCTYPE html>";
    if (text_.starts_with(kDocument)) at_ = kDocument.size();
    while (at_ < text_.size() && problem_.empty()) {
      if (text_[at_] == '<') {
        text_[at_ + 1] == '/' ? end_element() : begin_element();
      } else {
        check_character();
      }
    }
    if (problem_.empty() && !open_.empty()) fail("not closed: " + open_.back());
    for (const std::string& id : referenced_) {
      if (problem_.empty() && !ids_.contains(id)) fail("no element has the id " + id);
    }
    return problem_;
  }

  const std::multiset<std::string>& elements() const { return elements_; }

 private:
  void fail(const std::string& what) {
    problem_ = what + " near: " + std::string(text_.substr(at_ < 60 ? 0 : at_ - 60, 120));
  }

  void check_character() {
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (c < 0x20 && c != '\n' && c != '\t' && c != '\r') return fail("a control character");
    if (c == '&') {
      constexpr auto kAllowed =
          std::to_array<std::string_view>({"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"});
      for (const std::string_view entity : kAllowed) {
        if (text_.substr(at_).starts_with(entity)) {
          at_ += entity.size();
          return;
        }
      }
      return fail("an unknown entity");
    }
    ++at_;
  }

  std::string name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  text_[at_] == '-' || text_[at_] == ':')) {
      ++at_;
    }
    if (begin == at_) fail("no name");
    return std::string(text_.substr(begin, at_ - begin));
  }

  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }

  void end_element() {
    at_ += 2;
    const std::string closed = name();
    if (!problem_.empty()) return;
    if (open_.empty() || open_.back() != closed) return fail("closes " + closed);
    if (at_ >= text_.size() || text_[at_] != '>') return fail("no > after " + closed);
    ++at_;
    open_.pop_back();
  }

  void begin_element() {
    ++at_;
    const std::string element = name();
    elements_.insert(element);
    std::set<std::string> attributes;
    while (problem_.empty()) {
      skip_space();
      if (at_ >= text_.size()) return fail("ends inside " + element);
      if (text_[at_] == '>') {
        ++at_;
        open_.push_back(element);
        return;
      }
      if (text_.substr(at_).starts_with("/>")) {
        at_ += 2;
        return;
      }
      const std::string attribute = name();
      if (problem_.empty() && !attributes.insert(attribute).second) fail("twice: " + attribute);
      if (problem_.empty()) read_value(attribute);
    }
  }

  void read_value(const std::string& attribute) {
    if (!text_.substr(at_).starts_with("=\"")) return fail("no quoted value of " + attribute);
    at_ += 2;
    const std::size_t begin = at_;
    while (problem_.empty() && at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '<') return fail("< in the value of " + attribute);
      check_character();
    }
    const std::string value(text_.substr(begin, at_ - begin));
    ++at_;
    if (attribute == "id" && !ids_.insert(value).second) fail("a second id " + value);
    if (attribute == "href" && value.starts_with('#')) referenced_.push_back(value.substr(1));
    if (attribute == "aria-labelledby") {
      const std::size_t space = value.find(' ');
      referenced_.push_back(value.substr(0, space));
      if (space != std::string::npos) referenced_.push_back(value.substr(space + 1));
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string problem_;
  std::vector<std::string> open_;
  std::set<std::string> ids_;
  std::vector<std::string> referenced_;
  std::multiset<std::string> elements_;
};

// Returns what is wrong with the text; empty where it is well-formed.
inline std::string problem_of_xml(std::string_view text) { return XmlCheck(text).problem(); }

}  // namespace terrace::report
