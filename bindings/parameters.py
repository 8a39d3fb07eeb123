#!/usr/bin/env python3
"""Parameters of rows for the bindings, from the library's one table of them (src/parameters/row_parameters.inc).

parameters.py python TABLE TEMPLATE OUT.py COMPILER...   SamplingParams, and what the package derives from the table
parameters.py java TABLE OUT.java COMPILER...            the superclass of SamplingParams.Builder
parameters.py spark TABLE OUT.java COMPILER...           the superclass of BatchLlmOptions

COMPILER is a C compiler, whose preprocessor writes the table as Python.
"""
import ast
import subprocess
import sys
import textwrap
from typing import NamedTuple

AS_PYTHON = """
#define PARAMETER(name, kind, initial, valid, range, affects, rows, state, key, option, help, ...) \
    (#name, #kind, #initial, range, #rows, #state, key, option, help, __VA_ARGS__),
#define LIST(name, kind, items, count, affects, rows, state, key, option, help, ...) \
    (#name, #kind, "", "", #rows, #state, key, option, help, __VA_ARGS__),
"""
MADE_FROM = "Made by bindings/parameters.py from src/parameters/row_parameters.inc."
# How many log-probabilities, in Python and Java.
LIKELIEST = "-1: none; 0: of these tokens alone; n: also of the n likeliest in their places."


class Parameter(NamedTuple):
    """A row of the table."""

    name: str
    kind: str
    initial: str
    range: str
    rows: str
    state: str
    key: str
    option: str
    help: str
    text: str

    @property
    def python(self):
        return "samples" if self.name == "samples" else self.key

    @property
    def java(self):
        first, *rest = self.name.split("_")
        return "biases" if self.kind == "Biases" else first + "".join(word.title() for word in rest)


