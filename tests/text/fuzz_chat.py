#!/usr/bin/env python3
"""Chat templates against jinja2 with the settings of transformers: random conversations through the templates of
tests/text/chat, and random templates. Needs PyPI's transformers and jinja2.

    ninja -C build tests/chat_records
    tests/text/fuzz_chat.py --build build --rounds 20000

If the reference returns a text, this library returns the same, or says that something is not supported. If the
reference fails, this library fails, with one exception: jinja2 looks for unknown filters and tests in all of a template
but the branches of an `if`, this library only where the rendering comes."""
import argparse
import json
import pathlib
import random
import subprocess
import sys

import chat_reference

HERE = pathlib.Path(__file__).resolve().parent
ALLOWED = ("not supported", "supported only", "is supported for", "beyond 64 bits")
NAMES = ["messages", "tools", "add_generation_prompt", "bos_token", "missing", "x", "y", "ns", "d", "l", "s", "f", "i", "t", "h", "h"]
PRELUDE = ("{% set x = messages[0].content %}{% set y = 3 %}{% set ns = namespace(a=1, s='q') %}"
           "{% set d = {'a': 1, 'b': [1, 2], 'Zed': 'z', 'items': 5} %}{% set l = [3, 1, 2, 'b', none] %}"
           "{% set s = ' Ab,c\\n\\u00e9 ' %}{% set f = 2.5 %}{% set i = 7 %}{% set t = (1, 'k') %}"
           "{% macro m(a, b=2, c='c') %}<{{ a }}|{{ b }}|{{ c }}>{% endmacro %}"
           "{% macro n(a, b=2) %}[{{ a }}{{ caller(a, 'q') if caller }}{{ varargs }}{{ kwargs }}]{% endmacro %}"
           "{% set h = '<i> & \"x\"' | safe %}")
FILTERS = ["trim", "upper", "lower", "capitalize", "title", "length", "count", "list", "first", "last", "string", "int",
           "float", "abs", "reverse", "sort", "unique", "tojson", "items", "dictsort", "sum", "min", "max", "round",
           "join", "join(', ')", "join('-', attribute='role')", "default('dflt')", "default('z', true)", "d(1)",
           "replace('a', 'xy')", "replace('', '.', 2)", "indent", "indent(2, true)", "indent('> ', blank=true)",
           "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true, separators=(',', ':'))",
           "map(attribute='role')", "map('upper')", "map('trim') | list", "selectattr('role', 'equalto', 'user')",
           "rejectattr('role', 'in', ['user', 'tool'])", "selectattr('content')", "select", "select('string')",
           "reject('none')", "select('gt', 1)", "map(attribute='content', default='q')", "sort(attribute='role')",
           "sort(reverse=true)", "trim('Ab ')", "int(5)", "float(1.5)", "list | length", "list | tojson", "map('int')",
           "sum(attribute='n')", "sort(case_sensitive=true)", "unique | list", "reverse | list", "items | list", "safe",
           "batch(2) | list", "batch(2, 'f') | list", "slice(2) | list", "slice(3, x) | list", "attr('a')", "attr('upper')", "center(9)",
           "center(8)", "e", "escape", "forceescape", "truncate(4)", "truncate(5, true, '', 0)", "truncate(3, leeway=0)",
           "truncate(6, end=h)", "map('escape') | list", "map('unheard') | list", "map(s) | list", "select('unheard') | list",
           "unheard", "unheard(1)"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "iterable",
         "sequence", "true", "false", "odd", "even", "equalto(1)", "eq 3", "in [1, 3, 'user']", "divisibleby 3", "gt 2",
         "not none", "not defined", "not string", "lt('b')", "ne none", "callable", "==(7)",
         "sameas true", "sameas none", "sameas false", "escaped", "filter", "test", "unheard", "unheard(2)"]
METHODS = ["strip()", "lstrip()", "rstrip('c')", "split()", "split(',')", "split(',', 1)", "rsplit(',', 1)", "upper()",
           "lower()", "title()", "capitalize()", "startswith('A')", "endswith(('x', ' '))", "replace('b', 'B')",
           "replace('b', '', 1)", "get('a')", "get('zz')", "get('zz', 9)", "items()", "keys()", "values()", "join(['p', 'q'])",
           "find('b')", "count('b')", "rfind('zz')", "splitlines()", "index(1)", "index('b')", "copy()", "isdigit()",
           "removeprefix(' ')", "removesuffix(' ')", "append(1)", "pop()", "update({})", "content", "role", "a", "b", "items",
           "encode()", "missing", "real", "0", "strip", "get"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "and", "or", "in", "not in"]
