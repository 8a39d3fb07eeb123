#!/usr/bin/env python3
"""Token masks of JSON schemas: time and verdicts beside PyPI's llguidance and xgrammar, in one run, on the same masks.

    pip install tokenizers llguidance==1.9.1 xgrammar==0.2.8
    meson setup build && ninja -C build bench/masks
    python3 bench/masks_vocabulary.py vocabulary.json
    python3 bench/masks.py DATA --vocabulary vocabulary.json

DATA is a file of JSON lines, or of such compressed with zstd, or a folder with maskbench-sample.jsonl.zst:
{"name", "schema", "tests": [{"data", "valid"}, ..]}. Without --vocabulary one is trained first, which takes minutes.
Peers that are not installed are left out with a message.

All run on one core and take turns for each schema, so that other programs disturb all alike; times are processor time
of the calling thread. Instances, valid and invalid, are written by json.dumps, with members in the order that the
schema declares, and cut into tokens once. Each is followed token by token as long as the mask allows, with one more
mask at its end. "same masks" are those that all of them made: for schemas that none rejected, up to the first token
that one of them did not allow. If interrupted (^C), it prints what it has.
"""
import argparse
import collections
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
# Packages that import tokenize must not get this folder's tokenize.py.
sys.path = [path for path in sys.path if os.path.abspath(path) != HERE]
sys.path.insert(0, os.path.join(ROOT, 'tests', 'constraint'))
from declared import in_declared_order  # noqa: E402

OURS = 'libbatchllm'
PEERS = ('llguidance', 'xgrammar')


def cases_of(path):
    if os.path.isdir(path):
        path = os.path.join(path, 'maskbench-sample.jsonl.zst')
    if path.endswith('.zst'):
        text = subprocess.run(['zstd', '-dc', path], check=True, capture_output=True).stdout.decode()
    else:
        with open(path, encoding='utf-8') as file:
            text = file.read()
    return [json.loads(line) for line in text.splitlines()]


def has_lone_surrogate(text):
    return any('\ud800' <= c <= '\udfff' for c in text)


class Worker:
    """A process that answers a line with a line, started again if it dies or takes too long."""

    def __init__(self, name, command, seconds):
        self.name, self.command, self.seconds = name, command, seconds
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.rest = b''
        self.ready = self.read(300)

    def read(self, seconds):
        while b'\n' not in self.rest:
            if not select.select([self.process.stdout], [], [], seconds)[0]:
                self.process.kill()
                self.process.wait()
                return None
            part = os.read(self.process.stdout.fileno(), 1 << 20)
            if not part:
                self.process.wait()
                return None
            self.rest += part
        line, _, self.rest = self.rest.partition(b'\n')
        return json.loads(line)

    def ask(self, line):
        try:
            self.process.stdin.write(json.dumps(line).encode() + b'\n')
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        found = self.read(30 * self.seconds)
        if found is None:
            code = self.process.returncode
            self.start()
            return {'failed': f'more than {self.seconds} s' if code == -signal.SIGPROF else f'ended with {code}'}
        return found


class Side:
    """The results of one library over all schemas."""

    def __init__(self, name, worker):
        self.name, self.worker = name, worker
        self.counts = collections.Counter()
        self.compiles, self.masks, self.advances, self.same, self.made = [], [], [], [], []
        self.verdict = {}  # schema -> right, wrong, refused, failed
        self.mistakes = {}  # schema -> what was wrong

    def take(self, name, tests, texts, found):
        if 'failed' in found:
            self.verdict[name] = 'failed'
            self.mistakes[name] = found['failed']
            return
        self.compiles.append(found['compile'])
        if 'error' in found and not found['unsatisfiable']:
            self.verdict[name] = 'refused'
            self.mistakes[name] = found['error']
            return
        accepted = found.get('accepted', [False] * len(tests))
        wrong = []
        for test, text, verdict in zip(tests, texts, accepted):
            if verdict != test['valid']:
                kind = 'wrongly accepted' if verdict else 'wrongly rejected'
                self.counts[kind] += 1
                wrong.append(f'{kind}: {text[:300]}')
        self.verdict[name] = 'wrong' if wrong else 'right'
        if wrong:
            self.mistakes[name] = wrong
        for masks, advances in zip(found.get('masks', []), found.get('advances', [])):
            self.masks += masks
            self.advances += advances

    def schemas(self, verdict):
        return sum(v == verdict for v in self.verdict.values())


def spread(values):
    """Mean, median, 99th percentile and worst, in microseconds."""
    if not values:
        return ['-'] * 4
    ordered = sorted(values)
    at = [statistics.fmean(ordered), statistics.median(ordered), ordered[int(len(ordered) * 0.99)], ordered[-1]]
    return [f'{value / 1000:,.1f}' for value in at]


def keep_same(sides, founds):
    """The masks that all of them made for one schema."""
    if any('masks' not in found for found in founds):
        return
    for instance in zip(*[found['masks'] for found in founds]):
        length = min(len(masks) for masks in instance)
        for side, masks in zip(sides, instance):
            side.same += masks[:length]


