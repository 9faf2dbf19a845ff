"""Draws random chat templates with values for them, from a seed.

Most expressions are of the type that their place takes, and a few are of any other type. Some
templates are broken at the end: characters are taken out, doubled or exchanged.
"""

import json
import random

WORDS = ["", "a", "B", "ab cd", " pad ", "x\ny\n", "it's", 'say "hi"', "\\", "a,b,,c", "1", "-2.5", "1e3", "_",
         "\t", "<&>", "\u00e9t\u00e9", "e\u0301", "stra\u00dfe", "\u4f60\u597d", "\U0001f600", "\u00a0", "\u2028z",
         "\u01c6", "\ufb01n", "\u03a3\u039f\u03a3", "A B-c", "{{", "%}", "\x7f", "\x1c", "x" * 30, "\u00b2",
         "\u0660", "aXbX", "True", "foo bar baz", "</think>", "  two\n  lines", "a\r\nb", "a\vb", "nan", "inf"]
NUMBERS = [0, 1, 2, 3, -1, -2, 7, 10, 255, -13, 1000, 9007199254740993, -9223372036854775808]
FLOATS = [0.0, 1.0, -1.5, 0.1, 2.5, 3.5, 2.675, 1.115, 1e16, 123456789.125, 1e-5, -0.0, 1e300, 0.5, 1 / 3, 1e22]
NAMES = ["s", "t", "n", "m", "f", "b", "no", "xs", "ys", "d", "rows", "pairs", "missing"]
KINDS = ["text", "number", "list", "mapping", "bool", "none"]


