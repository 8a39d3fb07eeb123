#!/usr/bin/env python3
"""Writes figures into the tables of docs/lab/reliability.md, between its <!-- NAME --> marks.

    reliability_figures.py torture LOG PAGE COMMAND    rows of the same name are replaced
    reliability_figures.py long LOG PAGE COMMAND       likewise
    reliability_figures.py fuzz LOGS PAGE TARGET..     executions are added to those in the table
    reliability_figures.py commit                      the line that a log begins with

COMMAND is the command that produced the log; the table shows it. The commit is the one in the first line of the log
(for fuzzing, in the file LOGS/commit), since others may follow while the tests run; a + after it says that files other
than docs/ had uncommitted changes. A log from a machine without git, such as one with a GPU, has none; then this
checkout's commit is used.
"""

import pathlib
import re
import subprocess
import sys


def commit(log=None):
    if log is not None and (noted := re.match(r"commit (\S+)\n", log)):
        return noted[1]
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    changes = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ".", ":!docs"], check=False)
    return head + ("+" if changes.returncode else "")


def table(page, name):
    """The text before the table's rows, the rows by their first cell, and the text after them."""
    begin, rows, end = re.fullmatch(rf"(.*<!-- {name} -->\n(?:\|[^\n]*\n)*?\|[-| :]+\n)((?:\|[^\n]*\n)*)(<!-- end -->.*)",
                                    page, re.DOTALL).groups()
    return begin, {line.split("|")[1].strip(): line for line in rows.splitlines()}, end


KINDS = {"alloc": "allocations", "stack": "an allocation of each call stack", "call": "calls of CUDA and cuBLASLt"}


def torture(log, command):
    text = pathlib.Path(log).read_text()
    # (case, what fails) -> tries, out of how many, failures
    series = {}

    def of(case, kind):
        return series.setdefault((case, KINDS.get(kind, "files and threads")), [0, 0, 0])
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
    note = " (ASan)" if "--asan" in command else ""
    return {name + note: f"| {name}{note} | {done:,} | {total:,} | {failures} | {commit(text)} | `{command}` |"
            for name, (done, total, failures) in rows.items()}


def long(log, command):
    """Lines "WHAT: NUMBER .., FIGURES", and "FAILED WHAT: WHY"."""
    text = pathlib.Path(log).read_text()
    wrong = len(re.findall(r"^(?:FAILED|\[  FAILED  \])", text, re.MULTILINE))
    return {what: f"| {what} | {int(number):,} | {figures} | {wrong} | {commit(text)} | `{command}` |"
            for what, number, figures in re.findall(r"^(rows through the program|rows through Spark|engines): (\d+) [^,]*, (.*)$",
                                                    text, re.MULTILINE)}


def fuzz(logs, targets, before):
    rows = dict(before)
    noted = pathlib.Path(logs, "commit")
    tested = commit(noted.read_text() if noted.exists() else None)
    for target in targets:
        texts = [path.read_text(errors="replace") for path in pathlib.Path(logs).glob(target + ".*")]
        executions = sum(int(n) for text in texts for n in re.findall(r"number_of_executed_units: (\d+)", text))
        coverage = max((int(n) for text in texts for n in re.findall(r"cov: (\d+)", text)), default=0)
        failures = sum("SUMMARY:" in text for text in texts)
        if target in before:
            executions_before, coverage_before = (int(cell.replace(",", "")) for cell in before[target].split("|")[2:4])
            executions += executions_before
            coverage = max(coverage, coverage_before)
        rows[target] = f"| {target} | {executions:,} | {coverage:,} | {failures} | {tested} |"
    return rows


def main():
    if sys.argv[1:] == ["commit"]:
        print("commit", commit())
        return
    name, source, path = sys.argv[1:4]
    page = pathlib.Path(path).read_text()
    begin, rows, end = table(page, name)
    if name == "fuzz":
        rows = fuzz(source, sys.argv[4:], rows)
    else:
        rows |= {"torture": torture, "long": long}[name](source, sys.argv[4])
    pathlib.Path(path).write_text(begin + "".join(row + "\n" for row in rows.values()) + end)


main()
