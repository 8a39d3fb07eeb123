#!/usr/bin/env python3
"""Compares regular expressions with Python's re, and grammars with a recogniser written here, on random pairs.

    ninja -C build tests/constraint_records
    tests/constraint/compare.py --program build/tests/constraint_records [--pairs 100000] [--seed 1] [--only regex]

A pair is an expression or a grammar, and a text: one derived from it, that text with a change, or letters at
random. Expressions are matched by re.fullmatch(.., re.ASCII), and in the dialect of ECMA-262 by re.search.
Grammars are generated as trees and written as GBNF and as Lark; texts are derived from the trees, and recognised by
trying every split. Exits with 1 at the first difference.
"""
import argparse
import json
import random
import re
import signal
import subprocess
import sys

ALPHABET = "abcAB01 _-.\né€😀\""
TEXTS = 20  # for each expression or grammar


class TooLong(Exception):
    pass


def stop(*_):
    raise TooLong


class Regex:
    """A random expression, and a function that makes a text that it may match."""

    CLASSES = ["[ab]", "[a-c]", "[^a]", "[^a-c\\n]", "\\d", "\\w", "\\s", "\\D", "\\W", "\\S", "[\\w-]", "[é-€]", ".",
               "[^\\d]", "[a\\-b]", "[\\x41-\\x43]", "\\u20ac", "[^\\W\\d]"]
    MEMBERS = {c: [x for x in ALPHABET if re.fullmatch(c, x, re.ASCII)] for c in CLASSES}

    def __init__(self, rng, dialect):
        self.rng, self.dialect = rng, dialect

    def node(self, depth):
        """(source, derive) of an expression."""
        rng = self.rng
        kind = rng.randrange(12 if depth > 0 else 4)
        if kind < 2:
            c = rng.choice("abcAB01_é€😀")
            return c, lambda: c
        if kind < 4:
            c = rng.choice(self.CLASSES)
            return c, lambda: rng.choice(self.MEMBERS[c] or [""])
        if kind < 7:
            parts = [self.node(depth - 1) for _ in range(rng.randint(1, 3))]
            return "".join(self.grouped(s) for s, _ in parts), lambda: "".join(d() for _, d in parts)
        if kind < 9:
            parts = [self.node(depth - 1) for _ in range(rng.randint(2, 3))]
            if rng.random() < 0.1:
                parts.append(("", lambda: ""))
            return "(?:" + "|".join(s for s, _ in parts) + ")", lambda: rng.choice(parts)[1]()
        source, derive = self.node(depth - 1)
        least, most, count = rng.choice([(0, 3, "*"), (1, 3, "+"), (0, 1, "?"), (2, 2, "{2}"), (1, 3, "{1,3}"),
                                         (2, 4, "{2,}"), (0, 2, "{0,2}")])
        lazy = "?" if rng.random() < 0.1 else ""
        return ("(?:" + source + ")" + count + lazy,
                lambda: "".join(derive() for _ in range(rng.randint(least, most))))

    @staticmethod
    def grouped(source):
        # A count or an alternation is grouped.
        return source if source.startswith("(?:") or len(source) == 1 else "(?:" + source + ")"

    def make(self):
        rng = self.rng
        source, derive = self.node(3)
        kind = rng.randrange(10)
        if kind == 0:
            source = "\\b" + source
        elif kind == 1:
            source = source + "\\b"
        elif kind == 2:
            source, derive = self.around("\\B", source, derive)
        elif kind == 3:
            source = self.ahead() + source
        elif kind == 4:
            source, derive = self.around(self.ahead(), source, derive)
        elif kind == 5 and self.dialect == "regex":
            source = "(?i)" + source
        if self.dialect == "ecma":
            if rng.random() < 0.5:
                source = "^" + self.grouped(source)
            if rng.random() < 0.5:
                source = self.grouped(source) + "$" if not source.startswith("^") else source + "$"
        return source, derive

    def around(self, middle, source, derive):
        more, derive_more = self.node(2)
        return self.grouped(more) + middle + self.grouped(source), lambda: derive_more() + derive()

    def ahead(self):
        source, _ = self.node(2)
        return f"(?{self.rng.choice('=!')}{source})"

    def matches(self, source, text):
        if self.dialect == "regex":
            return re.fullmatch(source, text, re.ASCII) is not None
        # Python's $ also matches before a final line feed, and its . matches other line ends.
        python = re.sub(r"\$$", r"\\Z", source)
        return re.search(python, text, re.ASCII) is not None