ENDS = ["%}", "-%}", "+%}"]
BEGINS = ["{%", "{%-", "{%+"]
WHITE = ["", " ", "\n", "\n\n", "  \n  ", "\t", "text", "  text  ", "\r\n", " text\n  ", "é\n"]


class Maker:
    """Makes templates that jinja2 parses, mostly."""

    def __init__(self, rng):
        self.rng = rng

    def atom(self):
        kind = self.rng.randrange(10)
        if kind < 5:
            return self.rng.choice(NAMES)
        if kind == 5:
            return self.rng.choice(["0", "1", "-3", "2.5", "1e3", "10", "true", "false", "none", "1_000", "0x1F", "1e16"])
        if kind == 6:
            return self.rng.choice(["'a'", '"b\\n"', "''", "'user'", "'\\u00e9\\t'", "'it\\'s'", "'x' 'y'", "'Ab,c'"])
        if kind == 7:
            return self.rng.choice(["messages[0]", "messages[-1].role", "messages[::-1]", "messages[1:]", "messages[99]",
                                    "messages[0]['content']", "messages[0].content[::2]", "x[1:-1]", "x[0]", "x[::-1]", "l[:2]",
                                    "d['a']", "d.b[0]", "d['items']", "d.items", "ns.a", "ns.s", "tools[0].function.name", "t[1]", "l[5]"])
        if kind == 8:
            return self.rng.choice(["[]", "{}", "()", "[1, 'two', 3.0]", "{'k': [1]}", "(1,)", "{1: 2}", "range(3)", "range(5, 1, -2)",
                                    "m(1)", "m(1, c=x)", "m()", "dict(a=1)", "namespace()",
                                    "m(*l)", "m(*[1, 2])", "m(1, *t)", "m(**{'a': 1, 'c': x})", "m(1, **{'a': 2})", "m(*x)", "m(*missing)",
                                    "n(1, 2, 3, *t)", "n(k=1, **d)", "n(*[], **{'caller': m})", "n(1, a=3)", "dict(**d)", "range(*[1, 3])",
                                    "m(1, b=2, *[3])", "n(x, q=h)"])
        return "(" + self.expression(2) + ")"

    def expression(self, depth=0):
        kind = self.rng.randrange(12)
        if depth > 3 or kind < 3:
            return self.atom()
        if kind < 6:
            return self.expression(depth + 1) + " | " + self.rng.choice(FILTERS)
        if kind == 6:
            return self.expression(depth + 1) + " is " + self.rng.choice(TESTS)
        if kind < 9:
            return self.expression(depth + 1) + " " + self.rng.choice(BINARY) + " " + self.expression(depth + 1)
        if kind == 9:
            return self.atom() + "." + self.rng.choice(METHODS)
        if kind == 10:
            return self.expression(depth + 1) + " if " + self.expression(depth + 1) + self.rng.choice([" else " + self.atom(), ""])
        return self.rng.choice(["not ", "-", ""]) + self.atom()

    def tag(self, text):
        return self.rng.choice(BEGINS) + " " + text + " " + self.rng.choice(ENDS)

    def statement(self, depth):
        kind = self.rng.randrange(14)
        rng = self.rng
        if kind < 5 or depth > 3:
            return rng.choice(["{{ ", "{{- "]) + self.expression() + rng.choice([" }}", " -}}"])
        if kind < 7:
            out = self.tag("if " + self.expression()) + self.body(depth)
            if rng.random() < 0.3:
                out += self.tag("elif " + self.expression()) + self.body(depth)
            if rng.random() < 0.5:
                out += self.tag("else") + self.body(depth)
            return out + self.tag("endif")
        if kind < 9:
            target = rng.choice(["x", "i", "message", "k, v", "(k, v)"])
            over = rng.choice(["messages", "d.items()", "d", "l", "range(3)", "x", "messages[1:]", "d | dictsort", "tools", self.atom()])
            condition = rng.choice(["", "", " if loop is undefined", " if " + target.split(",")[0].strip("(") + " != 1", " if y"])
            inner = self.body(depth) + rng.choice(["", "{{ loop.index }}", "{{ loop.last }}{{ loop.length }}", "{{ loop.previtem }}",
                                                   "{{ loop.revindex0 }}", "{{ loop.nextitem is defined }}", "{% set y = y + 1 %}{{ y }}",
                                                   "{% set ns.a = ns.a + 1 %}", "{% if loop.index == 2 %}{% break %}{% endif %}",
                                                   "{% if loop.first %}{% continue %}{% endif %}", "{{ loop.cycle('o', 'e') }}",
                                                   "{{ loop.changed(x) }}", "{{ loop.depth }}"]) + self.body(depth)
            other = self.tag("else") + "none" if rng.random() < 0.3 else ""
            return self.tag(f"for {target} in {over}{condition}") + inner + other + self.tag("endfor")
        if kind < 11:
            return self.tag("set " + rng.choice(["x", "y", "ns.a", "ns.b", "z", "k, v", "i"]) + " = " + self.expression())
        if kind == 11:
            return self.tag("set x" + rng.choice(["", " | trim", " | upper | trim"])) + self.body(depth) + self.tag("endset")
        if kind == 12:
            return rng.choice(["{# note #}", "{#- note -#}", "{#\n note\n#}\n", "{% raw %} {{ x }} {%- endraw -%}\n", "{% raw -%}\n {% if %}\n{% endraw %}",
                               "{% with q = 1, x = y %}{{ q }}{{ x }}{% endwith %}", "{% filter upper %}a{{ x }}{% endfilter %}",
                               "{% generation %}g{% set x = 1 %}{{ x }}{% endgeneration %}", "{%- macro w(p, q=x) -%} {{ p }}{{ q }} {%- endmacro -%}{{ w(1) }}{{ w(y, 2) }}"])
        if rng.random() < 0.5:
            return self.tag("call" + rng.choice([" ", "(p) ", "(p, q='d') ", "() "]) + rng.choice(
                ["n(1)", "n(x, 3)", "m(1)", "n(y, 1, 2, z=3)", "n(*l)", "caller()", "s.upper()", "dict()", "x", "d.get('a')"])
                ) + self.body(depth) + rng.choice(["", "{{ p }}", "{{ caller }}", "{{ varargs }}"]) + self.tag("endcall")
        return self.tag("print " + self.expression())

    def body(self, depth=0):
        return "".join(self.rng.choice(WHITE) + self.statement(depth + 1) for _ in range(1 if self.rng.random() < 0.7 else 2)) + self.rng.choice(WHITE)