class Drawer:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.locals = []
        self.macros = []
        self.loops = 0
        self.depth = 0

    def pick(self, *choices):
        return self.random.choice(choices)

    def happens(self, share):
        return self.random.random() < share

    # Values.

    def word(self):
        return self.random.choice(WORDS)

    def scalar(self):
        return self.pick(self.word, lambda: self.random.choice(NUMBERS), lambda: self.random.choice(FLOATS),
                         lambda: self.happens(0.5), lambda: None)()

    def row(self):
        row = {"name": self.word(), "n": self.random.choice(NUMBERS[:9]), "tags": [self.word() for _ in range(2)]}
        if self.happens(0.2):
            row.pop(self.pick("name", "n", "tags"))
        if self.happens(0.2):
            row[self.pick("role", "items", "x")] = self.scalar()
        return row

    def values(self):
        numbers = self.random.choice(NUMBERS), self.random.choice(NUMBERS)
        return {"s": self.word(), "t": self.word() + self.word(), "n": numbers[0], "m": numbers[1],
                "f": self.random.choice(FLOATS), "b": self.happens(0.5), "no": None,
                "xs": [self.random.choice(NUMBERS[:9]) for _ in range(self.pick(0, 2, 3, 3, 4))],
                "ys": [self.word() for _ in range(self.pick(0, 2, 3, 3, 4))],
                "d": {self.pick("a", "B", "c", "k k", "\u00e9"): self.scalar() for _ in range(3)},
                "rows": [self.row() for _ in range(self.pick(0, 2, 2, 3, 3))],
                "pairs": [[self.scalar(), self.scalar()] for _ in range(self.random.randrange(3))]}

    # Expressions.

    def literal(self, text):
        quote = self.pick("'", '"')
        out = ""
        for letter in text:
            if letter in ("\\", quote):
                out += "\\" + letter
            elif letter in "\n\t\r":
                out += {"\n": "\\n", "\t": "\\t", "\r": "\\r"}[letter]
            elif ord(letter) > 126 and self.happens(0.3):
                out += f"\\U{ord(letter):08x}"
            else:
                out += letter
        return quote + out + quote

    def expression(self, kind="any", levels=None):
        if kind == "any":
            if self.locals and self.happens(0.3):
                return self.random.choice(self.locals)
            kind = self.random.choice(KINDS)
        if self.happens(0.02):
            kind = self.random.choice(KINDS)
        levels = self.pick(1, 2, 2, 3) if levels is None else levels
        if levels <= 0:
            return self.leaf(kind)
        text = getattr(self, f"{kind}_expression")(levels - 1)
        return f"({text})" if self.happens(0.9) else text

    def leaf(self, kind):
        if self.happens(0.01):
            return self.pick("missing", "d.missing", "rows[9]", "rows[0].missing", "s.missing")
        if kind == "text":
            return self.pick("s", "t", self.literal(self.word()), "ys[0]", "rows[0].name", "rows[-1]['name']")
        if kind == "number":
            return self.pick("n", "m", "f", "xs[0]", "rows[0].n", "1_000", "0", "2", "-3", "1.5", "1e2", "2.0")
        if kind == "list":
            return self.pick("xs", "ys", "rows", "pairs", "[1, 2]", "(1, 2)", "()", "[]", "['b', 'a', 'B']", "(1,)",
                             "rows[0].tags", "range(3)")
        if kind == "mapping":
            return self.pick("d", "rows[0]", "rows[1]", "{}", "{'k': 1, 'a': 'z'}", "dict(a=1)", "{1: 2, 1.0: 3}")
        if kind == "bool":
            return self.pick("b", "true", "False", "not b")
        return self.pick("no", "none", "None")

    def text_expression(self, levels):
        e = lambda kind="text": self.expression(kind, levels)  # noqa: E731
        return self.pick(
            lambda: self.leaf("text"),
            lambda: f"{e()} ~ {e('any')}", lambda: f"{e()} + {e()}", lambda: f"{e()} * {self.pick(0, 2, -1)}",
            lambda: f"{e()}{self.slice(levels)}", lambda: f"{e()}[{e('number')}]",
            lambda: f"{e()}.{self.text_method(levels)}", lambda: f"{e()}|{self.text_filter(levels)}",
            lambda: f"{e('any')}|string", lambda: f"{e('any')}|tojson{self.json_arguments()}",
            lambda: f"{e('list')}|join({e()})", lambda: f"{e()}.join({e('list')})",
            lambda: f"{e('list')}|map('string')|join('-')", lambda: "rows|join(',', 'name')",
            lambda: f"{e()} if {e('bool')} else {e('any')}", lambda: f"{e()} if {e('bool')}",
            lambda: f"{e('any')}|default({e()}{self.pick('', ', true', ', boolean=true')})",
            lambda: f"{e('bool')} and {e()}", lambda: f"{e()} or {e('any')}")()

    def text_method(self, levels):
        e = lambda kind="text": self.expression(kind, min(levels, 1))  # noqa: E731
        return self.pick(
            lambda: f"{self.pick('strip', 'lstrip', 'rstrip')}({self.pick('', e(), e('none'))})",
            lambda: f"replace({e()}, {e()}{self.pick('', ', 1', ', 0', ', -1')})",
            lambda: f"{self.pick('upper', 'lower', 'title', 'capitalize', 'swapcase', 'casefold')}()",
            lambda: f"{self.pick('removeprefix', 'removesuffix')}({e()})",
            lambda: f"{self.pick('ljust', 'rjust', 'center', 'zfill')}({self.pick(0, 3, 12)})",
            lambda: f"{self.pick('split', 'rsplit')}({e()}, {self.pick(-1, 0, 1, 2)})[0]",
            lambda: f"{self.pick('partition', 'rpartition')}({e()})[{self.pick(0, 1, 2, -1)}]")()

    def text_filter(self, levels):
        e = lambda kind="text": self.expression(kind, min(levels, 1))  # noqa: E731
        return self.pick(
            lambda: self.pick("upper", "lower", "title", "capitalize", "trim", "string", "e", "safe", "escape"),
            lambda: f"trim({e()})", lambda: f"replace({e()}, {e()}{self.pick('', ', 1', ', count=2')})",
            lambda: f"indent({self.pick('', '2', '2, true', 'first=true', 'blank=true', 'width=1', repr('>'))})",
            lambda: f"{self.pick('first', 'last', 'reverse', 'list', 'center', 'wordwrap')}", lambda: "trim | trim")()

    def json_arguments(self):
        given = []
        for argument in ("indent=2", "indent=0", "ensure_ascii=true", "sort_keys=true", "separators=(',', ':')",
                         "indent='\\t'"):
            if self.happens(0.15) and argument.split("=")[0] not in "".join(given):
                given.append(argument)
        return f"({', '.join(given)})" if given or self.happens(0.3) else ""

    def number_expression(self, levels):
        e = lambda kind="number": self.expression(kind, levels)  # noqa: E731
        return self.pick(
            lambda: self.leaf("number"),
            lambda: f"{e()} {self.pick('+', '-', '*', '/', '//', '%')} {e()}",
            lambda: f"{self.pick('-', '+', '- -', '-')}{e()}", lambda: f"{e()} ** {self.pick(0, 1, 2, -1, 0.5)}",
            lambda: f"-{e()}|abs", lambda: f"{e('any')}|length", lambda: f"{e('list')}|count",
            lambda: f"{e('any')}|int{self.pick('', '(7)', '(default=-1)')}",
            lambda: f"{e('any')}|float{self.pick('', '(1.5)')}", lambda: f"{e()}|abs",
            lambda: f"{e()}|round{self.pick('', '(1)', '(2)', '(-1)', '(1, %r)' % 'floor', '(method=%r)' % 'ceil')}",
            lambda: f"{self.pick('xs', 'xs', e('list'))}|sum{self.pick('', '(start=1)')}",
            lambda: "rows|sum(attribute='n')",
            lambda: f"{e('list')}|{self.pick('min', 'max', 'first', 'last')}",
            lambda: f"{e('text')}.{self.pick('find', 'rfind', 'index', 'count', 'rindex')}({e('text')})",
            lambda: f"{e('text')}.find({e('text')}, {self.pick(0, 1, -1, 5)})", lambda: f"{e('text')}|wordcount",
            lambda: f"{self.pick('xs', 'ys')}.{self.pick('index', 'count', 'count')}({e('any')})",
            lambda: self.of_loop("index", "index0", "revindex", "revindex0", "length", "depth", "depth0"))()

    def list_expression(self, levels):
        e = lambda kind="list": self.expression(kind, levels)  # noqa: E731
        return self.pick(
            lambda: self.leaf("list"),
            lambda: f"[{e('any')}, {e('any')}]", lambda: f"({e('any')}, {e('any')})", lambda: f"({e('any')},)",
            lambda: f"{e()} + {e()}", lambda: f"{e()} * {self.pick(0, 1, 2)}", lambda: f"{e()}{self.slice(levels)}",
            lambda: f"{e()}|{self.list_filter(levels)}|list", lambda: f"{e()}|{self.list_filter(levels)}",
            lambda: f"{e('text')}.{self.pick('split', 'splitlines', 'rsplit')}()",
            lambda: f"{e('text')}.{self.pick('split', 'rsplit')}({e('text')})",
            lambda: f"{e('text')}.splitlines(true)",
            lambda: f"{e('text')}.{self.pick('split', 'rsplit')}({self.pick('none', 'sep=None')}, maxsplit={self.pick(0, 1, 2)})", lambda: f"{e('mapping')}.{self.pick('items', 'keys', 'values')}()",
            lambda: f"{e('mapping')}|items|list", lambda: f"{e('mapping')}|list",
            lambda: f"{e('mapping')}|dictsort{self.pick('', '(true)', '(by=%r)' % 'value', '(reverse=true)')}",
            lambda: f"{e('text')}|list", lambda: f"range({self.pick(0, 1, 5, '-2', 'n', 'xs|length')})", lambda: "range(4, 0, -2)",
            lambda: f"{e()}|batch({self.pick(1, 2)}{self.pick('', ', 0')})|list",
            lambda: f"{e()}|groupby({self.pick('0', repr('n'), repr('name'))})",
            lambda: f"{e('text')}.{self.pick('partition', 'rpartition')}({e('text')})")()

    def list_filter(self, levels):
        e = lambda kind="any": self.expression(kind, min(levels, 1))  # noqa: E731
        key = self.pick("name", "n", "tags.0", "tags", "x", "items")
        return self.pick(
            lambda: self.pick("list", "reverse", "unique", "sort", "first", "last", "random", "slice(2)"),
            lambda: f"sort({self.pick('true', 'false')}, {self.pick('true', 'false')})",
            lambda: f"sort(attribute='{key}')", lambda: f"unique(attribute='{key}')",
            lambda: f"map(attribute='{key}'{self.pick('', ', default=%s' % e())})",
            lambda: f"map('{self.pick('upper', 'string', 'length', 'int', 'trim', 'first', 'tojson', 'default')}')",
            lambda: f"map('default', {e()})", lambda: f"{self.pick('select', 'reject')}",
            lambda: f"{self.pick('select', 'reject')}('{self.test_name()}')",
            lambda: f"{self.pick('select', 'reject')}('{self.pick('eq', 'ne', 'lt', 'in', '>', '==')}', {e()})",
            lambda: f"{self.pick('selectattr', 'rejectattr')}('{key}')",
            lambda: f"{self.pick('selectattr', 'rejectattr')}('{key}', '{self.test_name()}')",
            lambda: f"{self.pick('selectattr', 'rejectattr')}('{key}', '{self.pick('equalto', 'ne', 'in')}', {e()})",
            lambda: f"{self.pick('min', 'max')}(attribute='{key}')", lambda: "batch(2)", lambda: "items")()

    def slice(self, levels):
        bound = lambda: self.pick("", "1", "-1", "0", "2", "-2", "9", self.expression("number", 0))  # noqa: E731
        return f"[{bound()}:{bound()}" + (f":{self.pick('', '1', '-1', '2', '-2')}]" if self.happens(0.5) else "]")

    def mapping_expression(self, levels):
        e = lambda kind="mapping": self.expression(kind, levels)  # noqa: E731
        return self.pick(
            lambda: self.leaf("mapping"), lambda: f"{{'a': {e('any')}, 'b': {e('any')}}}",
            lambda: f"{{{e('any')}: {e('any')}}}", lambda: f"dict({e()}, z={e('any')})", lambda: "dict(pairs)",
            lambda: f"{e('list')}[{self.pick(0, 1, -1)}]", lambda: f"{e('list')}|first", lambda: f"{e()}.copy()",
            lambda: f"{e()}.get({e('any')}, {e('any')})", lambda: f"{e()}.{self.pick('a', 'B', 'name', 'x', 'items')}",
            lambda: f"{e()}[{e('text')}]", lambda: f"{e()}.get('{self.pick('a', 'B', 'zz')}')",
            lambda: f"{e()}|attr('{self.pick('a', 'items')}')")()

    def test_name(self):
        return self.pick("defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true",
                         "false", "mapping", "iterable", "sequence", "callable", "upper", "lower", "odd", "even",
                         "escaped", "filter", "test")

    def bool_expression(self, levels):
        e = lambda kind="any": self.expression(kind, levels)  # noqa: E731
        order = lambda: self.pick("<", "<=", ">", ">=", "==", "!=", "in", "not in")  # noqa: E731
        return self.pick(
            lambda: self.leaf("bool"),
            lambda: f"{e('number')} {order()} {e('number')}", lambda: f"{e('text')} {order()} {e('text')}",
            lambda: f"{e()} {order()} {e()}", lambda: f"{e('number')} {order()} {e('number')} {order()} {e('number')}",
            lambda: f"{e()} {self.pick('in', 'not in')} {e('list')}", lambda: f"{e('text')} in {e('mapping')}",
            lambda: f"not {e()}", lambda: f"{e()} {self.pick('and', 'or')} {e()}",
            lambda: f"{e()} is {self.pick('', 'not ')}{self.test_name()}",
            lambda: f"{e()} is {self.pick('eq', 'ne', 'sameas', 'in', 'lt', 'ge', 'equalto')}({e()})",
            lambda: f"{e('number')} is {self.pick('divisibleby', 'eq', 'gt')} {self.pick('2', '3', 'n')}",
            lambda: f"{e('text')}.{self.pick('startswith', 'endswith')}({e('text')})",
            lambda: f"{e('text')}.startswith(({e('text')}, {e('text')}))",
            lambda: f"{e('text')}.{self.pick('isdigit', 'isalpha', 'isalnum', 'isspace', 'isupper', 'islower')}()",
            lambda: self.of_loop("first", "last", f"changed({e()})"))()

    def none_expression(self, levels):
        return self.pick(
            lambda: self.leaf("none"), lambda: self.random.choice(NAMES),
            lambda: self.of_loop("previtem", "nextitem", f"cycle('a', {self.expression('any', 0)})"),
            lambda: f"ns.{self.pick('a', 'a', 'b')}" if "ns.a" in self.locals else "no", lambda: self.macro_call(levels))()

    def of_loop(self, *attributes):
        return f"loop.{self.pick(*attributes)}" if self.loops or self.happens(0.02) else "1"

    def macro_call(self, levels):
        if not self.macros:
            return "none"
        name, count = self.random.choice(self.macros)
        given = [self.expression("any", min(levels, 1)) for _ in range(self.random.randrange(count + (2 if self.happens(0.1) else 1)))]
        if self.happens(0.1):
            given.append(f"{self.pick('p0', 'p1', 'other')}={self.expression('any', 0)}")
        if self.happens(0.05):
            given.append("*" + self.expression("list", 0))
        if self.happens(0.05):
            given.append("**" + self.expression("mapping", 0))
        return f"{name}({', '.join(given)})"

    # Statements.

    def begin(self):
        return "{%" + self.random.choices(["", "-", "+"], [6, 3, 1])[0]

    def end(self):
        return self.random.choices(["", "-", "+"], [6, 3, 1])[0] + "%}"

    def tag(self, inside):
        space = self.pick(" ", " ", " ", "", "\n", "  ")
        return f"{self.begin()}{space}{inside}{space or ' '}{self.end()}"

    def data(self):
        if self.happens(0.01):
            return self.pick("{", "}", "%", "#", "-", "+")
        return self.random.choices(["", " ", "\n", "\n  ", "  \n", "text", "a\n\nb", "\r\n", "\r", "\t", "\u00a0\n",
                                    "\u2028", "\n\n", " x ", "# ", "'"], [8, 4, 6, 4, 3] + [1] * 11)[0]

    def block(self, levels):
        kept = list(self.locals)
        text = self.data()
        for _ in range(self.random.randrange(1, 4)):
            text += self.statement(levels) + self.data()
        self.locals = kept
        return text

    def statement(self, levels=2):
        if levels <= 0 or self.happens(0.4):
            sign, end = self.pick("", "", "-", "+"), self.pick("", "", "-")
            return f"{{{{{sign} {self.expression()} {end}}}}}"
        levels -= 1
        draw = self.random.choices(
            [self.condition, self.for_loop, self.assignment, self.capture, self.macro, self.call_block, self.filter_block,
             self.generation, self.with_block, self.jump, self.raw, self.comment, self.namespace],
            [4, 5, 5, 2, 2, 1, 1, 2, 1, 1, 1, 1, 2])[0]
        return draw(levels)

    def condition(self, levels):
        text = self.tag(f"if {self.expression('bool')}") + self.block(levels)
        if self.happens(0.3):
            text += self.tag(f"elif {self.expression('bool')}") + self.block(levels)
        if self.happens(0.5):
            text += self.tag("else") + self.block(levels)
        return text + self.tag("endif")

    def name(self):
        return "loop" if self.happens(0.01) else self.pick("v", "w", "x", "s", "n")

    def for_loop(self, levels):
        names = self.pick([self.name()], [self.name()], ["k", "v"])
        items = self.expression("list") if len(names) == 1 else self.pick("d.items()", "d|items", "pairs", "d|dictsort")
        head = f"for {', '.join(names)} in {items}"
        kept = list(self.locals)
        if self.happens(0.2):
            self.locals += names
            head += f" if {self.expression('bool', 1)}"
            self.locals = kept + []
        text = self.tag(head)
        self.locals += names + ["loop.index"]
        self.loops += 1
        text += self.block(levels)
        self.loops -= 1
        self.locals = kept
        if self.happens(0.3):
            text += self.tag("else") + self.block(levels)
        return text + self.tag("endfor")

    def assignment(self, levels):
        name = self.name()
        text = self.tag(self.pick(f"set {name} = {self.expression()}", f"set {name} = {self.expression()}",
                                  f"set {name}, w = {self.expression('any', 1)}, {self.expression('any', 1)}",
                                  f"set (v, {name}) = {self.expression('list')}"))
        self.locals.append(name)
        return text

    def namespace(self, levels):
        text = self.tag(f"set ns = namespace(a={self.expression('any', 1)})")
        self.locals.append("ns.a")
        return (text + self.block(levels) + self.tag(f"set ns.{self.pick('a', 'b')} = {self.expression()}") + "{{ ns.a }}")

    def capture(self, levels):
        name = self.name()
        filters = self.pick("", "", " | upper", " | trim | title")
        text = self.tag(f"set {name}{filters}") + self.block(levels) + self.tag("endset")
        self.locals.append(name)
        return text

    def macro(self, levels):
        name = self.pick("m1", "m2")
        parameters = ["p0", "p1"][:self.random.randrange(3)]
        heads = list(parameters)
        if heads and self.happens(0.5):
            heads[-1] += f"={self.expression('any', 1)}"
        kept, loops = list(self.locals), self.loops
        self.locals = kept + parameters + self.pick([], [], ["varargs"], ["kwargs"], ["caller()"])
        self.loops = 0
        text = self.tag(f"macro {name}({', '.join(heads)})") + self.block(levels) + self.tag("endmacro")
        self.locals, self.loops = kept, loops
        self.macros.append((name, len(parameters)))
        return text + (f"{{{{ {self.macro_call(1)} }}}}" if self.happens(0.7) else "")

    def call_block(self, levels):
        if not self.macros:
            return ""
        parameter = self.pick("", "", "(q)", "(q=1)")
        loops, self.loops = self.loops, 0
        text = self.tag(f"call{parameter} {self.macro_call(1)}") + self.block(levels) + self.tag("endcall")
        self.loops = loops
        return text

    def filter_block(self, levels):
        return self.tag(f"filter {self.text_filter(1)}") + self.block(levels) + self.tag("endfilter")

    def generation(self, levels):
        loops, self.loops = self.loops, 0
        text = self.tag("generation") + self.block(levels) + self.tag("endgeneration")
        self.loops = loops
        return text

    def with_block(self, levels):
        name = self.name()
        text = self.tag(f"with {name} = {self.expression()}{self.pick('', ', w = %s' % name)}")
        kept = list(self.locals)
        self.locals.append(name)
        text += self.block(levels)
        self.locals = kept
        return text + self.tag("endwith")

    def jump(self, levels):
        if not self.loops:
            return self.data()
        jump = self.tag(self.pick("break", "continue"))
        return jump if self.happens(0.3) else self.tag(f"if {self.expression('bool', 1)}") + jump + self.tag("endif")

    def raw(self, levels):
        return self.tag("raw").replace("+%}", "%}") + self.data() + self.pick("{{ x }}", "{% y %}", "{#", "") + self.tag("endraw")

    def comment(self, levels):
        return "{#" + self.pick("", "-", "+") + self.pick(" c ", "\n", "{{ x }}", "") + self.pick("", "-", "+") + "#}"

    def broken(self, text):
        for _ in range(self.random.randrange(1, 4)):
            at = self.random.randrange(len(text) + 1)
            to = at + self.random.randrange(1, 4)
            middle = self.pick("", text[at:to] * 2, text[at:to][::-1],
                               self.pick("{{", "}}", "%}", "{%", "-", "|", ".", "(", "]", "'", " is ", " not ", ", ", "#}",
                                         "~", "**", "if ", "else ", "1", "0x1", ".5", "=", ":"))
            text = text[:at] + middle + text[to:]
        return text

    def template(self):
        text = self.block(2)
        return self.broken(text) if self.happens(0.1) else text


def draw(seed):
    """Returns a template and its values."""
    drawer = Drawer(seed)
    values = drawer.values()
    if drawer.happens(0.15):
        return "{{ " + drawer.expression() + " }}", json.loads(json.dumps(values))
    return drawer.template(), json.loads(json.dumps(values))
