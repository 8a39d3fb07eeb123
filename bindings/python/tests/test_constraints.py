"""Rows with constraints: choices, expressions, schemas (also from dataclasses), grammars."""

import dataclasses
import enum
import importlib.util
import json
import typing
import unittest

try:
    import pydantic
    import pydantic.dataclasses
except ImportError:
    pydantic = None

import batchllm
from batchllm import SamplingParams
from batchllm.constraints import schema_of
from support import MODEL


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Size:
    large: bool


@dataclasses.dataclass
class Toy:
    colour: Colour
    age: typing.Literal[1, 2]
    size: Size
    note: typing.Optional[typing.Literal["x"]] = None


class Model:  # like pydantic's
    @staticmethod
    def model_json_schema():
        return {"type": "boolean"}


@unittest.skipIf(pydantic is None, "pydantic is not installed")
class Pydantic(unittest.TestCase):
    def test_a_pydantic_dataclass_keeps_its_fields_constraints(self):
        age = typing.Annotated[int, pydantic.Field(ge=0, le=120)]

        class Tag(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=3)

        inner = dataclasses.make_dataclass("Inner", [("tag", Tag)])
        person = pydantic.dataclasses.dataclass(dataclasses.make_dataclass("Person", [("age", age), ("inner", inner)]))
        schema = json.loads(schema_of(person))
        self.assertEqual((schema["properties"]["age"]["minimum"], schema["properties"]["age"]["maximum"]), (0, 120))
        self.assertEqual(sorted(schema["required"]), ["age", "inner"])

        group = dataclasses.make_dataclass("Group", [("first", person), ("tag", Tag), ("second", typing.Optional[person], None)])
        schema = json.loads(schema_of(group))

        def resolved(reference):
            return schema["$defs"][reference["$ref"].removeprefix("#/$defs/")]

        members = resolved(schema)["properties"]
        person_schema = resolved(members["first"])
        self.assertEqual(person_schema["properties"]["age"]["maximum"], 120)
        self.assertEqual(resolved(members["second"]["anyOf"][0]), person_schema)
        self.assertEqual(resolved(members["tag"])["properties"]["name"]["maxLength"], 3)
        tag = resolved(resolved(person_schema["properties"]["inner"])["properties"]["tag"])
        self.assertEqual(tag["properties"]["name"]["maxLength"], 3)

    def test_other_members_are_allowed_only_where_the_model_allows_them(self):
        class Tag(pydantic.BaseModel):
            name: typing.Literal["x"]

        class Free(pydantic.BaseModel, extra="allow"):
            a: int

        class Strict(pydantic.BaseModel, extra="forbid"):
            a: int

        class Thing(pydantic.BaseModel):
            tag: Tag
            tags: list[Tag] = []
            either: typing.Union[Tag, None] = None
            counts: dict[str, Tag] = {}
            free: Free = Free(a=1)
            strict: Strict = Strict(a=1)
            given: typing.Any = pydantic.Field(None, examples=[{"properties": {}}])

        for kind in (Thing, pydantic.dataclasses.dataclass(dataclasses.make_dataclass("Other", [("thing", Thing)]))):
            schema = json.loads(schema_of(kind))
            self.assertIs(schema["additionalProperties"], False)
            found = {name: one["additionalProperties"] for name, one in schema["$defs"].items()}
            self.assertEqual({name: found[name] for name in ("Free", "Strict", "Tag")}, {"Free": True, "Strict": False, "Tag": False})
            thing = schema["$defs"].get("Thing", schema)["properties"]
            self.assertEqual(thing["counts"]["additionalProperties"], {"$ref": "#/$defs/Tag"})
            self.assertEqual(thing["given"]["examples"], [{"properties": {}}])
        with batchllm.Engine(MODEL) as engine:
            results = engine.generate(["a", "b"], SamplingParams(json_schema=Tag))
        self.assertEqual([result.finish_reason for result in results], ["stop", "stop"])
        self.assertEqual(results.parsed, [{"name": "x"}] * 2)
        if importlib.util.find_spec("pyarrow"):
            self.assertEqual(str(results.to_arrow(parsed=True).schema.field("parsed").type), "struct<name: large_string>")


class Plain(unittest.TestCase):
    def test_what_a_plain_dataclass_cannot_say_is_refused(self):
        kind = dataclasses.make_dataclass("Kind", [("age", typing.Annotated[int, "at least 0"])])
        with self.assertRaisesRegex(TypeError, "annotated"):
            schema_of(kind)


