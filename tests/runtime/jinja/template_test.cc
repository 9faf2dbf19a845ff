#include "runtime/jinja/template.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/jinja/errors.h"
#include "runtime/jinja/json_value.h"
#include "tests/runtime/jinja/rendered_templates.h"

namespace terrace {
namespace {

struct Row {
  std::string_view source;
  std::string_view text;
};

constexpr std::string_view kValuesOfRows =
    R"({"s": "a b", "e": "\u00e9t\u00e9", "n": 3, "f": 2.5, "t": true, "no": null,
        "xs": [3, 1, 2], "ys": ["b", "A", "a"], "d": {"b": 1, "a": "x"},
        "rows": [{"k": "u", "n": 2}, {"k": "v", "n": 1}, {"k": "U", "n": 3}]})";

void expect_rows(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    try {
      EXPECT_EQ(rendered_template(row.source, kValuesOfRows), row.text) << row.source;
    } catch (const std::exception& problem) {
      ADD_FAILURE() << row.source << ": " << problem.what();
    }
  }
}

TEST(Template, PrintsValuesAsPythonDoes) {
  expect_rows({
      {"{{ s }}|{{ n }}|{{ f }}|{{ t }}|{{ no }}|{{ missing }}|{{ d.missing }}",
       "a b|3|2.5|True|None||"},
      {"{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 2.0 }} {{ -0.0 }} {{ 1_000 }}",
       "1e+16 1000000000000000.0 0.0001 1e-05 2.0 -0.0 1000"},
      {"{{ [1, 'a', none, true, [2.0], (), (1,), {'k': missing}] }}",
       "[1, 'a', None, True, [2.0], (), (1,), {'k': Undefined}]"},
      {R"({{ ["it's", 'say "x"', "\n\t\\", 'it\'s "x"', "\x00\u2028"] }})",
       R"(["it's", 'say "x"', '\n\t\\', 'it\'s "x"', '\x00\u2028'])"},
      {"{{ 1, }} {{ {'a': 1, 'b': 2, 'a': 3} }} {{ {1: 2, 1.0: 3, true: 4} }}",
       "(1,) {'a': 3, 'b': 2} {1: 4}"},
      {R"({{ 'a' "b" }} {{ "\u00e9\101\q" }})", "ab \u00e9A\\q"},
  });
}

TEST(Template, CalculatesAsPythonDoes) {
  expect_rows({
      {"{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 4 / 2 }} {{ 2 ** 3 ** "
       "2 }}",
       "3 -4 -2 2 3.5 2.0 64"},
      {"{{ -2 ** 2 }} {{ -2|abs }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -4.0 % 2 }} {{ -7.5 % 2 }}",
       "4 2 0.5 3.0 0.0 0.5"},
      {"{{ 1 ~ 2 * 3 }} {{ 'a' * 3 }} {{ [1] * 2 + [3] }} {{ (1,) + (2,) }} {{ 'a' + 'b' }}",
       "16 aaa [1, 1, 3] (1, 2) ab"},
      {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }}",
       "True False True True True"},
      {"{{ 9007199254740993 == 9007199254740992.0 }} {{ 9007199254740993 > 9007199254740992.0 }}",
       "False True"},
      {"{{ 2 in xs }} {{ 'b' in s }} {{ 'b' not in d }} {{ not 1 in xs }} {{ 'z' in missing }}",
       "True True False False False"},
      {"{{ 0 or 'x' }} {{ 1 and 'y' }} {{ no or missing or 2 }} {{ not 0 and 1 }}", "x y 2 1"},
      {"{{ 1 if t else 2 }} {{ 1 if no }} {{ 1 if no else 2 if no else 3 }}", "1  3"},
      {"{{ 3.0|round }} {{ 3|round }} {{ 2.5|round }} {{ 1.115|round(2) }} {{ 25|round(-1) }} "
       "{{ 1.21|round(1, 'ceil') }}",
       "3.0 3 2.0 1.11 20 1.3"},
      {"{{ '42.9'|int }} {{ 'x'|int(7) }} {{ ' 1_0 '|int }} {{ true|int }} {{ '1e3'|float }} {{ "
       "3|float }}",
       "42 7 10 1 1000.0 3.0"},
  });
}