def print_table(sides):
    def row(head, cells):
        print(f'{head:<34}' + ''.join(f'{cell:>16}' for cell in cells))

    row('', [side.name for side in sides])
    row('schemas', [len(side.verdict) for side in sides])
    for verdict in ('right', 'wrong', 'refused', 'failed'):
        row('  ' + {'right': 'every instance right', 'wrong': 'an instance wrong', 'refused': 'refused',
                    'failed': 'crashed or took too long'}[verdict], [side.schemas(verdict) for side in sides])
    for kind in ('wrongly accepted', 'wrongly rejected'):
        row('instances ' + kind, [side.counts[kind] for side in sides])
    for head, values in (('compile, us', 'compiles'), ('mask, us, all of its own', 'masks'), ('mask, us, same masks', 'same'),
                         ('taking a token, us', 'advances')):
        row(head, [len(getattr(side, values)) for side in sides])
        table = [spread(getattr(side, values)) for side in sides]
        for i, name in enumerate(('mean', 'median', '99th percentile', 'worst')):
            row('  ' + name, [cells[i] for cells in table])
    row('a call that does nothing, us', [f'{side.worker.ready["call"] / 1000:.1f}' for side in sides])


def print_between(sides):
    ours = sides[0]
    for peer in sides[1:]:
        of = collections.Counter(ours.verdict[name] for name, verdict in peer.verdict.items() if verdict == 'right')
        print(f'of the {peer.schemas("right")} schemas that {peer.name} has right, {OURS} has {of["right"]} right, '
              f'refuses {of["refused"]}, has {of["wrong"] + of["failed"]} wrong')
        of = collections.Counter(peer.verdict[name] for name, verdict in ours.verdict.items() if verdict == 'right')
        print(f'of the {ours.schemas("right")} schemas that {OURS} has right, {peer.name} has {of["right"]} right, '
              f'refuses {of["refused"]}, has {of["wrong"] + of["failed"]} wrong')
        if peer.same and ours.same:
            print(f'mean mask, same masks: {OURS} {statistics.fmean(peer.same) / statistics.fmean(ours.same):.2f} times as fast '
                  f'as {peer.name}')


def start_sides(arguments, vocabulary, eos):
    sides = [Side(OURS, Worker(OURS, [arguments.program, vocabulary, str(eos), str(arguments.seconds)], arguments.seconds))]
    for name in PEERS if arguments.peers is None else arguments.peers:
        worker = Worker(name, [sys.executable, os.path.join(HERE, 'masks_peers.py'), name, vocabulary, str(eos),
                             str(arguments.seconds)], arguments.seconds)
        if worker.ready is None:
            print(f'LEFT OUT: {name} ' + ('is not installed' if worker.process.returncode == 77 else 'did not start'))
            continue
        print(f'{name} {worker.ready.get("version", "")}')
        sides.append(Side(name, worker))
    return sides


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('data')
    parser.add_argument('--vocabulary', help='a tokenizer.json that knows </s>')
    parser.add_argument('--program', default=os.path.join(ROOT, 'build', 'bench', 'masks'))
    parser.add_argument('--peers', nargs='*', choices=PEERS)
    parser.add_argument('--spacing', choices=['flexible', 'compact'], default='flexible')
    parser.add_argument('--order', choices=['declared', 'given'], default='declared', help='of the instances\' members')
    parser.add_argument('--seconds', type=int, default=60, help='of processor time for a schema; then it counts as failed')
    parser.add_argument('--core', type=int, default=0)
    parser.add_argument('--every', type=int, default=1, help='only every so many-th schema')
    parser.add_argument('--details', help='a file for what was wrong or refused, and where')
    arguments = parser.parse_args()
    if hasattr(os, 'sched_setaffinity'):
        os.sched_setaffinity(0, {arguments.core})
    cases = cases_of(arguments.data)[::arguments.every]
    from tokenizers import Tokenizer
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = arguments.vocabulary
        if vocabulary is None:
            vocabulary = os.path.join(folder, 'vocabulary.json')
            subprocess.run([sys.executable, os.path.join(HERE, 'masks_vocabulary.py'), vocabulary], check=True)
        tokenizer = Tokenizer.from_file(vocabulary)
        sides = start_sides(arguments, vocabulary, tokenizer.token_to_id('</s>'))
        try:
            run(cases, arguments, tokenizer, sides)
        except KeyboardInterrupt:
            print('INTERRUPTED: what was done so far')
    print_table(sides)
    print_between(sides)
    if arguments.details:
        with open(arguments.details, 'w', encoding='utf-8') as file:
            for name in sides[0].verdict:
                record = {side.name: [side.verdict[name], side.mistakes.get(name)] for side in sides}
                file.write(json.dumps({'name': name, **record}) + '\n')


def run(cases, arguments, tokenizer, sides):
    separators = (',', ':') if arguments.spacing == 'compact' else None
    for number, case in enumerate(cases):
        tests = [t for t in case['tests'] if not has_lone_surrogate(json.dumps(t['data'], ensure_ascii=False))]
        texts = []
        for test in tests:
            data = in_declared_order(test['data'], case['schema']) if arguments.order == 'declared' else test['data']
            texts.append(json.dumps(data, separators=separators, ensure_ascii=False))
        line = {'schema': json.dumps(case['schema']), 'spacing': arguments.spacing, 'order': 'declared',
                'instances': [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]}
        founds = [side.worker.ask(line) for side in sides]
        for side, found in zip(sides, founds):
            side.take(case['name'], tests, texts, found)
        keep_same(sides, founds)
        if sys.stderr.isatty() or number % 100 == 99:
            print(f'{number + 1} of {len(cases)} schemas', end='\r' if sys.stderr.isatty() else '\n', file=sys.stderr)


if __name__ == '__main__':
    main()
