#include "runtime/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

// Code points below U+0300 are in form C, and their first bytes are all lower than this.
constexpr unsigned char kFirstByteOfMarks = 0xCC;
// No code point's canonical decomposition has more code points than this.
constexpr std::size_t kDecomposedMax = 8;

utf8proc_propval_t vendor_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Brings runs of code points into form C.
class NfcRun {
 public:
  explicit NfcRun(const UnicodeClasses& classes) : classes_(classes) {}

  void append(std::string_view text, std::string& out) {
    decompose(text);
    reorder();
    auto begin = points_.begin();
    while (begin != points_.end()) {
      // A code point that has class 0 only here joins nothing, and nothing joins it.
      const auto end = std::find_if(begin, points_.end(), [&](auto p) { return is_barrier(p); });
      compose({begin, end}, out);
      if (end == points_.end()) return;
      append_utf8(static_cast<char32_t>(*end), out);
      begin = end + 1;
    }
  }

 private:
  using Point = utf8proc_int32_t;

  bool is_barrier(Point point) const { return vendor_class(point) != 0 && class_of(point) == 0; }
  utf8proc_propval_t class_of(Point point) const {
    const bool is_mark = classes_.is(static_cast<char32_t>(point), CodePointClass::kMark);
    return is_mark ? vendor_class(point) : utf8proc_propval_t{0};
  }

  void decompose(std::string_view text) {
    points_.clear();
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint code_point = code_point_at(text, at);
      at += code_point.size_bytes;
      std::array<Point, kDecomposedMax> parts;
      int bound_class = 0;
      const utf8proc_ssize_t count =
          utf8proc_decompose_char(static_cast<Point>(code_point.value), parts.data(), parts.size(),
                                  UTF8PROC_DECOMPOSE, &bound_class);
      TERRACE_CHECK(count > 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()));
      points_.insert(points_.end(), parts.begin(), parts.begin() + count);
    }
  }

  // Sorts each run of marks by their classes.
  void reorder() {
    auto begin = points_.begin();
    while (begin != points_.end()) {
      const auto is_starter = [&](Point point) { return class_of(point) == 0; };
      begin = std::find_if_not(begin, points_.end(), is_starter);
      const auto end = std::find_if(begin, points_.end(), is_starter);
      std::stable_sort(begin, end, [&](Point a, Point b) { return class_of(a) < class_of(b); });
      begin = end;
    }
  }

  void compose(std::vector<Point> points, std::string& out) const {
    if (points.empty()) return;
    const utf8proc_ssize_t count = utf8proc_normalize_utf32(
        points.data(), static_cast<utf8proc_ssize_t>(points.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    TERRACE_CHECK(count > 0);
    points.resize(static_cast<std::size_t>(count));
    for (const Point point : points) append_utf8(static_cast<char32_t>(point), out);
  }

  const UnicodeClasses& classes_;
  std::vector<Point> points_;
};

// Finds code points that NFC may change, and the boundaries around them.
class NfcScan {
 public:
  NfcScan(const UnicodeClasses& classes, std::string_view text) : classes_(classes), text_(text) {}

  // Returns the place of the next special code point from `at` on, or the text's size.
  std::size_t next_special(std::size_t at) const {
    while (at < text_.size()) {
      if (static_cast<unsigned char>(text_[at]) < kFirstByteOfMarks) {
        ++at;
        continue;
      }
      const CodePoint code_point = code_point_at(text_, at);
      if (is_special(code_point)) return at;
      at += code_point.size_bytes;
    }
    return at;
  }

  std::size_t end_of_specials(std::size_t at) const {
    while (at < text_.size()) {
      const CodePoint code_point = code_point_at(text_, at);
      if (!is_special(code_point)) break;
      at += code_point.size_bytes;
    }
    return at;
  }

 private:
  bool is_special(const CodePoint& code_point) const {
    return classes_.is(code_point.value, CodePointClass::kNfcSpecial);
  }

  const UnicodeClasses& classes_;
  std::string_view text_;
};

// Does what append_nfc() does. Calls `take(end, changes)` after each part that is added: it ends at
// `end` in the text, and NFC may have changed it.
template <typename Take>
void add_parts(const UnicodeClasses& classes, std::string_view text, std::string& out,
               const Take& take) {
  const NfcScan scan(classes, text);
  NfcRun run(classes);
  std::size_t done = 0;
  while (done < text.size()) {
    const std::size_t special = scan.next_special(done);
    // The code point before it may join it, and nothing before that.
    const std::size_t begin = special == text.size() || special == done
                                  ? special
                                  : special - code_point_before(text, special).size_bytes;
    out += text.substr(done, begin - done);
    take(begin, false);
    const std::size_t end = scan.end_of_specials(special);
    if (end > begin) run.append(text.substr(begin, end - begin), out);
    take(end, true);
    done = end;
  }
}

}  // namespace

void append_nfc(const UnicodeClasses& classes, std::string_view text, std::string& out) {
  add_parts(classes, text, out, [](std::size_t, bool) {});
}

void append_nfc(const UnicodeClasses& classes, std::string_view text, std::string& out,
                std::vector<std::size_t>& ends) {
  std::size_t done = out.size();
  add_parts(classes, text, out, [&](std::size_t end, bool changes) {
    const std::size_t added = out.size() - done;
    for (std::size_t i = 1; i <= added; ++i) ends.push_back(changes ? end : end - added + i);
    done = out.size();
  });
}

}  // namespace terrace