def regex_texts(rng, regex, source, derive):
    texts = []
    for _ in range(TEXTS):
        kind = rng.randrange(4)
        if kind == 3:
            text = "".join(rng.choice(ALPHABET) for _ in range(rng.randint(0, 6)))
        else:
            text = derive()
        if kind == 2 or (kind < 2 and regex.dialect == "ecma" and rng.random() < 0.5):
            text = changed(rng, text)
        if "\\B" in source and sys.version_info < (3, 14):
            text = text or "a"  # in earlier versions, \\B did not match the empty text
        texts.append(text[:24])
    return texts


def changed(rng, text):
    place = rng.randint(0, len(text))
    kind = rng.randrange(3)
    if kind == 0:
        return text[:place] + text[place + 1:]
    if kind == 1:
        return text[:place] + rng.choice(ALPHABET) + text[place:]
    return text[:place] + rng.choice(ALPHABET) + text[place + 1:]


class Grammar:
    """A random grammar as trees: ("text", t) ("class", chars) ("seq", ..) ("or", ..) ("rep", node, m, n) ("rule", i).
    No rule reaches its own start."""

    def __init__(self, rng):
        self.rng = rng
        self.count = rng.randint(1, 4)
        self.rules = [self.node(3, guarded=True) for _ in range(self.count)]
        # Written as a left-recursive rule, "root: root sign base | base"; represented here by its meaning.
        self.sign = rng.choice("+-") if rng.random() < 0.2 else None
        self.base = self.rules[0]
        if self.sign:
            more = ("seq", ("text", self.sign), self.base)
            self.rules[0] = ("seq", self.base, ("rep", more, 0, None))

    def node(self, depth, guarded):
        rng = self.rng
        kind = rng.randrange(10 if depth > 0 else 3)
        if kind < 2:
            return ("text", "".join(rng.choice('abc"é\\') for _ in range(rng.randint(1, 3))))
        if kind == 2:
            return ("class", "".join(sorted(set(rng.choice("abcxyzé€") for _ in range(rng.randint(1, 3))))))
        if kind < 5:
            return ("seq", *[self.node(depth - 1, guarded) for _ in range(rng.randint(1, 3))])
        if kind < 7:
            return ("or", *[self.node(depth - 1, guarded) for _ in range(rng.randint(2, 3))])
        if kind == 7:
            least = rng.randint(0, 2)
            return ("rep", self.node(depth - 1, guarded), least, rng.choice([None, least + rng.randint(0, 3)]))
        # A rule after a letter, so that none reaches its own start.
        return ("seq", ("text", rng.choice("abc([")), ("rep", ("rule", rng.randrange(self.count)), 0, 1),
                ("text", rng.choice(")]")))

    def derive(self, node, depth=0):
        rng = self.rng
        if depth > 30:
            return None
        kind = node[0]
        if kind == "text":
            return node[1]
        if kind == "class":
            return rng.choice(node[1])
        if kind == "rule":
            return self.derive(self.rules[node[1]], depth + 1)
        if kind == "or":
            return self.derive(rng.choice(node[1:]), depth + 1)
        parts = node[1:]
        if kind == "rep":
            most = node[3] if node[3] is not None else node[2] + 2
            parts = [node[1]] * rng.randint(node[2], most)
        texts = [self.derive(part, depth + 1) for part in parts]
        return None if None in texts else "".join(texts)

    def matches(self, text):
        known = {}

        def ends(node, begin):
            key = (id(node), begin)
            if key not in known:
                known[key] = find(node, begin)
            return known[key]

        def find(node, begin):
            kind = node[0]
            if kind == "text":
                return {begin + len(node[1])} if text.startswith(node[1], begin) else set()
            if kind == "class":
                return {begin + 1} if begin < len(text) and text[begin] in node[1] else set()
            if kind == "rule":
                return set(ends(self.rules[node[1]], begin))
            if kind == "or":
                return set().union(*[ends(part, begin) for part in node[1:]])
            if kind == "seq":
                here = {begin}
                for part in node[1:]:
                    here = set().union(*[ends(part, place) for place in here]) if here else here
                return here
            _, item, least, most = node
            result, here, count, met = set(), {begin}, 0, set()
            while here and (most is None or count <= most):
                if count >= least:
                    result |= here
                state = (min(count, least), frozenset(here))
                if most is None and state in met:
                    break
                met.add(state)
                here = set().union(*[ends(item, place) for place in here])
                count += 1
            return result

        return len(text) in ends(self.rules[0], 0)

    @staticmethod
    def quoted(text):
        return '"' + "".join({'"': '\\"', "\\": "\\\\"}.get(c, c) for c in text) + '"'

    def gbnf(self, node):
        kind = node[0]
        if kind == "text":
            return self.quoted(node[1])
        if kind == "class":
            return "[" + node[1] + "]"
        if kind == "rule":
            return self.name(node[1])
        if kind == "seq":
            return "(" + " ".join(self.gbnf(part) for part in node[1:]) + ")"
        if kind == "or":
            return "(" + " | ".join(self.gbnf(part) for part in node[1:]) + ")"
        _, item, least, most = node
        return self.gbnf(item) + "{%d,%s}" % (least, "" if most is None else most)

    def lark(self, node):
        kind = node[0]
        if kind == "class":
            return "/[" + node[1] + "]/"
        if kind == "seq":
            return "(" + " ".join(self.lark(part) for part in node[1:]) + ")"
        if kind == "or":
            return "(" + " | ".join(self.lark(part) for part in node[1:]) + ")"
        if kind == "rep":
            _, item, least, most = node
            source = self.lark(item)
            if most is not None:
                return f"{source}~{least}..{most}"
            return f"({source}~{least} {source}*)" if least else f"{source}*"
        return self.gbnf(node)

    def name(self, number):
        return ("root", "one", "two", "three")[number]

    def sources(self):
        def whole(number, write):
            if number > 0 or not self.sign:
                return write(self.rules[number])
            return f"{self.name(0)} {self.quoted(self.sign)} {write(self.base)} | {write(self.base)}"
        numbers = range(self.count)
        gbnf = "".join(f"{self.name(i)} ::= {whole(i, self.gbnf)}\n" for i in numbers)
        lark = "".join(f"{self.name(i)}: {whole(i, self.lark)}\n" for i in numbers)
        return gbnf, "start: root\n" + lark


