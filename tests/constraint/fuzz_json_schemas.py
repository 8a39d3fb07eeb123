"""Random schemas and instances: compares the verdicts of schema_records with those of PyPI's jsonschema.

    ninja -C build tests/schema_records
    python3 tests/constraint/fuzz_json_schemas.py 20000 [seed]

Needs PyPI's jsonschema. Each schema comes with random instances, half of them made to fit it. Members may come in any
order, so that the verdict depends on the value alone. Prints the seed, and fails at the first verdict that differs.
Schemas may be rejected; their number is printed.
"""
import collections
import json
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from check_json_schemas import Program  # noqa: E402

import jsonschema  # noqa: E402

NAMES = ['a', 'b', 'c', 'ab', 'x1', 'é', 'a"b']
STRINGS = ['', 'a', 'b', 'ab', 'abc', 'xyz', 'é', '日本', 'a\nb', '"', '\\', 'aaaa', '1', '\x01', '\U0001f600']
NUMBERS = [0, 1, 2, 3, 5, 10, -1, -2, 7, 100, 0.5, 1.5, -0.5, 2.0, 3.25, 1e16, 1e-7, 12.75, 99.99, -7, 4.0]
PATTERNS = ['^a', 'b$', '^[a-c]+$', '^.$', '^x', '1', '^$', '[^a]', '^(a|bc)*$']


