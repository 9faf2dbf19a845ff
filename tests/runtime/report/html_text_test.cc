#include "runtime/report/html_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/report/well_formed.h"

namespace terrace::report {
namespace {

const std::string kReplacement = "\xEF\xBF\xBD";

TEST(HtmlText, EscapesWhatMeansSomethingInHtml) {
  EXPECT_EQ(escaped("<a href=\"x\" b='y'>&</a>"),
            "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;&lt;/a&gt;");
  EXPECT_EQ(escaped("caf\xC3\xA9 \xF0\x9F\x98\x80"), "caf\xC3\xA9 \xF0\x9F\x98\x80");
}

TEST(HtmlText, ReplacesBytesThatAreNoCharacters) {
  EXPECT_EQ(escaped("a\xFF"
                    "b"),
            "a" + kReplacement + "b");
  EXPECT_EQ(escaped("cut \xE2\x82"), "cut " + kReplacement + kReplacement);
  EXPECT_EQ(escaped("\xC0\xBC"), kReplacement + kReplacement) << "an overlong <";
  EXPECT_EQ(escaped("\xED\xA0\x80"), kReplacement + kReplacement + kReplacement) << "a surrogate";
  EXPECT_EQ(escaped("\xF4\x90\x80\x80").substr(0, 3), kReplacement) << "beyond Unicode";
  EXPECT_EQ(escaped(std::string("a\0b", 3)), "a" + kReplacement + "b");
  EXPECT_EQ(escaped("\x1B[2J"), kReplacement + "[2J");
  EXPECT_EQ(escaped("\xEF\xBF\xBE"), kReplacement) << "not allowed in XML";
  EXPECT_EQ(escaped("tab\tline\n"), "tab\tline\n");
}

TEST(HtmlText, TablesHaveCaptionsAndHeadings) {
  HtmlTable table("Sizes < 1", {{"Name"}, {"Bytes", true}});
  EXPECT_EQ(table.text(), "");
  table.add({"a", "1"});
  table.add({"b"});
  const std::string html = table.text();
  EXPECT_EQ(problem_of_xml(html), "");
  EXPECT_THAT(html, testing::HasSubstr("<caption>Sizes &lt; 1</caption>"));
  EXPECT_THAT(html, testing::HasSubstr("<th scope=\"col\" class=\"n\">Bytes</th>"));
  EXPECT_THAT(html, testing::HasSubstr("<th scope=\"row\">b</th><td class=\"n\"></td>"));
}

TEST(HtmlText, NumbersCarryTheirExactValue) {
  EXPECT_EQ(number_element(2.423185553822827, "2.4232"),
            "<data value=\"2.423185553822827\">2.4232</data>");
}

TEST(WellFormed, FindsWhatIsWrong) {
  EXPECT_EQ(problem_of_xml("<!DOCTYPE html>\n<a b=\"c\"><d/>&amp;</a>"), "");
  for (const char* const text :
       {"<a>", "<a></b>", "<a b=c/>", "<a b=\"c\" b=\"d\"/>", "<a>&nbsp;</a>", "<a>a & b</a>",
        "<a b=\"<\"/>", "<a>\x01</a>", "<a><b id=\"x\"/><b id=\"x\"/></a>", "<a href=\"#x\"/>",
        "<a aria-labelledby=\"x y\" id=\"x\"/>", "</a>", "<a", "<br>"}) {
    EXPECT_NE(problem_of_xml(text), "") << text;
  }
}

}  // namespace
}  // namespace terrace::report
