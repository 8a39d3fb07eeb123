"""JSON schemas against instances whose verdicts are known, through the program schema_records.

    ninja -C build tests/schema_records
    python3 tests/constraint/check_json_schemas.py suite
    python3 tests/constraint/check_json_schemas.py maskbench

Reads ../shared/json-schema beside the project, or the folder that BATCHLLM_JSON_SCHEMA_DATA names; exits with 77 and a
message if it is absent. SCHEMA_RECORDS names the program (build/tests/schema_records). An instance is written like
json.dumps without spaces, with members in the order that the schema declares (declared.py) or, with --order any, in
their own order. Fails if any verdict is wrong.
"""
import argparse
import collections
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import time

sys.path.insert(0, os.path.dirname(__file__))
from declared import in_declared_order  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def data_folder():
    folder = os.environ.get('BATCHLLM_JSON_SCHEMA_DATA', os.path.join(os.path.dirname(ROOT), 'shared', 'json-schema'))
    if not os.path.isdir(folder):
        folder = os.path.join(ROOT, '..', '..', 'shared', 'json-schema')
    if not os.path.isdir(folder):
        print('skipped: no test data at ../shared/json-schema')
        sys.exit(77)
    return folder


def suite_cases(folder, drafts=('draft2020-12', 'draft7'), optional=None):
    """(name, schema, tests) of the required tests, or of one folder of the optional ones."""
    with tarfile.open(os.path.join(folder, 'JSON-Schema-Test-Suite.tar.xz')) as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            match = re.search(r'tests/([^/]+)/(.*)\.json$', member.name)
            if not match or match[1] not in drafts:
                continue
            if optional is None and '/' in match[2]:
                continue
            if optional is not None and not match[2].startswith('optional/' + optional):
                continue
            for case in json.load(io.TextIOWrapper(archive.extractfile(member), 'utf-8')):
                schema = case['schema']
                if isinstance(schema, dict) and match[1] == 'draft7':
                    schema = {'$schema': 'http://json-schema.org/draft-07/schema#', **schema}
                yield f'{match[1]}/{match[2]}: {case["description"]}', schema, case['tests']


def maskbench_cases(folder):
    path = os.path.join(folder, 'maskbench-sample.jsonl.zst')
    text = subprocess.run(['zstd', '-dc', path], check=True, capture_output=True).stdout.decode()
    for line in text.splitlines():
        case = json.loads(line)
        yield case['name'], case['schema'], case['tests']


def text_of(instance, schema, order):
    if order == 'declared':
        instance = in_declared_order(instance, schema)
    return json.dumps(instance, separators=(',', ':'), ensure_ascii=False)


class Program:
    def __init__(self):
        path = os.environ.get('SCHEMA_RECORDS', os.path.join(ROOT, 'build', 'tests', 'schema_records'))
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        encoding='utf-8')

    def ask(self, schema, texts, **options):
        line = json.dumps({'schema': json.dumps(schema), 'texts': texts, **options})
        self.process.stdin.write(line + '\n')
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f'the program ended at {line[:2000]}')
        return json.loads(answer)


def has_lone_surrogate(text):
    return any('\ud800' <= c <= '\udfff' for c in text)


def check(cases, arguments, formats):
    program = Program()
    counts = collections.Counter()
    refused = collections.Counter()
    reasons = collections.defaultdict(list)
    times = []
    for name, schema, tests in cases:
        tests = [t for t in tests if not has_lone_surrogate(json.dumps(t['data'], ensure_ascii=False))]
        texts = [text_of(test['data'], schema, arguments.order) for test in tests]
        answer = program.ask(schema, texts, order=arguments.order, spacing=arguments.spacing, formats=formats,
                             loose=arguments.loose)
        counts['schemas'] += 1
        times.append((answer['microseconds'], name))
        if 'error' in answer:
            if not answer['unsatisfiable']:
                keyword = re.match(r'#.*?/([^/:]+): ', answer['error'])
                keyword = keyword[1] if keyword else 'schema'
                refused[keyword] += 1
                reasons[keyword].append((name, answer['error']))
                counts['refused'] += 1
                continue
            answer['verdicts'] = [False] * len(tests)
        wrong = False
        for test, text, verdict in zip(tests, texts, answer['verdicts']):
            counts['instances'] += 1
            if verdict == test['valid']:
                continue
            wrong = True
            kind = 'wrongly accepted' if verdict else 'wrongly rejected'
            if verdict and answer.get('warnings'):
                kind = 'accepted with a warning'
            counts[kind] += 1
            if not arguments.quiet:
                print(f'{kind}: {name}\n  schema {json.dumps(schema)[:arguments.width]}\n  instance {text[:300]}'
                      f'  ({test["description"]})')
        counts['schemas right' if not wrong else 'schemas wrong'] += 1
    for keyword, number in refused.most_common():
        print(f'  refused by {keyword}: {number}')
        for name, reason in reasons[keyword][:arguments.reasons]:
            print(f'    {name}: {reason[:400]}')
    for key in ('schemas', 'schemas right', 'schemas wrong', 'refused', 'instances', 'wrongly accepted',
                'wrongly rejected', 'accepted with a warning'):
        print(f'{key}: {counts[key]}')
    micros = sorted(times)
    print(f'right: {100 * counts["schemas right"] / max(counts["schemas"], 1):.1f} %')
    print(f'compile, microseconds of processor time: median {statistics.median(m for m, _ in micros):.0f}, '
          f'99 % {micros[int(len(micros) * 0.99)][0]:.0f}, worst {micros[-1][0]:.0f} ({micros[-1][1]})')
    enough = counts['schemas right'] >= arguments.least * counts['schemas']
    return enough and counts['wrongly accepted'] == 0 and counts['wrongly rejected'] == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('what', choices=['suite', 'formats', 'maskbench'])
    parser.add_argument('--order', choices=['declared', 'any'], default='declared')
    parser.add_argument('--spacing', choices=['compact', 'flexible'], default='compact')
    parser.add_argument('--loose', action='store_true')
    parser.add_argument('--quiet', action='store_true', help='no line for each wrong verdict')
    parser.add_argument('--reasons', type=int, default=3, help='refusals shown for each keyword')
    parser.add_argument('--least', type=float, default=0.85, help='share of schemas that must be right')
    parser.add_argument('--width', type=int, default=600)
    arguments = parser.parse_args()
    folder = data_folder()
    started = time.time()
    if arguments.what == 'suite':
        # The required tests treat formats as annotations.
        good = check(suite_cases(folder), arguments, formats=False)
    elif arguments.what == 'formats':
        good = check(suite_cases(folder, optional='format/'), arguments, formats=True)
    else:
        good = check(maskbench_cases(folder), arguments, formats=True)
    print(f'{time.time() - started:.1f} s')
    sys.exit(0 if good else 1)


if __name__ == '__main__':
    main()