TEST(Template, ReadsItemsAndSlices) {
  expect_rows({
      {"{{ xs[0] }} {{ xs[-1] }} {{ xs[9] }} {{ d.b }} {{ d['a'] }} {{ xs.0 }} {{ e[0] }} {{ e[-1] "
       "}}",
       "3 2  1 x 3 \u00e9 \u00e9"},
      {"{{ xs[1:] }} {{ xs[::-1] }} {{ xs[-2:9] }} {{ s[::2] }} {{ s[2:0:-1] }} {{ e[:1] }} {{ (1, "
       "2)[:1] }}",
       "[1, 2] [2, 1, 3] [1, 2] ab b  \u00e9 (1,)"},
      {"{{ d.items()|list }} {{ d.keys()|list }} {{ d|items|list }} {{ d.get('z', 5) }} {{ "
       "d.get('z') }}",
       "[('b', 1), ('a', 'x')] ['b', 'a'] [('b', 1), ('a', 'x')] 5 None"},
      {"{{ {'items': 1}['items'] }} {{ d|attr('a') }}|{{ rows|map(attribute='k')|list }}",
       "1 |['u', 'v', 'U']"},
      {"{{ xs is iterable and d is mapping and s is string and missing is undefined }}", "True"},
      {"{{ n is odd }} {{ n is divisibleby 3 }} {{ n is not none }} {{ t is true }} {{ n is number "
       "}} "
       "{{ 'AB' is upper }} {{ xs is sequence }} {{ n is in xs }} {{ 1 is eq 1.0 }}",
       "True True True True True True True True True"},
  });
}

TEST(Template, HasTheMethodsOfTexts) {
  expect_rows({
      {"{{ ' xax '.strip() }}|{{ 'xax'.strip('x') }}|{{ 'x '.strip('') }}|{{ 'xxa'.lstrip('x') }}",
       "xax|a|x |a"},
      {"{{ 'a b  c'.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }}",
       "['a', 'b', 'c'] ['a', 'b,c'] ['a,b', 'c']"},
      {"{{ ' a b '.split(none, 1) }} {{ 'a\\nb\\r\\n'.splitlines() }} {{ 'a\\n'.splitlines(true) "
       "}}",
       "['a', 'b '] ['a', 'b'] ['a\\n']"},
      {"{{ 'abcb'.find('b') }} {{ 'abcb'.find('b', 2) }} {{ 'abcb'.rfind('b') }} {{ 'a'.find('z') "
       "}} "
       "{{ 'abcb'.count('b') }} {{ 'abcb'.index('c', 1, -1) }}",
       "1 3 3 -1 2 2"},
      {"{{ 'aXb'.partition('X') }} {{ 'ab'.rpartition('X') }} {{ 'ab'.replace('', '-') }} {{ "
       "'aaa'.replace('a', 'b', 2) }}",
       "('a', 'X', 'b') ('', '', 'ab') -a-b- bba"},
      {"{{ 'ab'.startswith(('x', 'a')) }} {{ 'abc'.startswith('b', 1) }} {{ 'ab'.endswith('') }} "
       "{{ 'ab'.removeprefix('a') }} {{ 'ab'.removesuffix('b') }} {{ '-'.join(ys) }}",
       "True True True b a b-A-a"},
      {"{{ \"it's A-b\".title() }} {{ \"it's A-b\"|title }} {{ 'aB'.capitalize() }} {{ "
       "'stra\u00dfe'.upper() }} "
       "{{ '\u039f\u03a3 \u03a3'.lower() }} {{ '\ufb01n'|capitalize }}",
       "It'S A-B It's A-B Ab STRASSE \u03bf\u03c2 \u03c3 Fin"},
      {"{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}|{{ 'a'.center(4) }}|{{ '-1'.zfill(4) }}",
       "a  |..a| a  |-001"},
      {"{{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'a\u00e9'.isalpha() }} {{ ' \\n'.isspace() }} "
       "{{ 'Ab'.isupper() }}",
       "True False True True False"},
  });
}

