#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/jinja/context.h"
#include "tests/runtime/jinja/rendered_templates.h"

namespace terrace {
namespace {

using Rows = std::vector<std::pair<std::string, std::string_view>>;

std::string times(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(TemplateErrors, SyntaxErrorsHaveALine) {
  const Rows rows = {
      {"a\n{{ x", "line 2: }} is missing"},
      {"{% if x", "line 1: %} is missing"},
      {"\n\n{# x", "line 3: the end of a comment, #}, is missing"},
      {"{% raw %}x", "line 1: the end of a raw block, {% endraw %}, is missing"},
      {"{{ 'a }}", "line 1: the end of a text in quotation marks is missing"},
      {"\n{{ a ? b }}", "line 2: the character '?' is not expected"},
      {"{{ \u00e9 }}", "line 1: the character '\u00e9' is not supported outside of texts"},
      {"{{ (1] }}", "line 1: unexpected ']'"},
      {"{{ 1 ) }}", "line 1: unexpected ')'"},
      {"{{ '\\x1' }}", "line 1: \\x1 is not an escape of a character"},
      {"{{ '\\N{DASH}' }}",
       "line 1: the escape \\N{...} is not supported; write the character itself"},
      {"{{ '\\ud800' }}", "line 1: an escape of half a surrogate pair is not supported"},
      {"{{ '\\\u00e9' }}", "line 1: a backslash before a letter beyond ASCII is not supported"},
      {"{{ 0x1 }}",
       "line 1: numbers with the prefix 0x, 0o or 0b are not supported; write them as decimals"},
      {"{{ 007 }}", "line 1: the number 007 begins with 0"},
      {"{{ 99999999999999999999 }}", "line 1: a whole number does not fit in 64 bits"},
      {"{{ }}", "line 1: an expression is missing"},
      {"{{ 1 2 }}", "line 1: }} is missing before '2'"},
      {"{{ x | nofilter }}", "line 1: the filter nofilter is not known"},
      {"{{ x | urlize }}", "line 1: the filter urlize is not supported"},
      {"{{ x is notest }}", "line 1: the test notest is not known"},
      {"{{ x is defined is none }}", "line 1: tests cannot be chained with is before 'is'"},
      {"{{ f(a=1, 2) }}",
       "line 1: an argument without a name follows one with a name or * before '2'"},
      {"{{ f(a=1, a=2) }}", "line 1: the argument a is passed twice before '2'"},
      {"{{ f(*a, *b) }}", "line 1: a call has a second * before 'b'"},
      {"{{ f(**a, b) }}", "line 1: an argument follows ** before 'b'"},
      {"{{ x[1, 2] }}", "line 1: a key of several values is not supported before ','"},
      {"{% for x xs %}", "line 1: 'in' is missing before 'xs'"},
      {"{% for x in y recursive %}",
       "line 1: recursive loops are not supported before 'recursive'"},
      {"{% if x %}\na", "line 2: {% elif or else or endif %} is missing"},
      {"{% endif %}", "line 1: the tag endif is not known"},
      {"\n{% include 'x' %}", "line 2: the tag include is not supported before 'x'"},
      {"{% set true = 1 %}", "line 1: true cannot be assigned to before '='"},
      {"{% set loop = 1 %}", "line 1: an assignment to loop is not supported before '='"},
      {"{% break %}",
       "line 1: break outside of a loop, or out of a block that keeps its text, is not supported"},
      {"{% for x in y %}{% set z %}{% continue %}{% endset %}{% endfor %}",
       "line 1: continue outside of a loop, or out of a block that keeps its text, is not "
       "supported"},
      {"{% macro m(a=1, b) %}{% endmacro %}",
       "line 1: a parameter without a default follows one with a default before ')'"},
      {"{% macro m(a, a) %}{% endmacro %}", "line 1: the parameter a is there twice before ')'"},
      {"{% macro m(caller) %}{% endmacro %}",
       "line 1: a parameter caller is not supported before ')'"},
  };
  for (const auto& [source, error] : rows) EXPECT_EQ(syntax_error_of(source), error) << source;
}

TEST(TemplateErrors, RenderingNamesWhatIsWrong) {
  const Rows rows = {
      {"{{ raise_exception('no system message') }}", "no system message"},
      {"{{ a.b.c }}", "'a' is undefined"},
      {"{{ d.b.c }}", "'dict object' has no attribute 'b'"},
      {"{{ a() }}", "'a' is undefined"},
      {"{{ a + 1 }}", "'a' is undefined"},
      {"{{ 1 + 'a' }}", "+ is not defined for values of types int and str"},
      {"{{ 1 < 'a' }}", "< is not defined for values of types int and str"},
      {"{{ 1 in 'a' }}", "in is not defined for values of types int and str"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{{ 0.0 ** -1 }}", "0 cannot have a negative exponent"},
      {"{{ 10.0 ** 400 }}", "a power is too large"},
      {"{{ 9223372036854775807 + 1 }}", "a whole number does not fit in 64 bits"},
      {"{{ 10 ** 19 }}", "a whole number does not fit in 64 bits"},
      {"{{ '%s' % 1 }}", "formatting a text by % is not supported"},
      {"{{ 'a'.format() }}", "the method format of a str is not supported"},
      {"{% set x = [] %}{{ x.append(1) }}",
       "the method append of a list would change it, which templates may not do"},
      {"{{ d.update({}) }}",
       "the method update of a dict would change it, which templates may not do"},
      {"{% set d.x = 1 %}", "d.x is assigned to, but d is no namespace"},
      {"{% for x in [1] %}{% set l = loop %}{% set l.index = 5 %}{% endfor %}",
       "l is no namespace, and cannot be changed"},
      {"{% set a, b = [1] %}", "1 values cannot be assigned to 2 names"},
      {"{% for x in 5 %}{% endfor %}", "a value of type int cannot be looped over"},
      {"{{ 5|length }}", "a value of type int has no length"},
      {"{{ 5() }}", "a value of type int cannot be called"},
      {"{{ {[]: 1} }}", "a value of type list cannot be a key"},
      {"{{ [][::0] }}", "the step of a slice is 0"},
      {"{{ none[1:] }}", "a value of type NoneType cannot be sliced"},
      {"{{ 'a'.split('') }}", "the separator of a split is empty"},
      {"{{ 'a'.index('b') }}", "the text that index looks for is not there"},
      {"{{ 'a'|trim(1) }}", "the argument chars of trim is of type int, but must be a text"},
      {"{{ 'a'|trim('a', 'b') }}", "trim takes at most 1 arguments, but 2 are passed"},
      {"{{ 'a'|trim(foo=1) }}", "trim takes no argument foo"},
      {"{{ [1]|join('a', d='b') }}", "the argument d of join is passed twice"},
      {"{{ [1]|map('nofilter')|list }}", "the filter nofilter is not known"},
      {"{{ [1]|select('notest')|list }}", "the test notest is not known"},
      {"{{ [1]|map('string') }}", "printing a value of type generator is not supported"},
      {"{{ d.get }}", "printing a value of type function is not supported"},
      {"{{ ('<'|e) + 'a' }}", "+ with a result of safe or escape is not supported"},
      {"{{ '<'|e|upper }}", "the filter upper after safe or escape is not supported"},
      {"{{ range|tojson }}", "a value of type function cannot be written as JSON"},
      {"{{ missing|tojson }}", "a value of type Undefined cannot be written as JSON"},
      {"{{ [1, 'a']|sort }}", "< is not defined for values of types str and int"},
      {"{% macro m() %}{% endmacro %}{{ m(1) }}", "the macro m takes at most 0 arguments"},
      {"{% macro m() %}{% endmacro %}{{ m(a=1) }}", "the macro m takes no argument a"},
      {"{% macro m() %}{% endmacro %}{% call m() %}{% endcall %}",
       "the macro m takes no argument caller"},
      {"{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "No caller defined"},
      {"{% set ns = namespace() %}{% set ns.x = [ns] %}",
       "a namespace, loop or cycler in another one is not supported"},
      {"{% for a in ['x'] %}{% set g = [1, 2]|map('string') %}{{ g|first }}{{ g|list }}{% endfor "
       "%}",
       "a second use of a result of map, select or the like is not supported; put it through the "
       "filter list first"},
  };
  for (const auto& [source, error] : rows) {
    EXPECT_EQ(render_error_of(source, R"({"d": {"a": 1}})"), error) << source;
  }
}

TEST(TemplateErrors, TemplatesAreBounded) {
  EXPECT_EQ(syntax_error_of(std::string((1 << 20) + 1, 'a')),
            "line 1: it has 1048577 bytes, more than the 1048576 that a chat template may have");
  EXPECT_EQ(syntax_error_of(times("{% if x %}", 59) + times("{% endif %}", 59)), "");
  EXPECT_EQ(syntax_error_of(times("{% if x %}", 60) + times("{% endif %}", 60)),
            "line 1: blocks are nested more than 60 deep");
  EXPECT_EQ(syntax_error_of("{{ " + times("(", 99) + "1" + times(")", 99) + " }}"), "");
  EXPECT_EQ(syntax_error_of("{{ " + times("(", 100) + "1" + times(")", 100) + " }}"),
            "line 1: expressions are nested more than 100 deep before '1'");
  EXPECT_EQ(syntax_error_of("{{ " + times("not ", 200) + "1 }}"),
            "line 1: expressions are nested more than 100 deep before 'not'");
  EXPECT_EQ(syntax_error_of("{{ 1" + times("+1", 6000) + " }}"),
            "line 1: a tag has more than 10000 parts");
  EXPECT_EQ(render_error_of("{{ 1" + times("+1", 4000) + " }}"),
            "its parts are evaluated more than 600 levels deep");
}

TEST(TemplateErrors, RenderingIsBounded) {
  constexpr std::string_view kWork = "it takes more work than a chat template may take";
  const jinja::Limits little = {.work = 5000, .depth = 600, .text_bytes = 1000};
  EXPECT_EQ(render_error_of("{% for i in range(99999) %}{% endfor %}", "{}", little), kWork);
  EXPECT_EQ(render_error_of("{{ 'a' * 1001 }}", "{}", little),
            "it makes a text of more than 1000 bytes");
  EXPECT_EQ(render_error_of("{% for i in range(20) %}{{ 'a' * 100 }}{% endfor %}", "{}", little),
            "it makes a text of more than 1000 bytes");
  EXPECT_EQ(render_error_of(
                "{% for i in range(200) %}{{ 'aaaaaaaaaa'|replace('a', 'bbbb') }}{% endfor %}",
                "{}", {.work = 5000, .depth = 600, .text_bytes = 100'000}),
            kWork);
  EXPECT_EQ(render_error_of("{{ 'a' * 9223372036854775807 }}"),
            "it makes a text of more than 67108864 bytes");
  EXPECT_EQ(render_error_of("{{ 'a'.ljust(9223372036854775807) }}"),
            "it makes a text of more than 67108864 bytes");
  EXPECT_EQ(render_error_of("{{ range(100001)|list }}"), "range has more than 100000 numbers");
  EXPECT_EQ(
      render_error_of("{{ range(0, -9223372036854775807, -9223372036854775807)|list|length }}"),
      "");
  EXPECT_EQ(render_error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
            "its parts are evaluated more than 600 levels deep");
  // Lists that hold themselves many times, and deep ones.
  EXPECT_EQ(render_error_of("{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = "
                            "[ns.x, ns.x] %}{% endfor %}"),
            "a list or mapping has more than 16777216 parts, with those in it");
  EXPECT_EQ(render_error_of("{% set ns = namespace(x=1) %}{% for i in range(999) %}{% set ns.x = "
                            "[ns.x] %}{% endfor %}"),
            "lists and mappings are nested more than 500 deep");
  EXPECT_EQ(render_error_of("{% set ns = namespace(x=1) %}{% for i in range(999) %}{% set ns.x = "
                            "{'a': ns.x} %}{% endfor %}"),
            "lists and mappings are nested more than 500 deep");
  // A variable that is replaced holds only what it has last.
  EXPECT_EQ(rendered_template("{% set ns = namespace(x='') %}{% for i in range(999) %}{% set ns.x "
                              "= ns.x ~ 'a' %}{% endfor %}{{ ns.x|length }}"),
            "999");
}

}  // namespace
}  // namespace terrace
