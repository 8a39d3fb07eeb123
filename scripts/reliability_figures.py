#!/usr/bin/env python3
"""Writes figures into the tables of docs/reliability.md, between its <!-- NAME --> marks.

    reliability_figures.py torture LOG PAGE
    reliability_figures.py fuzz LOGS PAGE TARGET..     executions are added to those in the table
"""

import pathlib
import re
import subprocess
import sys


def commit():
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def table(page, name):
    """The text before the table's rows, the rows by their first cell, and the text behind them."""
    begin, rows, end = re.fullmatch(rf"(.*<!-- {name} -->\n(?:\|[^\n]*\n)*?\|[-| :]+\n)((?:\|[^\n]*\n)*)(<!-- end -->.*)",
                                    page, re.DOTALL).groups()
    return begin, {line.split("|")[1].strip(): line for line in rows.splitlines()}, end


def torture(log):
    text = pathlib.Path(log).read_text()
    # (case, what fails) -> tries, of how many, failures
    series = {}

    def of(case, kind):
        return series.setdefault((case, "allocations" if kind == "alloc" else "files and threads"), [0, 0, 0])
    for case, kind, done, total in re.findall(r"^([\w-]+): (\w+) (?:once|forever): (\d+) of (\d+)$", text, re.MULTILINE):
        figures = of(case, kind)
        figures[0] += int(done)
        figures[1] += int(total)
    for case, kind in re.findall(r"^FAILED ([\w-]+): (\w+)", text, re.MULTILINE):
        of(case, kind)[2] += 1
    rows = {f"{case}: {what}": figures for (case, what), figures in series.items()}
    wrong = len(re.findall(r"^(?:FAIL|ERROR): ", text, re.MULTILINE))
    for name, words in (("kill -9 at each call that changes a file", r"killed (\d+) times"),
                        ("a machine that goes down", r"went down (\d+) times")):
        if found := re.search(words, text, re.MULTILINE):
            rows[name] = [int(found[1]), int(found[1]), wrong]
    return {name: f"| {name} | {done:,} | {total:,} | {failures} | {commit()} |" for name, (done, total, failures) in rows.items()}


def fuzz(logs, targets, before):
    rows = dict(before)
    for target in targets:
        texts = [path.read_text(errors="replace") for path in pathlib.Path(logs).glob(target + ".*")]
        executions = sum(int(n) for text in texts for n in re.findall(r"number_of_executed_units: (\d+)", text))
        coverage = max((int(n) for text in texts for n in re.findall(r"cov: (\d+)", text)), default=0)
        failures = sum("SUMMARY:" in text for text in texts)
        if target in before:
            executions += int(before[target].split("|")[2].replace(",", ""))
        rows[target] = f"| {target} | {executions:,} | {coverage:,} | {failures} | {commit()} |"
    return rows


def main():
    name, source, path = sys.argv[1:4]
    page = pathlib.Path(path).read_text()
    begin, rows, end = table(page, name)
    rows = torture(source) if name == "torture" else fuzz(source, sys.argv[4:], rows)
    pathlib.Path(path).write_text(begin + "".join(row + "\n" for row in rows.values()) + end)


main()