class Records:
    """The program that renders with this library."""

    def __init__(self, build):
        self.process = subprocess.Popen([pathlib.Path(build) / "tests/chat_records"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def render(self, template, conversation, prompt):
        record = {"template": template, "tokens": chat_reference.TOKENS, "conversation": conversation, "prompt": prompt}
        self.process.stdin.write(json.dumps(record).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the program ended on {record}")
        answer = json.loads(line)
        return answer.get("text"), answer.get("error")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    print("seed", arguments.seed)
    rng = random.Random(arguments.seed)
    records = Records(arguments.build)
    written = {path.stem: path.read_text() for path in (HERE / "chat").glob("*.jinja")}
    counts = {"equal": 0, "both fail": 0, "refused": 0, "not reached": 0}
    failures = 0
    for _ in range(arguments.rounds):
        if rng.random() < 0.2:
            name = rng.choice(sorted(written))
            template = written[name]
            conversation = chat_reference.conversation(rng, chat_reference.TAKES_PARTS.get(name))
        else:
            template = PRELUDE + Maker(rng).body()
            conversation = chat_reference.conversation(rng, False)
        prompt = rng.random() < 0.8
        wanted, why = chat_reference.reference(template, conversation, prompt)
        got, error = records.render(template, conversation, prompt)
        if wanted == got:
            counts["equal" if wanted is not None else "both fail"] += 1
        elif got is None and any(words in error for words in ALLOWED):
            counts["refused"] += 1
        elif why and why.startswith(("TemplateAssertionError: No filter named 'unheard'", "TemplateAssertionError: No test named 'unheard'")):
            counts["not reached"] += 1
        else:
            failures += 1
            print("template:    ", repr(template[len(PRELUDE):] if template.startswith(PRELUDE) else template))
            print("conversation:", conversation)
            print("wanted:      ", repr(wanted), why)
            print("got:         ", repr(got), error)
            if failures == 10:
                break
    print(counts, failures, "failures")
    sys.exit(1 if failures else 0)


main()