def read(table, compiler):
    done = subprocess.run([*compiler, "-E", "-P", "-x", "c", "-"], input=f'{AS_PYTHON}#include "{table}"\n',
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return [Parameter(*row) for row in ast.literal_eval(f"[{done.stdout}]")]


# ---- Python: a dataclass. Names that vLLM uses too are accepted in its constructor ----

SECOND_NAMES = {"samples": "n", "stop_tokens": "stop_token_ids"}
# kind: the type of the field, what the constructor also takes, the default.
IN_PYTHON = {
    "Whole": ("int", "int", int),
    "Number": ("float", "float", float),
    "Flag": ("bool", "bool", lambda text: text == "true"),
    "Seed": ("Optional[int]", "Optional[int]", int),
    "Likeliest": ("Optional[int]", "Optional[int]", int),
    "Tokens": ("Sequence[int]", "Optional[Sequence[int]]", None),
    "Texts": ("Union[str, Sequence[str]]", "Union[str, Sequence[str], None]", None),
    "Biases": ("Mapping[int, float]", "Optional[Mapping[int, float]]", None),
}


def python_doc(one):
    text = one.text
    if one.kind == "Likeliest":
        text += f" {LIKELIEST} True is 0; False and None are -1. `Result.{one.python}`, `{one.python.replace('logprobs', 'top_logprobs')}`."
    elif one.kind == "Seed":
        text += " None means 0."
    elif one.kind == "Texts":
        text += " A str is one text."
    if one.kind in ("Whole", "Number"):
        text += f" {one.range[0].upper()}{one.range[1:]}."
    return textwrap.fill(f"{one.python}: {text}", 120, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)


def python_default(one):
    default = IN_PYTHON[one.kind][2]
    return default(one.initial) if default else {} if one.kind == "Biases" else ()


def python_field(one):
    default = "field(default_factory=dict)" if one.kind == "Biases" else repr(python_default(one))
    return f"    {one.python}: {IN_PYTHON[one.kind][0]} = {default}"


def python_argument(one):
    kind = IN_PYTHON[one.kind][1]
    if one.name in SECOND_NAMES and not kind.startswith("Optional"):
        kind = f"Optional[{kind}]"
    default = None if one.name in SECOND_NAMES or IN_PYTHON[one.kind][2] is None else python_default(one)
    return f"        {one.python}: {kind} = {default!r},"


def python(parameters, template):
    """Only what `SamplingParams` has: what makes vectors and labels is asked of other calls."""
    fields = [one for one in parameters if one.kind in IN_PYTHON and one.rows != "embedded"]
    # Only those before the constraints may be given by place.
    first = next(i for i, one in enumerate(fields) if one.kind == "Biases") + 1
    slots = {
        "DOCS": [python_doc(one) for one in fields],
        "FIRST_FIELDS": map(python_field, fields[:first]),
        "LATER_FIELDS": map(python_field, fields[first:]),
        "FIRST_ARGUMENTS": map(python_argument, fields[:first]),
        "LATER_ARGUMENTS": map(python_argument, fields[first:]),
        "PARAMETERS": [f"    Parameter{(one.name, one.python, one.kind, one.range, one.option, one.help)!r}," for one in parameters],
    }
    lines = []
    for line in open(template, encoding="utf-8").read().splitlines():
        slot = line.strip()
        lines += slots[slot.strip("@")] if slot.startswith("@") and slot.endswith("@") else [line]
    return lines


# ---- Java: setters with their fields. The class that extends them is what they return ----

# kind: the field, its default (None: the table's), the argument, the field's value from the argument.
IN_JAVA = {
    "Whole": ("int", None, "int value", "value"),
    "Number": ("float", None, "double value", "(float) value"),
    "Flag": ("boolean", None, "boolean value", "value"),
    "Choice": ("Boolean", "null", "boolean value", "value"),
    "Seed": ("long", None, "long value", "value"),
    "Likeliest": ("int", None, "int value", "value"),
    "TaskName": ("Task", "Task.GENERATE", "Task value", 'Objects.requireNonNull(value, "{name} is null")'),
    "PoolingName": ("Pooling", "Pooling.MODEL", "Pooling value", 'Objects.requireNonNull(value, "{name} is null")'),
    "Tokens": ("int[]", "{}", "int... values", 'Objects.requireNonNull(values, "{name} is null").clone()'),
    "Texts": ("List<byte[]>", "List.of()", "String... values", 'terminable("{name}", values)'),
    "Biases": ("Map<Integer, Float>", "Map.of()", "Map<Integer, Float> values", 'Map.copyOf(Objects.requireNonNull(values, "{name} is null"))'),
}
# How a value is passed on: as one of the native layer's integers or numbers.
AS_INTEGER = {
    "Whole": "row.{0}",
    "Flag": "row.{0} ? 1 : 0",
    "Choice": "row.{0} == null ? 0 : row.{0} ? 1 : -1",
    "Seed": "row.{0}",
    "Likeliest": "row.{0}",
    "TaskName": "row.{0}.number",
    "PoolingName": "row.{0}.number",
}
SET_LISTS = {"Tokens": "TOKENS", "Texts": "TEXTS", "Biases": "BIASES"}


def java_field(one, kinds):
    kind, default = kinds[one.kind][:2]
    return f"    {kind} {one.java} = {default or one.initial};"


def java_doc(*paragraphs):
    lines = ["    /**"]
    for i, text in enumerate(paragraphs):
        if i == 1:
            lines.append("     *")
        lines += textwrap.wrap(text, 120, initial_indent="     * ", subsequent_indent="     * ", break_on_hyphens=False)
    return lines + ["     */"]


def java_value_doc(one):
    if one.kind == "TaskName":
        return "default {@link Task#GENERATE}"
    if one.kind == "PoolingName":
        return "default {@link Pooling#MODEL}"
    if one.kind in ("Whole", "Number", "Likeliest"):
        return f"{one.range}; default {one.initial}"
    if one.kind == "Texts":
        return "not empty, without zero characters"
    return {"Seed": one.range, "Choice": "default: as the model's files say", "Tokens": "copied", "Biases": "by token id; copied"} \
        .get(one.kind, f"default {one.initial}")


def java(parameters):
    lines = [
        "package org.batchllm;", "", "import java.util.Arrays;", "import java.util.LinkedHashMap;", "import java.util.List;", "import java.util.Map;",
        "import java.util.Objects;", "import java.util.function.Function;", "import java.util.function.ToDoubleFunction;",
        "import java.util.function.ToLongFunction;", "import java.util.stream.Collectors;", "import java.util.stream.Stream;", "",
        f"/** The parameters of a row, with a setter for each. {MADE_FROM} */",
        "abstract class ParameterSetters {",
        "    static final Map<String, ToLongFunction<ParameterSetters>> INTEGERS = new LinkedHashMap<>();",
        "    static final Map<String, ToDoubleFunction<ParameterSetters>> NUMBERS = new LinkedHashMap<>();",
        "    static final Map<String, Function<ParameterSetters, int[]>> TOKENS = new LinkedHashMap<>();",
        "    static final Map<String, Function<ParameterSetters, List<byte[]>>> TEXTS = new LinkedHashMap<>();",
        "    static final Map<String, Function<ParameterSetters, Map<Integer, Float>>> BIASES = new LinkedHashMap<>();",
        "", "    static {",
    ]
    for one in parameters:
        into = "INTEGERS" if one.kind in AS_INTEGER else SET_LISTS.get(one.kind, "NUMBERS")
        value = AS_INTEGER.get(one.kind, "row.{0}").format(one.java)
        lines.append(f'        {into}.put("{one.name}", row -> {value});')
    lines += ["    }", ""] + [java_field(one, IN_JAVA) for one in parameters]
    lines += ["", "    void copy(ParameterSetters from) {"]
    lines += [f"        {one.java} = from.{one.java};" for one in parameters]
    lines += ["    }", "", "    private static List<byte[]> terminable(String name, String[] values) {",
              '        int missing = Arrays.asList(Objects.requireNonNull(values, name + " is null")).indexOf(null);',
              '        if (missing >= 0) throw new IllegalArgumentException(name + ": text " + missing + " is null");',
              "        return Stream.of(values).map(Utf8::terminable).collect(Collectors.toUnmodifiableList());",
              "    }"]
    for one in parameters:
        argument, value = IN_JAVA[one.kind][2:]
        text = one.text + (f" {LIKELIEST}" if one.kind == "Likeliest" else "")
        lines += ["", *java_doc(text, f"@param {argument.split()[-1]} {java_value_doc(one)}", "@return this"),
                  f"    public SamplingParams.Builder {one.java}({argument}) {{",
                  f"        {one.java} = {value.replace('{name}', one.java)};", "        return (SamplingParams.Builder) this;", "    }"]
    return lines + ["}"]


# The options of Spark are serialised, and a column of results is there or not.
IN_SPARK = {
    **{kind: IN_JAVA[kind] for kind in ("Whole", "Flag", "Seed")},
    "Number": ("double", None, "double value", "value"),
    "Likeliest": ("boolean", "false", "boolean value", "value"),
    "Tokens": ("int[]", "{}", "List<Integer> tokens", 'tokens("{name}", tokens)'),
    "Texts": ("String[]", "{}", "List<String> texts", 'texts("{name}", texts)'),
}


def spark_doc(one):
    if one.kind == "Likeliest":
        return f'{one.text} They are in the column "{one.name}", as natural logarithms.'
    if one.kind in ("Tokens", "Texts"):
        return one.text
    return f"{one.text} {one.range[0].upper()}{one.range[1:]}; default {one.initial}." if one.kind in ("Whole", "Number") else \
        f"{one.text} Default {one.initial}."


def spark(parameters):
    """Those of generated rows; what makes vectors and labels determines columns, and stands in BatchLlmOptions."""
    options = [one for one in parameters if one.kind in IN_SPARK and one.rows != "embedded"]
    lines = [
        "package org.batchllm.spark;", "", "import java.io.Serializable;", "import java.util.ArrayList;", "import java.util.List;", "import java.util.Objects;",
        "import org.batchllm.SamplingParams;", "",
        f"/** The parameters of all rows, with a setter for each. {MADE_FROM} */",
        "abstract class ParameterOptions implements Serializable {",
        "    private static final long serialVersionUID = 1;", "",
        *[java_field(one, IN_SPARK) for one in options], "",
        "    void setOn(SamplingParams.Builder builder) {",
    ]
    for one in options:
        value = f"{one.java} ? 0 : -1" if one.kind == "Likeliest" else one.java
        lines.append(f"        builder.{one.java}({value});")
    lines += ["    }", "",
              "    static String[] texts(String name, List<String> texts) {",
              '        return withoutNull(name, "text", texts).toArray(new String[0]);', "    }", "",
              "    private static int[] tokens(String name, List<Integer> tokens) {",
              '        return withoutNull(name, "token", tokens).stream().mapToInt(Integer::intValue).toArray();', "    }", "",
              "    private static <T> List<T> withoutNull(String name, String item, List<T> items) {",
              '        int missing = new ArrayList<>(Objects.requireNonNull(items, name + " is null")).indexOf(null);',
              '        if (missing >= 0) throw new IllegalArgumentException(name + ": " + item + " " + missing + " is null");',
              "        return items;", "    }"]
    for one in options:
        argument, value = IN_SPARK[one.kind][2:]
        lines += ["", *java_doc(spark_doc(one)), f"    public BatchLlmOptions {one.java}({argument}) {{",
                  f"        {one.java} = {value.replace('{name}', one.java)};", "        return (BatchLlmOptions) this;", "    }"]
    return lines + ["}"]


def main(language, table, *rest):
    if language == "python":
        template, out, *compiler = rest
        lines = python(read(table, compiler), template)
    else:
        out, *compiler = rest
        lines = {"java": java, "spark": spark}[language](read(table, compiler))
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
