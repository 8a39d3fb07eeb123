#!/usr/bin/env python3
"""Writes the program's manual page and bash completion from its --help.

    make_manual.py PROGRAM MANUAL COMPLETION
"""
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass, field

COMMANDS = {
    "run": "Runs rows through a model. Results are written as rows finish; --resume continues an interrupted job.",
    "plan": "Finds what rows share, and with --device how long they will take, without running them.",
    "inspect": "Shows what a plan file holds.",
    "demo": "Runs a small model that is installed with the program on a job of 300 rows, and shows some of its answers.",
    "tokenize": "Turns lines of text into lines of tokens, and back, from stdin to stdout.",
}
EXAMPLES = [
    ("A job, its report, and the same job after an interruption:",
     ["batchllm run --model ./model --input rows.jsonl --output out.jsonl --report job.html",
      "batchllm run --model ./model --input rows.jsonl --output out.jsonl --resume"]),
    ("Prompts from columns, with each row's fields in the order that shares most:",
     ['batchllm run --model ./model --input table.jsonl --output out.jsonl \\',
      '    --template-file prompt.txt --fields reorder']),
    ("How long an H200 would take:",
     ["batchllm plan --model ./model --input rows.jsonl --output rows.plan --device h200"]),
]
WORDS = {"--backend": "auto cpu cuda sim", "--compute-type": "auto bf16 f16 f32", "--device": "h200 h100 here"}


@dataclass
class Option:
    names: list
    value: str
    text: str


@dataclass
class Section:
    title: str
    text: str = ""
    options: list = field(default_factory=list)


def help_of(program, *command):
    """Without the examples at its end, since the manual has its own."""
    done = subprocess.run([program, *command, "--help"], capture_output=True, text=True, check=True)
    return done.stdout.partition("\nExamples:")[0].splitlines()


def read_option(line):
    """A line of --help that begins with a dash; its text may be empty if it is on the next line."""
    spec, _, text = re.match(r"\s*(\S.*?)(\s{2,}(.*))?$", line).group(1, 2, 3)
    names, _, value = spec.partition(" ")
    value = re.sub(r"\s*(REQUIRED|(Excludes|Needs): \S+)", "", value).strip()
    return Option(names.split(","), value, text or "")


def sections(lines):
    """The sections of a command: first its own options, then each named group."""
    found = [Section("")]
    option = None
    for line in lines[2:]:
        group = re.match(r"\s*\[Option Group: (.*)\]$", line)
        if group:
            found.append(Section(group.group(1)))
            option = None
        elif re.match(r"\s+-", line):
            option = read_option(line)
            found[-1].options.append(option)
        elif option is not None and not option.text and line.strip():
            option.text = line.strip()
        elif re.match(r"\s+\S", line) and not found[-1].options and not re.match(r"\s*(Options:|\[At most|Positionals:)", line):
            if found[-1].title:
                found[-1].text = line.strip()
    return found


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in ".'" else text


def manual(program):
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    out = [".\\\" Made from the program's --help.",
           f'.TH BATCHLLM 1 "" "libbatchllm {version}" "User Commands"',
           ".SH NAME", "batchllm \\- runs a language model over a whole data set at once", ".SH SYNOPSIS"]
    for command, usage in (("run", "--model DIR --input FILE --output FILE"), ("plan", "--input FILE --output FILE"),
                           ("inspect", "PLAN"), ("tokenize", "--model DIR"), ("demo", "")):
        out += [f".B batchllm {command}", f"{roff(usage)} [options]".strip(), ".br"]
    out += [".SH DESCRIPTION",
            "Rows are lines of JSON: {\"id\": .., \"prompt\": ..}, or the OpenAI batch format. Prefixes that prompts share are computed once.",
            ".PP", "Sizes may be written as 2GiB or 16M."]
    for command, text in COMMANDS.items():
        out += [f".SH BATCHLLM {command.upper()}", roff(text)]
        for section in sections(help_of(program, command)):
            if section.title:
                out += [f".SS {roff(section.title)}"] + ([roff(section.text[0].upper() + section.text[1:]) + "."] if section.text else [])
            for option in section.options:
                names = ", ".join(f"\\fB{roff(name)}\\fR" for name in option.names)
                out += [".TP", names + (f" \\fI{roff(option.value)}\\fR" if option.value else ""), roff(option.text)]
    out += [".SH EXIT STATUS", ".TP", "0", "Every row has its result.", ".TP", "1", "The job failed; stderr says why.", ".TP", "3",
            "Some rows have errors; the output has them.", ".TP", "130", "Interrupted; continue with \\fB\\-\\-resume\\fR.",
            ".SH FILES", ".TP", "OUTPUT.state", "What --resume needs to continue an incomplete job.".replace("--", "\\-\\-"),
            ".TP", "$XDG_CACHE_HOME/batchllm, ~/.cache/batchllm", "Measurements of this machine's devices.", ".SH EXAMPLES"]
    for text, lines in EXAMPLES:
        out += [roff(text), ".PP", ".nf", ".RS", *[roff(line) for line in lines], ".RE", ".fi", ".PP"]
    return "\n".join(out) + "\n"


def completion(program):
    cases = []
    values = {}
    for command in COMMANDS:
        options = [option for section in sections(help_of(program, command)) for option in section.options]
        names = [name for option in options for name in option.names if name.startswith("--")]
        cases.append(f'        {command}) options="{" ".join(names)}" ;;')
        for option in options:
            for name in option.names:
                if not option.value:
                    continue
                kind = ("choice" if "|" in option.value else option.value)
                values.setdefault(name, WORDS.get(name) or (option.value.replace("|", " ") if kind == "choice" else kind))
    by_words = {}
    for name, words in values.items():
        by_words.setdefault(words, []).append(name)
    lines = []
    for words, names in by_words.items():
        pattern = "|".join(sorted(names))
        if words in ("FILE", "NAME"):
            lines.append(f"        {pattern}) mapfile -t COMPREPLY < <(compgen -f -- \"$current\"); return ;;")
        elif words == "DIR":
            lines.append(f"        {pattern}) mapfile -t COMPREPLY < <(compgen -f -- \"$current\"); return ;; # or a tokenizer.json")
        elif re.fullmatch(r"\[?[A-Z]+\]?", words):
            lines.append(f"        {pattern}) return ;;")
        else:
            lines.append(f"        {pattern}) mapfile -t COMPREPLY < <(compgen -W \"{words}\" -- \"$current\"); return ;;")
    return "\n".join(["# bash completion for batchllm. Made from the program's --help.", "_batchllm() {",
                      '    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} options=""',
                      "    if ((COMP_CWORD == 1)); then",
                      f'        mapfile -t COMPREPLY < <(compgen -W "{" ".join(COMMANDS)} --help --version" -- "$current")', "        return", "    fi",
                      '    case $before in', *lines, "    esac", "    case ${COMP_WORDS[1]} in", *cases, "    esac",
                      "    if [[ $current == -* ]]; then", '        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")', "    else",
                      '        mapfile -t COMPREPLY < <(compgen -f -- "$current")', "    fi", "}", "complete -o filenames -F _batchllm batchllm"]) + "\n"


if __name__ == "__main__":
    program, manual_path, completion_path = sys.argv[1:]
    pathlib.Path(manual_path).write_text(manual(program))
    pathlib.Path(completion_path).write_text(completion(program))