class Maker:
    def __init__(self, rng):
        self.rng = rng

    def value(self, depth=2):
        kind = self.rng.randrange(8 if depth else 6)
        if kind < 2:
            return self.rng.choice(STRINGS)
        if kind < 4:
            return self.rng.choice(NUMBERS)
        if kind == 4:
            return self.rng.choice([True, False])
        if kind == 5:
            return None
        if kind == 6:
            return [self.value(depth - 1) for _ in range(self.rng.randrange(4))]
        return {self.rng.choice(NAMES): self.value(depth - 1) for _ in range(self.rng.randrange(4))}

    def schema(self, depth=3):
        rng = self.rng
        if rng.random() < 0.06:
            return rng.choice([True, True, False])
        out = {}
        if rng.random() < 0.6:
            types = ['null', 'boolean', 'integer', 'number', 'string', 'array', 'object', 'object', 'array', 'string']
            out['type'] = rng.choice(types) if rng.random() < 0.8 else sorted(set(rng.sample(types, 2)))
        for _ in range(rng.choice([0, 1, 1, 2, 2, 3])):
            self.keyword(out, depth)
        return out

    def below(self, depth):
        return self.schema(depth - 1) if depth > 0 else self.rng.choice([True, {'type': 'string'}, {'type': 'integer'}, {}])

    def some(self, depth, most=3):
        return [self.below(depth) for _ in range(self.rng.randrange(1, most + 1))]

    def names(self, most=3):
        return self.rng.sample(NAMES, self.rng.randrange(1, most + 1))

    def keyword(self, out, depth):
        rng = self.rng
        kind = rng.choice(['enum', 'const', 'number', 'number', 'string', 'string', 'properties', 'properties',
                           'properties', 'required', 'additional', 'patterns', 'names', 'counts', 'items', 'items',
                           'prefix', 'lengths', 'contains', 'unique', 'anyOf', 'oneOf', 'allOf', 'not', 'if', 'dependent',
                           'dependentSchemas', 'unevaluated', 'ref'])
        if kind == 'enum':
            out['enum'] = [self.value() for _ in range(rng.randrange(1, 5))]
        elif kind == 'const':
            out['const'] = self.value()
        elif kind == 'number':
            key = rng.choice(['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'])
            out[key] = rng.choice([1, 2, 3, 0.5, 0.25, 7]) if key == 'multipleOf' else rng.choice(NUMBERS[:15])
        elif kind == 'string':
            key = rng.choice(['minLength', 'maxLength', 'pattern', 'pattern'])
            out[key] = rng.choice(PATTERNS) if key == 'pattern' else rng.randrange(5)
        elif kind == 'properties':
            out['properties'] = {name: self.below(depth) for name in self.names()}
        elif kind == 'required':
            out['required'] = self.names(2)
        elif kind == 'additional':
            out['additionalProperties'] = rng.choice([False, False, self.below(depth)])
        elif kind == 'patterns':
            out['patternProperties'] = {p: self.below(depth) for p in rng.sample(PATTERNS, rng.randrange(1, 3))}
        elif kind == 'names':
            out['propertyNames'] = rng.choice([{'pattern': rng.choice(PATTERNS)}, {'maxLength': 1},
                                               {'enum': self.names()}, self.below(depth)])
        elif kind == 'counts':
            out[rng.choice(['minProperties', 'maxProperties'])] = rng.randrange(4)
        elif kind == 'items':
            out['items'] = self.below(depth)
        elif kind == 'prefix':
            out['prefixItems'] = self.some(depth)
        elif kind == 'lengths':
            out[rng.choice(['minItems', 'maxItems'])] = rng.randrange(4)
        elif kind == 'contains':
            out['contains'] = self.below(depth)
            if rng.random() < 0.3:
                out['minContains'] = rng.randrange(3)
            if rng.random() < 0.3:
                out['maxContains'] = rng.randrange(3)
        elif kind == 'unique':
            out['uniqueItems'] = True
        elif kind in ('anyOf', 'oneOf', 'allOf'):
            out[kind] = self.some(depth)
        elif kind == 'not':
            out['not'] = self.below(depth)
        elif kind == 'if':
            out['if'] = self.below(depth)
            for key in ('then', 'else'):
                if rng.random() < 0.7:
                    out[key] = self.below(depth)
        elif kind == 'dependent':
            out['dependentRequired'] = {name: self.names(2) for name in self.names(2)}
        elif kind == 'dependentSchemas':
            out['dependentSchemas'] = {name: self.below(depth) for name in self.names(1)}
        elif kind == 'unevaluated':
            out[rng.choice(['unevaluatedProperties', 'unevaluatedItems'])] = rng.choice([False, self.below(depth)])
        elif kind == 'ref':
            out['$ref'] = rng.choice(['#/$defs/one', '#/$defs/two'])

    def fitting(self, schema, root, depth=4):
        """A value that is likely to satisfy the schema."""
        rng = self.rng
        if not isinstance(schema, dict) or depth == 0 or rng.random() < 0.1:
            return self.value(1)
        if 'const' in schema:
            return schema['const']
        if 'enum' in schema:
            return rng.choice(schema['enum'])
        for key in ('anyOf', 'oneOf', 'allOf'):
            if key in schema and rng.random() < 0.6:
                return self.fitting(rng.choice(schema[key]), root, depth - 1)
        if '$ref' in schema and rng.random() < 0.6:
            return self.fitting(root['$defs'][schema['$ref'][8:]], root, depth - 1)
        kinds = schema.get('type')
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not kinds:
            kinds = ['object'] if any(k in schema for k in ('properties', 'required', 'patternProperties')) else []
            kinds = kinds or (['array'] if any(k in schema for k in ('items', 'prefixItems', 'contains')) else [])
        kind = rng.choice(kinds) if kinds else None
        if kind == 'object':
            out = {}
            names = list(schema.get('properties', {})) + list(schema.get('required', []))
            for name in names + ([rng.choice(NAMES)] if rng.random() < 0.4 else []):
                if name in schema.get('required', []) or rng.random() < 0.7:
                    child = schema.get('properties', {}).get(name, schema.get('additionalProperties', True))
                    out[name] = self.fitting(child, root, depth - 1)
            items = list(out.items())
            rng.shuffle(items)
            return dict(items)
        if kind == 'array':
            prefix = schema.get('prefixItems', [])
            count = max(schema.get('minItems', 0), rng.randrange(4))
            out = [self.fitting(prefix[i] if i < len(prefix) else schema.get('items', True), root, depth - 1)
                   for i in range(count)]
            if 'contains' in schema and rng.random() < 0.7:
                out.insert(rng.randrange(len(out) + 1), self.fitting(schema['contains'], root, depth - 1))
            return out
        if kind == 'string':
            return rng.choice(STRINGS)
        if kind in ('integer', 'number'):
            return rng.choice(NUMBERS)
        return self.value(1)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)
    print('seed', seed)
    program = Program()
    counts = collections.Counter()
    refused = collections.Counter()
    for number in range(rounds):
        rng = random.Random(f'{seed}.{number}')
        maker = Maker(rng)
        schema = maker.schema()
        if not isinstance(schema, dict):
            continue
        schema['$defs'] = {'one': maker.schema(1), 'two': maker.schema(2)}
        text = json.dumps(schema)
        values = [maker.value() if i % 2 else maker.fitting(schema, schema) for i in range(12)]
        validator = jsonschema.Draft202012Validator(schema)
        try:
            wanted = [validator.is_valid(value) for value in values]
        except BaseException as problem:  # a schema that refers to itself in place can fail in several ways
            if isinstance(problem, KeyboardInterrupt):
                raise
            counts['endless'] += 1
            continue
        spacing = rng.choice(['compact', 'flexible'])
        if spacing == 'flexible' and rng.random() < 0.5:
            texts = [json.dumps(v, ensure_ascii=False, indent=2) for v in values]
        elif spacing == 'flexible':
            texts = [json.dumps(v, ensure_ascii=False) for v in values]
        else:
            texts = [json.dumps(v, ensure_ascii=False, separators=(',', ':')) for v in values]
        answer = program.ask(schema, texts, order='any', spacing=spacing)
        counts['schemas'] += 1
        if 'error' in answer and not answer['unsatisfiable']:
            counts['refused'] += 1
            refused[answer['error'].rsplit(': ', 1)[-1]] += 1
            continue
        if 'error' in answer:
            counts['unsatisfiable'] += 1
        verdicts = answer.get('verdicts', [False] * len(values))
        for value, want, have in zip(values, wanted, verdicts):
            counts['valid' if want else 'invalid'] += 1
            if want != have:
                print(f'round {number}: {"accepted" if have else "rejected"}, jsonschema says otherwise\n'
                      f'  schema {text}\n  value {json.dumps(value)}  {answer.get("error", "")}')
                sys.exit(1)
    print(dict(counts))
    for reason, count in refused.most_common(12):
        print(f'  {count} {reason[:150]}')


if __name__ == '__main__':
    main()