TEST(Template, HasTheFilters) {
  expect_rows({
      {"{{ xs|sort }} {{ ys|sort }} {{ ys|sort(case_sensitive=true) }} {{ "
       "xs|sort(reverse=true)|first }}",
       "[1, 2, 3] ['A', 'a', 'b'] ['A', 'a', 'b'] 3"},
      {"{{ rows|sort(attribute='n')|map(attribute='k')|join }} {{ "
       "rows|sort(attribute='k,n')|map(attribute='n')|join(',') }}",
       "vuU 2,3,1"},
      {"{% for g in rows|groupby('k') %}{{ g.grouper }}:{{ g.list|length }}:{{ g[0] }} {% endfor "
       "%}",
       "u:2:u v:1:v "},
      {"{{ xs|select('odd')|list }} {{ xs|reject('gt', 1)|list }} {{ rows|selectattr('n', 'in', "
       "[1])|list }} "
       "{{ rows|rejectattr('k', 'equalto', 'v')|map(attribute='z', default=0)|list }}",
       "[3, 1] [1] [{'k': 'v', 'n': 1}] [0, 0]"},
      {"{{ xs|min }} {{ ys|max }} {{ xs|sum }} {{ rows|sum(attribute='n') }} {{ ys|unique|list }} "
       "{{ xs|batch(2, 0)|list }}",
       "1 b 6 6 ['b', 'A'] [[3, 1], [2, 0]]"},
      {"{{ d|dictsort }} {{ d|length }} {{ s|reverse }} {{ xs|reverse|list }} {{ xs|last }} {{ "
       "[]|first }}",
       "[('a', 'x'), ('b', 1)] 2 b a [2, 1, 3] 2 "},
      {"{{ 'a\\nb\\n\\nc'|indent(2) }}|{{ 'a\\nb'|indent('> ', true) }}", "a\n  b\n\n  c|> a\n> b"},
      {"{{ no|default('x') }} {{ missing|default('x') }} {{ ''|d('x', true) }}", "None x x"},
      {"{{ '<a & b>'|e }} {{ '<'|safe }} {{ ('<'|e)|e }} {{ ('<'|safe) ~ '<' }}",
       "&lt;a &amp; b&gt; < &lt; <<"},
      {"{{ \"it's a_b c\"|wordcount }} {{ ' x '|trim }} {{ 'xax'|trim('x') }} {{ 'aa'|replace('a', "
       "'b', 1) }}",
       "4 x a ba"},
      // Filters that return an iterator: it is true, and empty when it was gone through.
      {"{% set g = xs|map('string') %}{{ 1 if g }}{{ g|list }}{{ g|list }}", "1['3', '1', '2'][]"},
  });
}

TEST(Template, WritesJsonAsPythonDoes) {
  expect_rows({
      {R"({{ {"a": [1, 2.0, none, true], "\u00e9": "<'\n\u2028\x7f"} | tojson }})",
       "{\"a\": [1, 2.0, null, true], \"\u00e9\": \"<'\\n\u2028\x7f\"}"},
      {"{{ {'b': [], 'a': {'c': 1}} | tojson(indent=2) }}",
       "{\n  \"b\": [],\n  \"a\": {\n    \"c\": 1\n  }\n}"},
      {"{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}",
       R"({"a":2,"b":1})"},
      {R"({{ "\u00e9\U0001f600" | tojson(ensure_ascii=true) }})", R"("\u00e9\ud83d\ude00")"},
      {"{{ {2: 1, 10: 2, none: 3} | tojson }} {{ {10: 1, 9: 2} | tojson(sort_keys=true) }}",
       R"({"2": 1, "10": 2, "null": 3} {"9": 2, "10": 1})"},
  });
}