class Program:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, kind, source, texts):
        self.process.stdin.write(json.dumps({"kind": kind, "source": source, "texts": texts}) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n")


def check(kind, source, texts, wanted, answer):
    if answer == "".join("1" if w else "0" for w in wanted):
        return
    print(f"{kind}\n{source}")
    if answer.startswith("error"):
        print(answer)
    else:
        for text, want, got in zip(texts, wanted, answer):
            if want != (got == "1"):
                print(f"{text!r}: the reference {'matches' if want else 'does not match'}")
    sys.exit(1)


def compare_regexes(program, rng, pairs, dialect, counts):
    done = 0
    while done < pairs:
        regex = Regex(rng, dialect)
        source, derive = regex.make()
        if len(source) > 300:
            continue
        texts = regex_texts(rng, regex, source, derive)
        if dialect == "ecma":
            # A difference between the two references.
            texts = [t.replace("\n", "b") for t in texts]
        # Python's re takes exponential time for some pairs.
        signal.setitimer(signal.ITIMER_VIRTUAL, 2)
        try:
            wanted = [regex.matches(source, text) for text in texts]
        except TooLong:
            counts["too long for the reference"] += 1
            continue
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        answer = program.ask(dialect, source, texts)
        if answer.startswith("error") and "not supported" in answer:
            counts["refused"] += 1
            continue
        check(dialect, source, texts, wanted, answer)
        counts["matching"] += sum(wanted)
        done += len(texts)


def compare_grammars(program, rng, pairs, counts):
    done = 0
    while done < pairs:
        grammar = Grammar(rng)
        texts = []
        for _ in range(TEXTS):
            text = grammar.derive(grammar.rules[0])
            if text is None or len(text) > 40:
                text = "".join(rng.choice("abc()[]") for _ in range(rng.randint(0, 5)))
            texts.append(changed(rng, text) if rng.random() < 0.5 else text)
        wanted = [grammar.matches(text) for text in texts]
        gbnf, lark = grammar.sources()
        for kind, source in (("gbnf", gbnf), ("lark", lark)):
            answer = program.ask(kind, source, texts)
            if "allows no text" in answer and not any(wanted):
                continue
            check(kind, source, texts, wanted, answer)
        counts["matching"] += sum(wanted)
        done += len(texts)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--program", required=True)
    arguments.add_argument("--pairs", type=int, default=100_000)
    arguments.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments.add_argument("--only", choices=["regex", "ecma", "grammar"])
    options = arguments.parse_args()
    print("seed", options.seed)
    signal.signal(signal.SIGVTALRM, stop)
    program = Program(options.program)
    for kind in ("regex", "ecma", "grammar"):
        if options.only in (None, kind):
            counts = {"matching": 0, "refused": 0, "too long for the reference": 0}
            rng = random.Random(f"{options.seed} {kind}")
            if kind == "grammar":
                compare_grammars(program, rng, options.pairs, counts)
            else:
                compare_regexes(program, rng, options.pairs, kind, counts)
            print(f"{kind}: {options.pairs} pairs, {counts['matching']} of them match, {counts['refused']} expressions refused, "
                  f"{counts['too long for the reference']} too long for the reference")
            assert counts["matching"] > options.pairs // 10


if __name__ == "__main__":
    main()
