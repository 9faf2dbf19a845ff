#pragma once

#include <string>
#include <string_view>
#include <vector>

// The pieces that pages are made of: HTML that is well-formed XML, too.
namespace terrace::report {

// Returns the text with U+FFFD in place of bytes that are not UTF-8 and of characters that XML does
// not allow.
std::string valid_utf8(std::string_view text);

// Returns plain text as it can stand in an element and between the quotes of an attribute. Its
// bytes are made valid as valid_utf8() does.
std::string escaped(std::string_view text);

// Returns an element that shows a number as `shown` and carries its exact value for programs.
std::string number_element(double value, std::string_view shown);

// Return the mark of a curve and of an area in a legend; the class gives the colour.
std::string curve_key(std::string_view css_class);
std::string area_key(std::string_view css_class);

// Returns a paragraph of HTML.
std::string paragraph(std::string_view html, std::string_view css_class = "");
// Returns a list of HTML items; nothing where there are none.
std::string bullet_list(const std::vector<std::string>& items, std::string_view css_class = "");

// A table with a caption. The first cell of a row is the heading of the row.
class HtmlTable {
 public:
  struct Column {
    std::string title;  // plain text
    bool is_number = false;
  };

  // `caption` is plain text.
  HtmlTable(std::string caption, std::vector<Column> columns);
  // Adds a row of cells, which are HTML; missing ones are empty.
  void add(std::vector<std::string> cells, std::string_view css_class = "");
  bool is_empty() const { return rows_.empty(); }
  // Returns the table, in an element that scrolls if the page is too narrow; nothing without rows.
  std::string text() const;

 private:
  std::string caption_;
  std::vector<Column> columns_;
  std::string rows_;
};

}  // namespace terrace::report