class Constraints(unittest.TestCase):
    def test_every_row_keeps_to_its_own(self):
        params = [SamplingParams(choices=["red", "green"]), SamplingParams(regex="[0-9]{3}"), SamplingParams(json_schema=Toy),
                  SamplingParams(json_schema=Model), SamplingParams(grammar={"lark": 'start: "z"'}), SamplingParams(max_tokens=2)]
        with batchllm.Engine(MODEL) as engine:
            found = [result.text for result in engine.generate(["a"] * len(params), params)]
        self.assertIn(found[0], ("red", "green"))
        self.assertRegex(found[1], "^[0-9]{3}$")
        toy = json.loads(found[2])
        self.assertEqual((toy["colour"] in ("red", "blue"), toy["age"] in (1, 2), type(toy["size"]["large"])), (True, True, bool))
        self.assertIn(found[3], ("true", "false"))
        self.assertEqual(found[4], "z")

    def test_one_holds_for_all_rows(self):
        with batchllm.Engine(MODEL) as engine:
            found = [result.text for result in engine.generate(["a", "b", "c"], SamplingParams(choices=["q", "w"]))]
        self.assertLessEqual(set(found), {"q", "w"})

    def test_a_wrong_one_fails_the_call(self):
        with batchllm.Engine(MODEL) as engine:
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "regex: character 1"):
                engine.generate(["a"], SamplingParams(regex="(a"))
            with self.assertRaisesRegex(ValueError, "both say"):
                engine.generate(["a"], SamplingParams(regex="a", choices=["a"]))

    def greedy(self, engine, likely, **params):
        """Greedy: wherever the constraint allows several characters, the first of them in `likely` is written."""
        tokenizer = batchllm.Tokenizer(MODEL)
        tokens = [tokenizer.encode_one(character, add_special=False)[0] for character in likely]
        biases = {token: 1000.0 / 2**i for i, token in enumerate(tokens)}
        return engine.generate(["a"], SamplingParams(logit_bias=biases, max_tokens=40, **params))[0].text

    def test_one_of_the_wrong_type_is_named(self):
        for given, words in (
            ({"choices": ["a", 1]}, "choices: a string is expected, not 1"),
            ({"choices": [["a"]]}, "choices: a string is expected, not .'a'."),
            ({"regex": 5}, "regex: a string is expected, not 5"),
            ({"grammar": {"lark": 5}}, "grammar: a string is expected, not 5"),
            ({"regex": "a", "start_after": 5}, "start_after: a string is expected, not 5"),
        ):
            with batchllm.Engine(MODEL) as engine, self.assertRaisesRegex(TypeError, words):
                engine.generate(["a"], SamplingParams(**given))

    def test_a_plan_is_no_path(self):
        with batchllm.Engine(MODEL) as engine, self.assertRaisesRegex(TypeError, "plan is one str: a batchllm.Plan is expected"):
            engine.generate(["a"], plan="rows.plan")

    def test_options_change_how_json_is_written(self):
        schema = {"type": "object", "properties": {"b": {"enum": ["x"]}, "a": {"type": "boolean"}}, "required": ["a", "b"]}
        schema["additionalProperties"] = False
        number = {"type": "integer", "minimum": 1, "maximum": 9}
        with batchllm.Engine(MODEL) as engine:
            self.assertTrue(self.greedy(engine, " ", json_schema=schema).startswith('{"b":'))
            self.assertTrue(self.greedy(engine, " ", json_schema=schema, flexible_whitespace=True).startswith('{ "b"'))
            self.assertTrue(self.greedy(engine, "a", json_schema=schema).startswith('{"b":'))
            self.assertTrue(self.greedy(engine, "a", json_schema=schema, any_member_order=True).startswith('{"a":'))
            self.assertRegex(self.greedy(engine, ".0", json_schema=number), "^[1-9]$")
            self.assertRegex(self.greedy(engine, ".0", json_schema=number, any_numbers=True), r"^[1-9]\.0$")

    def test_a_loose_schema_says_in_the_log_what_it_does_not_enforce(self):
        schema = {"type": "array", "uniqueItems": True, "items": {"type": "integer"}, "maxItems": 2}
        with batchllm.Engine(MODEL) as engine:
            with self.assertRaisesRegex(batchllm.UnsupportedError, "#/uniqueItems"):
                engine.generate(["a"], SamplingParams(json_schema=schema))
            with self.assertLogs("batchllm", "WARNING") as logs:
                engine.generate(["a", "b"], SamplingParams(json_schema=schema, loose_schema=True))
        self.assertEqual(sum("#/uniqueItems:" in line for line in logs.output), 1)

    def test_fields_without_a_default_are_required(self):
        schema = json.loads(schema_of(Toy))
        toy = schema["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        self.assertEqual(toy["required"], ["colour", "age", "size"])
        self.assertFalse(toy["additionalProperties"])



class CutOff(unittest.TestCase):
    SCHEMA = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"],
              "additionalProperties": False}  # the shortest: {"colour":"red"}, 16 bytes

    def test_many_rows_that_max_tokens_cuts_off_are_warned_of_and_counted(self):
        with batchllm.Engine(MODEL) as engine:
            with self.assertLogs("batchllm", "WARNING") as logs:
                results = engine.generate([f"row {i}" for i in range(30)], SamplingParams(max_tokens=2, json_schema=self.SCHEMA))
            stats = engine.stats()
            self.assertEqual(set(result.finish_reason for result in results), {"length"})
            [line] = [line for line in logs.output if "cut off" in line]
            self.assertIn("30 of 30 rows with a constraint were cut off by max_tokens", line)
            self.assertIn("ended after 2 tokens; the shortest text that its constraint allows has 16 bytes", line)
            self.assertEqual((stats.constrained_results, stats.cut_off_results), (30, 30))
            # The next job is warned of too, if it is not small.
            params = SamplingParams(max_tokens=3, json_schema=self.SCHEMA)
            with self.assertLogs("batchllm", "WARNING") as logs:
                engine.generate([f"other {i}" for i in range(16)], params)
            self.assertIn("16 of 16 rows", logs.output[-1])
            with self.assertNoLogs("batchllm", "WARNING"):
                engine.generate(["one more"], params)
            self.assertEqual(engine.stats().cut_off_results, 47)

    def test_rows_that_never_write_start_after_are_warned_of_as_such(self):
        never = SamplingParams(max_tokens=4, choices=["red", "blue"], start_after="</think>\n")
        cut = SamplingParams(max_tokens=2, json_schema=self.SCHEMA)
        whole = SamplingParams(max_tokens=50, json_schema=self.SCHEMA)
        with batchllm.Engine(MODEL) as engine:
            with self.assertLogs("batchllm", "WARNING") as logs:
                results = engine.generate([f"row {i}" for i in range(20)], never)
            self.assertEqual(set(result.finish_reason for result in results), {"length"})
            self.assertEqual(len(logs.output), 1)
            self.assertIn('20 of 20 rows with a constraint never wrote "</think>', logs.output[0])
            self.assertIn("20 were cut off by max_tokens or a stop of their own, 0 ended by themselves", logs.output[0])
            self.assertNotIn("shortest text", logs.output[0])
            self.assertEqual((engine.stats().constrained_results, engine.stats().cut_off_results), (20, 20))
            # What a stop of its own ends before the text is cut off too.
            stop = dataclasses.replace(never, stop_tokens=list(range(256)), max_tokens=50)
            with self.assertLogs("batchllm", "WARNING") as logs:
                results = engine.generate([f"row {i}" for i in range(20)], stop)
            ended = [result.finish_reason for result in results].count("stop")
            self.assertGreater(ended, 0)
            self.assertIn("20 were cut off by max_tokens or a stop of their own, 0 ended by themselves", logs.output[0])
            self.assertEqual(engine.stats().cut_off_results, 40)
            with self.assertLogs("batchllm", "WARNING") as logs:
                engine.generate([f"row {i}" for i in range(20)], [(never, cut, whole)[i % 3] for i in range(20)])
            self.assertEqual(len(logs.output), 1)
            self.assertIn("7 of 20 rows with a constraint never wrote", logs.output[0])
            self.assertIn("7 of 20 rows with a constraint were cut off by max_tokens", logs.output[0])

    def test_few_rows_are_only_counted(self):
        params = [SamplingParams(max_tokens=2 if i == 0 else 50, json_schema=self.SCHEMA) for i in range(30)]
        with batchllm.Engine(MODEL) as engine:
            with self.assertNoLogs("batchllm", "WARNING"):
                engine.generate([f"row {i}" for i in range(30)], params)
                engine.generate(["free"], SamplingParams(max_tokens=2))
            self.assertEqual((engine.stats().constrained_results, engine.stats().cut_off_results), (30, 1))


if __name__ == "__main__":
    unittest.main()
