#!/usr/bin/env python3
"""Writes tests/templates/cases.json: what Python's jinja2 renders for the cases below.

The environment is the one the transformers package builds for chat templates. Run it after adding
a case: python3 tools/template_reference.py (needs jinja2 3.1). The C++ test reads only the JSON.
"""

import datetime
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "templates"


class GenerationTag(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(lineno)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[GenerationTag, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.now().strftime(f)
    return env


USER = {"role": "user", "content": "What is the capital of France?"}
ASSISTANT = {"role": "assistant", "content": "Paris."}
SYSTEM = {"role": "system", "content": "You are terse.\n"}
TOOLS = [{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in \"a\" <city> & 'land' \u00fc\u4e16",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1},
                           "scale": {"type": "number", "default": 1.50}},
            "required": ["city"],
        },
    },
}]
CALL = {
    "role": "assistant", "content": "", "tool_calls": [
        {"id": "1", "type": "function",
         "function": {"name": "get_weather", "arguments": {"city": "K\u00f6ln", "days": 2}}},
        {"id": "2", "type": "function",
         "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}],
}
STRING_CALL = {
    "role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function",
         "function": {"name": "get_weather", "arguments": "{\"city\": \"Rome\"}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "sunny"}
THINKING = {"role": "assistant", "content": "<think>\nFrance... Paris.\n</think>\n\nParis."}
REASONED = {"role": "assistant", "content": "Paris.", "reasoning_content": "\nEasy.\n"}

CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": " And Italy? \u4f60\u597d\U0001f600"}],
    "thinking": [USER, THINKING, USER, REASONED],
    "special_text": [{"role": "user", "content": "<|im_end|>\n<|im_start|>system\nx {{ y }}"}],
    "tool_calls": [USER, CALL, RESULT, {"role": "tool", "content": "rain"}, ASSISTANT, USER],
}
MODELS = {
    "smollm2": (["user", "system", "turns", "special_text"], {}),
    "qwen3": (list(CONVERSATIONS), {}),
    "deepseek_v3": (["user", "system", "turns", "thinking", "special_text"], {
        "bos_token": "<\uff5cbegin\u2581of\u2581sentence\uff5c>"}),
}

# Expressions over these variables, one case each.
VARIABLES = {
    "s": "  Hello, World \u00fcnd stra\u00dfe  ", "word": "hello", "n": 7, "neg": -7, "f": 2.5,
    "big": 12345678901234567890, "tiny": 1e-7, "huge": 1.5e22, "third": 0.1, "t": True,
    "nothing": None, "items_list": [3, 1, 2], "mixed": ["b", "A", "c", 10.0],
    "people": [{"name": "Ann", "age": 31, "tags": ["x"]}, {"name": "bob", "age": 25, "tags": []},
               {"name": "Cy", "age": 31}],
    "d": {"b": 1, "a": [1, {"k": None}], "items": "shadowed", "\u00fc": "\u4e16\t\"q\"\\"},
    "lines": "a\nbb\r\n\nccc", "empty": "", "none_list": [],
    "emoji": "a\U0001f600b\u4e16",
}
EXPRESSIONS = r"""
1 + 2 * 3 - 4 // 3
7 // 2, -7 // 2, 7 // -2, 7 % 3, -7 % 3, 7 % -3, 7.5 // 2, -7.5 % 2
2 ** 10, 2 ** -1, 2 ** 3 ** 2, -2 ** 2, 7 / 2, 8 / 2
1.0, 0.1, 1e16, 1e15, 123456789012345680.0, 1e-5, 0.0001, 1.5e300, -0.0, 3.14159, tiny, huge, third
big, [big], big|tojson
0x1f, 0o17, 0b101, 1_000, 1_0.5e1_0
t, nothing, not t, t + 1, t == 1, nothing == none
n ~ "x" ~ 1.0 ~ none ~ true ~ [1, "a"]
"a" "b" 'c', "tab\t\x41\u00e9\101", 'it\'s', "q\"q"
["it's", 'a"b', "both'\"", "new\nline", "\x07", "é世"]
(1,), (), (1, 2), [], {}, {"a": (1, [2])}
word[0], word[-1], word[1:3], word[::-1], word[10], word[::2], word[-3:], word[:-1], word[4:1:-1]
emoji[1], emoji[::-1], emoji|length, emoji[1:3], emoji[-1]
items_list[::-1], items_list[1:], items_list[-1], items_list[5], items_list[0:2][0], items_list[::-2]
people[0].name, people[0]["age"], people[-1].tags is defined, people[0].tags[0]
d.b, d["a"][1].k, d.missing, d.missing is defined, d["items"], d.get("b"), d.get("zz"), d.get("zz", 5)
d.keys()|list, d.values()|list, d.items()|list, d|items|list, d|length
d
d|tojson
d|tojson(indent=2)
d|tojson(indent=2, sort_keys=true)
d|tojson(ensure_ascii=true), d|tojson(separators=(",", ":"))
[1.0, 1e100, 0.1, true, none, "</script>&'"]|tojson, {1: 2, 1.5: 3, none: 4, true: 5}|tojson
[]|tojson(indent=2), {}|tojson(indent=2), [[]]|tojson(indent=4), ((1, 2), "x")|tojson
d.keys(), d.values(), d.items(), range(3), range(5, 1, -2), range(0)
range(10)|list, range(2, 8, 3)|list, 3 in range(5), range(5)[2], range(5)[1:3], range(5)|length
"el" in word, "xx" not in word, 2 in items_list, "b" in d, "zz" in d, 3 not in (1, 2)
1 < 2 < 3, 1 < 3 < 2, 1 == 1.0, "a" < "b", [1, 2] < [1, 3], (1, 2) == (1, 2), [1] == (1,)
"yes" if n > 5 else "no", ("x" if false), "a" if t and not nothing else "b"
n is odd, n is even, n is divisibleby 7, n is number, f is float, n is integer, t is boolean, t is integer
word is string, d is mapping, items_list is sequence, d is sequence, word is iterable, n is iterable
nothing is none, undefined_x is defined, undefined_x is undefined, t is true, t is false, none is not none
word is eq "hello", n is ge 7, n is lt(3), 3 is in items_list, "x" is in "xyz", n is sameas n
word is lower, "ABC" is upper, "Abc" is lower, "123" is lower, range is callable
undefined_x, undefined_x|default("dflt"), empty|default("e"), empty|default("e", true), nothing|d("n")
undefined_x|length, undefined_x|list, undefined_x|join(","), undefined_x|string, undefined_x == undefined_y
s|trim, s|trim|length, s.strip() == s|trim, "xxhixx".strip("x"), "xyhi".lstrip("yx"), "hi\n\n".rstrip("\n")
s|upper, s|lower, s|title, s|capitalize, "hello wORLD-foo (bar)"|title, "hello wORLD it's"|capitalize
s.upper(), s.title(), "they're bill's".title(), word.capitalize(), "aBc".swapcase(), "ﬀ ß ŉ".upper()
"ΑΣ ΟΔΟΣ".lower(), "İI".lower(), "ǆ".title(), "ÀÉ".lower()
word.replace("l", "L"), word.replace("l", "L", 1), word|replace("l", ""), "aaa"|replace("a", "bb", 2), "ab".replace("", "-")
"a,b,,c".split(","), "a,b,,c".split(",", 1), " a  b c ".split(), "a  b c".split(none, 1), "a,b,c".rsplit(",", 1), " a b  c ".rsplit(none, 1), " a b  c ".split(none, 1)
"aXXbXXc".split("XX")[-1], "aXXb".rsplit("XX"), "".split(","), "".split(), "aaa".split("aa"), "aaaa".rsplit("aa", 1)
lines.splitlines(), lines.splitlines(true), "a\n".splitlines(), lines|indent, lines|indent(2, true), lines|indent(2, blank=true), lines|indent("> ")
word.startswith("he"), word.startswith(("x", "h")), word.endswith("lo"), word.endswith("x"), word.startswith("l", 2)
word.find("l"), word.find("z"), word.rfind("l"), word.index("l"), word.count("l"), "é世x".find("x"), "aaa".count("aa"), "ab".count("")
word.partition("l"), word.rpartition("l"), word.partition("z"), word.rpartition("z")
word.center(11, "*"), word.ljust(8) ~ "|", word.rjust(8) ~ "|", "42".zfill(5), "-42".zfill(5), word|center(9) ~ "|", "abc".center(4) ~ "|"
word.removeprefix("he"), word.removesuffix("lo"), "-".join(["a", "b"]), "".join([])
"abc".isalpha(), "a1".isalnum(), "12".isdigit(), " ".isspace(), "".isalpha(), "Ab".istitle(), "AB".isupper(), "世".isalpha(), "x".isascii()
"%s is %d and %.2f, %5s|%-5s|%05d|%x|%%|%+d|%r" % ("a", 3, 2.5, "r", "l", 42, 255, 7, "q")
"%s" % word, "%s" % [1], "%(a)s-%(b)03d" % {"a": 1, "b": 2}, "%d" % 3.9, "%e" % 12345.678, "%g" % 0.0001, "%.3s" % "abcdef", "%c" % "x"
"%s and %s"|format("a", 1), "%(x)s"|format(x=5), "{} {1} {x}".format("p", "q", x="r") if false else "skip"
"{0}-{1}-{0}".format("a", 2), "{} {}".format("x", [1]), "{{}} {a!r}".format(a="b")
items_list|sort, items_list|sort(reverse=true), ["b", "A", "c"]|sort, ["b", "A", "c"]|sort(case_sensitive=true), people|sort(attribute="age,name")|map(attribute="name")|list
people|map(attribute="name")|join(", "), people|map(attribute="tags", default="none")|list, ["a", "B"]|map("upper")|list, [" x "]|map("trim")|list, people|map(attribute="tags.0", default="-")|list
people|selectattr("age", "equalto", 31)|map(attribute="name")|list, people|rejectattr("tags")|list|length, people|selectattr("tags", "defined")|list|length, people|selectattr("name", "in", ["bob"])|list|length
[1, 2, 3, 4]|select("even")|list, [1, 0, 2]|select|list, [1, 2, 3]|reject("odd")|list, [0, 1, "", "a"]|reject|list, [1, 2, 3]|select("gt", 1)|list
items_list|first, items_list|last, none_list|first is defined, word|first, word|last, items_list|min, items_list|max, items_list|sum, people|sum(attribute="age"), ["b", "A"]|min
items_list|reverse|list, word|reverse, items_list|unique|list, ["a", "A", "b", "a"]|unique|list, [1, 1.0, true, 2]|unique|list
d|dictsort|map("first")|list, {"B": 1, "a": 3, "c": 2}|dictsort, {"B": 1, "a": 3, "c": 2}|dictsort(by="value", reverse=true), {"B": 1, "a": 3}|dictsort(true)
[1, 2, 3, 4, 5]|batch(2)|list, [1, 2, 3]|batch(2, "x")|list, [1, 2, 3, 4, 5]|slice(2)|list, [1, 2, 3]|slice(2, 0)|list
people|groupby("age")|map("first")|list, (people|groupby("age"))[0].grouper, (people|groupby("age"))[1].list|length
"42"|int, "42.9"|int, "x"|int, "x"|int(-1), "ff"|int(0, 16), "0x1F"|int(0, 16), " 7 "|int, 3.9|int, -3.9|int, none|int(5), true|int, "1_000"|int
"2.5"|float, "x"|float, "x"|float(1.5), 3|float, "1e3"|float, "inf"|float, "nan"|float, " 2 "|float
2.5|round, 3.5|round, 2.675|round(2), 42.55|round(1, "ceil"), 42.55|round(1, "floor"), 7|round, -3|abs, -2.5|abs, 1234.5|round(-2)
"one two  three"|wordcount, "a long sentence to cut"|truncate(10), "a long sentence to cut"|truncate(10, true), "short"|truncate(10), "abcdefghijklmnopqrst"|truncate(12, false, "!", 0)
"<a href='x'>&\"</a>"|e, "<b>"|safe, "<b>"|e ~ "<i>", "<b>"|safe + "<i>", "<i>" + "<b>"|safe + 1|string + "&", "<b>"|e|e, "a b/c?é"|urlencode, n|string ~ "!", [1, 2]|string, 5|string|length
"a" * 3, 3 * "ab", [1] * 2, [1] + [2], (1,) + (2,), "x" * 0, "x" * -1, [0] * 2 + [1]
dict(a=1, b=2), dict([("x", 1)], y=2), dict({"p": 1}), {"a": 1, "a": 2}, {1: "i", true: "b"}
namespace(a=1).a, namespace().b is defined, namespace({"x": 3}).x
{"a": 1}.a, {"a": {"b": [10, 20]}}.a.b.1, [[1, 2], [3]][0][1], ("a", "b").1
[1, 2, 3]|join, [1, 2, 3]|join("-"), ["a"]|join(", "), people|join(",", attribute="name"), "abc"|join(".")
"abc"|list, {"x": 1, "y": 2}|list, (1, 2)|list, range(2)|list|tojson
n if n is defined and n > 0 else 0, (n > 5) and "big", nothing or "fallback", 0 or none or "", 1 and 2
not n == 7, not (n == 7) or t, n == 7 and n != 8, 1 in [1] == true
-n|abs, -7|abs, +n, - -n, (-n)|abs, -n ** 2, -(n ** 2)
1 if t else 2 if nothing else 3, (1 if nothing else 2 if nothing else 3)
"\n".join(["a", "b"]), "a\\nb", "\\", "\q", "line\
cont"
people|map(attribute="name")|map("lower")|sort|join("/"), (people|map(attribute="age")|list)[0]
items_list.index(2), items_list.count(1), (1, 2, 1).count(1), "a".__class__ is defined, d.copy() == d
"x" is filter, "upper" is filter, "odd" is test, "zz" is test
[nothing, t, f, word], {"k": nothing}, (t, f), [[], {}], {"x": [1.0]}
n|default(1)|string|length, word|upper|lower|title, (1, 2)|length, {"a": 1}|length
"A-B_c d"|lower|replace("-", "_")|replace(" ", "_"), "2024-01-02"[:4]|int + 1
cycler("a", "b").next(), cycler("a").current, joiner("|")() ~ "."
""".strip("\n")

# Whole templates: statements, scopes, whitespace.
STATEMENTS = {
    "if_elif_else": "{% if n > 10 %}a{% elif n == 7 %}b{% else %}c{% endif %}\n",
    "for_loop_vars": "{% for x in items_list %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/"
                     "{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/"
                     "{{ loop.previtem }}/{{ loop.nextitem }};{% endfor %}",
    "for_unpack": "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}"
                  "{% for (a, b), c in [((1, 2), 3)] %}{{ a + b + c }}{% endfor %}",
    "for_else": "{% for x in none_list %}x{% else %}empty{% endfor %}{% for x in [1] %}y{% else %}n{% endfor %}",
    "for_filter": "{% for p in people if p.age > 30 %}{{ loop.index }}{{ p.name }}{{ loop.last }},{% endfor %}",
    "for_dict": "{% for k in d %}{{ k }},{% endfor %}{% for c in 'hé' %}[{{ c }}]{% endfor %}{% for x in missing %}z{% endfor %}",
    "for_nested": "{% for a in [1,2] %}{% set o = loop %}{% for b in 'xy' %}{{ o.index }}{{ b }}{{ loop.index }} {% endfor %}{% endfor %}",
    "for_recursive": "{% for x in [{'v':1,'c':[{'v':2,'c':[]},{'v':3,'c':[{'v':4,'c':[]}]}]}] recursive %}"
                     "{{ loop.depth }}:{{ x.v }}({{ loop(x.c) }}){% endfor %}",
    "for_cycle_changed": "{% for x in [1,1,2,2] %}{{ loop.cycle('a','b') }}{{ loop.changed(x) }} {% endfor %}",
    "break_continue": "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "scope_of_set": "{% set x = 1 %}{% for i in [1,2] %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}"
                    "{% if true %}{% set x = 9 %}{% endif %}{{ x }}",
    "namespace_loop": "{% set ns = namespace(total=0, found=false) %}{% for x in items_list %}"
                      "{% set ns.total = ns.total + x %}{% if x == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}"
                      "{{ ns.total }} {{ ns.found }} {{ ns.missing is defined }}",
    "set_unpack": "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, e) = [3, 4] %}{{ c }}{{ e }}{% set t2 = 1, %}{{ t2 }}",
    "set_block": "{% set x %}\n  <{{ n }}>\n{% endset %}[{{ x }}]{% set y | upper | trim %} abc {% endset %}[{{ y }}]",
    "filter_block": "{% filter upper|replace('B', 'x') %}abc {{ word }}{% endfilter %}",
    "with": "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}{{ b is defined }}",
    "macro": "{% macro m(a, b='d', c=a) %}<{{ a }}|{{ b }}|{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=5, a=4) }}{{ m() }}",
    "macro_varargs": "{% macro m(a) %}{{ a }}:{{ varargs }}:{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}{{ m(*[1, 2], **{'k': 'v'}) }}",
    "macro_scope": "{% set x = 'outer' %}{% macro m() %}{{ x }}{% set x = 'inner' %}{% endmacro %}{{ m() }}{% set x = 'later' %}{{ m() }}{{ x }}",
    "macro_recursion": "{% macro f(n) %}{% if n > 0 %}{{ n }},{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "macro_output": "{% macro m() %}  a {% endmacro %}[{{ m()|trim }}]{{ m() ~ 'x' }}{{ m().strip() == 'a' }}{{ m.name }}",
    "call_block": "{% macro box(title) %}<{{ title }}>{{ caller() }}</{{ title }}>{% endmacro %}{% call box('b') %}in {{ n }}{% endcall %}",
    "call_args": "{% macro each(xs) %}{% for x in xs %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}"
                 "{% call(v, i) each(items_list) %}{{ i }}={{ v }};{% endcall %}",
    "caller_undefined": "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}",
    "generation": "{% for p in people %}{% generation %}{{ p.name }}{% set q = 1 %}{% endgeneration %}{{ q is defined }};{% endfor %}",
    "raw": "{% raw %}{{ not }} {% evaluated %}{% endraw %}\n{%- raw -%}  x  {%- endraw -%}  y{% raw %}\n z\n{% endraw %}\nw",
    "comments": "a{# c #}b\n{# line #}\nc{#- strip -#} d\n  {# indented #}\ne",
    "whitespace_plain": "a\n  {% if true %}\n  b\n  {% endif %}\nc\n\n",
    "whitespace_minus": "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc  {{- n -}}  d",
    "whitespace_plus": "a\n  {%+ if true %}\n  b\n  {%+ endif +%}\nc",
    "whitespace_inline": "  {% set x = 1 %}  {% if x %}  y\n{% endif %}  {{ x }}\n\t{% set z = 2 %}\nend",
    "whitespace_variable": "  {{ n }}\n  {{ n }}\n{{ n }}\n",
    "crlf": "a\r\n{% if true %}\r\nb\r{% endif %}\r\nc",
    "unicode_space": "a\u00a0\u3000{%- if true -%}\u2003b{% endif %}",
    "dict_braces": "{{ {'a': {'b': 1}} }}{{ {'a': {}}['a'] }}{% set x = {'k': [1, {'z': 2}]} %}{{ x.k[1].z }}",
    "multi_output": "{{ 1, 2 }}{{ (1) }}{{ [1, 2,] }}{{ {'a': 1,} }}",
    "line_statements": "# for x in y\n## not special\n{{ n }}",
    "elif_chain": "{% for x in [1,2,3,4] %}{% if x == 1 %}a{% elif x == 2 %}b{% elif x == 3 %}c{% else %}d{% endif %}{% endfor %}",
    "call_undefined_default": "{{ (missing or {}).get('x', 'y') }}{{ missing.x if missing is defined else 'safe' }}",
    "groupby_loop": "{% for g in people|groupby('age') %}{{ g.grouper }}:{% for p in g.list %}{{ p.name }}{% endfor %};{% endfor %}"
                    "{% for k, v in people|groupby('age') %}{{ k }}{{ v|length }}{% endfor %}",
    "generator_truth": "{% if people|selectattr('age', 'gt', 99) %}yes{% else %}no{% endif %}"
                       "{% set g = people|map(attribute='name') %}{{ g|list }}{{ g|list }}",
    "string_in_loop": "{%- for m in [{'role':'user','content':'x'},{'role':'assistant','content':'y'}] -%}\n"
                      "{{- '<|' + m['role'] + '|>' }}\n{{ m['content'] | trim -}}\n{%- endfor -%}",
    "alternation_check": "{% for m in [1,2,3] %}{% if (loop.index0 % 2 == 0) != (m % 2 == 1) %}bad{% else %}ok{% endif %}{% endfor %}",
    "loop_index_math": "{% for m in people %}{{ people[loop.index0 - 1].name }}{{ people[loop.index0 + 1].name if not loop.last }};{% endfor %}",
    "macro_default_list": "{% macro m(xs=[], sep=', ') -%}{{ xs|join(sep) }}{%- endmacro %}{{ m() }}{{ m([1,2]) }}{{ m([1,2], sep='-') }}",
    "joiner_cycler": "{% set j = joiner('; ') %}{% set c = cycler('x', 'y') %}{% for i in range(3) %}{{ j() }}{{ c.next() }}{{ c.current }}{% endfor %}",
    "nested_macro": "{% macro a(x) %}{% macro b(y) %}{{ x }}{{ y }}{% endmacro %}{{ b(1) }}{{ b(2) }}{% endmacro %}{{ a('p') }}",
    "if_expression_output": "{{ 'a' if n == 7 }}{{ 'a' if n == 8 }}{{ (n == 8 and 'x') or 'y' }}",
    "strip_around_expr": "x {{- ' a ' -}} y {{- -1 }}",
    "trailing_newlines": "a\n\n\n",
    "tool_schema": "{% for t in tools %}{{ t | tojson(indent=4) }}\n{% for k, v in t.function.parameters.properties|dictsort %}"
                   "{{ k }}: {{ v.type }}{{ ' = ' ~ v.default if v.default is defined }}{{ '?' if k not in t.function.parameters.required }}\n{% endfor %}{% endfor %}",
}

# Templates that must fail; only the fact is compared.
ERRORS = {
    "undefined_attribute": "{{ missing.x }}",
    "undefined_add": "{{ 'a' + missing }}",
    "str_plus_int": "{{ 'a' + 1 }}",
    "none_iteration": "{% for x in nothing %}{% endfor %}",
    "call_undefined": "{{ missing() }}",
    "unknown_filter": "{{ 1|nope }}",
    "unknown_test": "{{ 1 is nope }}",
    "unknown_tag": "{% nope %}",
    "unclosed_block": "{% if true %}x",
    "unclosed_variable": "{{ x",
    "unclosed_comment": "{# x",
    "unclosed_string": "{{ 'x }}",
    "bad_bracket": "{{ (1] }}",
    "stray_end": "{% endif %}",
    "append": "{{ items_list.append(4) }}",
    "update": "{{ d.update({'x': 1}) }}",
    "raise": "{{ raise_exception('no good') }}",
    "range_too_big": "{% for x in range(10**9) %}{% endfor %}",
    "division_by_zero": "{{ 1 // 0 }}",
    "namespace_only": "{% set d.x = 1 %}",
    "unpack_mismatch": "{% set a, b = [1] %}",
    "order_mixed": "{{ [1, 'a']|sort }}",
    "tojson_undefined": "{{ missing|tojson }}",
    "in_none": "{{ 1 in nothing }}",
    "macro_too_many": "{% macro m() %}{% endmacro %}{{ m(1) }}",
    "include": "{% include 'x' %}",
    "empty_expression": "{{ }}",
    "assign_loop_parts": "{% set 1 = 2 %}",
    "percent_missing": "{{ '%s %s' % 'a' }}",
    "negated_string": "{{ -word|length }}",
    "dunder_call": "{{ ''.__class__.mro() }}",
}


def render(env, source, variables):
    try:
        return {"expected": env.from_string(source).render(**variables)}
    except Exception as error:  # noqa: BLE001 - any failure is the expectation
        return {"error": type(error).__name__}


def main():
    env = environment()
    cases = []
    for model, (names, extra) in MODELS.items():
        source = (ROOT / f"{model}.jinja").read_text()
        for name in names:
            for flags in ({"add_generation_prompt": True}, {"add_generation_prompt": False},
                          {"add_generation_prompt": True, "enable_thinking": False},
                          {"add_generation_prompt": True, "tools": TOOLS}):
                if model != "qwen3" and len(flags) > 1:
                    continue
                variables = {"messages": CONVERSATIONS[name], "tools": None, "documents": None,
                             **extra, **flags}
                cases.append({"name": f"{model}/{name}/{len(cases)}", "file": f"{model}.jinja",
                              "variables": variables, **render(env, source, variables)})
    variables = {"messages": [USER, STRING_CALL, RESULT, ASSISTANT], **MODELS["deepseek_v3"][1],
                 "add_generation_prompt": True}
    source = (ROOT / "deepseek_v3.jinja").read_text()
    cases.append({"name": "deepseek_v3/tool_call", "file": "deepseek_v3.jinja",
                  "variables": variables, **render(env, source, variables)})
    for number, expression in enumerate(EXPRESSIONS.replace("line\\\ncont", "line\\\x00cont")
                                        .split("\n")):
        source = "{{ " + expression.replace("\x00", "\n") + " }}"
        cases.append({"name": f"expression/{number}", "template": source,
                      **render(env, source, VARIABLES)})
    for name, source in STATEMENTS.items():
        cases.append({"name": f"statement/{name}", "template": source,
                      **render(env, source, {**VARIABLES, "tools": TOOLS})})
        if "error" in cases[-1]:
            raise SystemExit(f"{name} fails: {cases[-1]}")
    for name, source in ERRORS.items():
        case = {"name": f"error/{name}", "template": source, **render(env, source, VARIABLES)}
        if "error" not in case:
            raise SystemExit(f"{name} renders: {case}")
        cases.append(case)
    failing = [c["name"] + " " + c["template"] + " " + c["error"] for c in cases
               if "error" in c and c["name"].startswith("expression")]
    if failing:
        print("expressions that fail in Python:", *failing, sep="\n")
    out = {"variables": {**VARIABLES, "tools": TOOLS}, "cases": cases}
    (ROOT / "cases.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