TEST(Template, DropsWhiteSpaceAsJinja2Does) {
  expect_rows({
      {"a\n  {% if t %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
      {"a {%- if t -%} b {%- endif -%} c", "abc"},
      {"a\n  {%+ if t %}b{% endif +%}\nc", "a\n  b\nc"},
      {"{% if t -%}\n\n  x{% endif %}\n\ny", "x\ny"},
      {"a\n {{- 1 -}} \n b {{ 2 }}\n", "a1b 2"},
      {"a\n  {# c #}\nb {#- c -#} d", "a\nbd"},
      {"  {% raw %} {{ x }} {% endraw %}\ny", " {{ x }} y"},
      {"{% raw -%}  {% a %}  {%- endraw %}|", "{% a %}|"},
      {"a\r\nb\rc\n\n", "a\nb\nc\n"},
      {"x  {% if t %}  y{% endif %}", "x    y"},
      {"\u00a0{% set q = 1 %}{{ q }}", "1"},
      {"{#-#} a {#- -#} b", " ab"},
      {"a {% raw %}", "a "},
      {"a {#", "a "},
      {"{{ '}}' }}{{ {'a': {'b': 1}}['a'] }}{{ \"{% x %}\" }}", "}}{'b': 1}{% x %}"},
  });
}

TEST(Template, RunsLoops) {
  expect_rows({
      {"{% for x in xs %}{{ loop.index }}{{ loop.first }}{{ loop.revindex0 }},{% endfor %}",
       "1True2,2False1,3False0,"},
      {"{% for x in xs if x > 1 %}{{ x }}{{ loop.length }}{{ loop.last }} {% else %}none{% endfor "
       "%}",
       "32False 22True "},
      {"{% for x in [] %}{% else %}none{% endfor %}{% for x in missing %}x{% else %}none{% endfor "
       "%}",
       "nonenone"},
      {"{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for (a, b), c in [[[1, 2], 3]] "
       "%}{{ a + b + c }}{% endfor %}",
       "b=1;a=x;6"},
      {"{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}"
       "{% for x in xs %}{{ x }}{% break %}{% endfor %}",
       "323"},
      // Where each run of the body ends by a jump, Jinja2 runs the other branch, too.
      {"{% for x in xs %}{% break %}{% else %}e{% endfor %}", "e"},
      {"{% set y = 0 %}{% for x in xs %}{{ y }}{% set y = x %}{{ y }} {% endfor %}{{ y }}",
       "03 01 02 0"},
      {"{% for x in xs %}{% for y in 'ab' %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor "
       "%}",
       "121 122 123 "},
      {"{% for x in xs %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{{ loop.previtem }} {% "
       "endfor %}",
       "aTrue bTrue3 aTrue1 "},
      {"{% for x in 1, 2 %}{{ x }}{% endfor %}{% for c in e %}{{ c }}.{% endfor %}",
       "12\u00e9.t.\u00e9."},
  });
}

TEST(Template, KeepsVariablesInTheirScopes) {
  expect_rows({
      {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% if t %}{% set a = 3 %}{% endif %}{{ a }}", "123"},
      {"{% set q %}x{% set inner = 1 %}{% endset %}{{ q }}{{ inner is defined }}", "xFalse"},
      {"{% set q | upper | replace('A', 'b') %}a{% endset %}{{ q }}", "b"},
      {"{% set ns = namespace(a=1) %}{% for x in xs %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a "
       "}}{{ ns.z is defined }}",
       "7False"},
      {"{% with a = 1, b = n %}{{ a }}{{ b }}{% set n = 9 %}{% endwith %}{{ n }}{{ a is defined }}",
       "133False"},
      {"{% macro m(a, b=2) %}[{{ a }}{{ b }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ m(1) }}{{ "
       "m(1, 3, 4, c=5) }}{{ m() }}",
       "[12(){}][13(4,){'c': 5}][2(){}]"},
      {"{% macro m() %}{{ q }}{% endmacro %}{% set q = 1 %}{{ m() }}", "1"},
      {"{% macro m(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) m(1) %}{{ y }}{{ n }}{% endcall "
       "%}",
       "<13>"},
      {"{% filter upper %}a{% filter replace('B', 'c') %}b{% endfilter %}{% endfilter %}", "AB"},
      {"{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{% set c = cycler('x', 'y') %}{{ c.next() "
       "}}{{ c.current }}{{ c.next() }}{{ c.next() }}",
       "a|bxyyx"},
      {"{% macro fact(i) %}{{ i if i < 2 else i * (fact(i - 1)|int) }}{% endmacro %}{{ fact(5) }}",
       "120"},
      {"{{ dict(a=1, **{'b': 2}) }}{{ dict([['x', 1]]) }}{{ range(3)|list }}{{ range(4, 0, "
       "-2)|list }}",
       "{'a': 1, 'b': 2}{'x': 1}[0, 1, 2][4, 2]"},
  });
}

TEST(Template, TellsTheTime) {
  const std::chrono::system_clock::time_point now{std::chrono::seconds(1'700'000'000)};
  const jinja::Template made("{{ strftime_now('%Y %b') }}");
  EXPECT_EQ(made.render({}, now).text, "2023 Nov");
}

TEST(Template, MarksWhatIsGenerated) {
  const jinja::Template made(
      "{% for x in xs %}\u00e9{% generation %}{{ x }}{% set q = 1 %}{% endgeneration %}{{ q }}{% "
      "endfor %}");
  EXPECT_TRUE(made.marks_generated());
  const auto values = jinja::parse_json_value(R"({"xs": ["ab", "", "c"]})", "values");
  const jinja::Template::Rendered rendered = made.render(values.mapping());
  EXPECT_EQ(rendered.text, "\u00e9ab\u00e9\u00e9c");
  const std::vector<std::pair<std::size_t, std::size_t>> expected = {{2, 4}, {6, 6}, {8, 9}};
  EXPECT_EQ(rendered.generated, expected);
  EXPECT_FALSE(jinja::Template("{{ generation }}").marks_generated());
}

TEST(Template, RefusesToMoveWhatIsGenerated) {
  constexpr std::string_view kMoved =
      "it moves a text that it marks as generated, as in a macro or a {% set %} block";
  EXPECT_EQ(render_error_of("a{% set q %}{% generation %}x{% endgeneration %}{% endset %}b{{ q }}"),
            kMoved);
  EXPECT_EQ(render_error_of(
                "{% macro m() %}-{% generation %}x{% endgeneration %}{% endmacro %}{{ m() }}"),
            kMoved);
  EXPECT_EQ(
      render_error_of("{% filter upper %}{% generation %}x{% endgeneration %}{% endfilter %}"),
      kMoved);
  // A macro whose text begins with it leaves it where it is.
  EXPECT_EQ(render_error_of(
                "{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}a{{ m() }}"),
            "");
}

}  // namespace
}  // namespace terrace
