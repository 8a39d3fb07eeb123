"""The peers that bench/masks.py compares with, each as a process with the protocol of bench/masks.cc.

    python3 bench/masks_peers.py llguidance|xgrammar TOKENIZER_JSON EOS SECONDS

Exits with 77 if the package is not installed. A line that takes more than SECONDS of processor time ends the process
(SIGPROF). The calls are the packages' fastest from Python that write one
mask to a buffer; the ready line gives the cost of a call that does nothing ("call", ns).
"""
import importlib.metadata
import json
import os
import signal
import sys
import time

# Packages that import tokenize must not get this folder's tokenize.py.
sys.path = [path for path in sys.path if os.path.abspath(path) != os.path.dirname(os.path.abspath(__file__))]
os.environ['TOKENIZERS_PARALLELISM'] = 'false'
os.environ['RAYON_NUM_THREADS'] = '1'
clock = time.thread_time_ns


class Refused(Exception):
    pass


class Llguidance:
    def __init__(self, path, eos):
        import llguidance
        self.matcher_class = llguidance.LLMatcher
        with open(path, encoding='utf-8') as file:
            self.tokenizer = llguidance.LLTokenizer(file.read(), eos_token=eos)
        self.size = self.tokenizer.vocab_size

    def allocate(self):
        import numpy
        bits = numpy.zeros((self.size + 31) // 32, dtype=numpy.int32)
        self.address, self.bytes = bits.ctypes.data, bits.nbytes
        return bits

    def compile(self, schema, flexible):
        options = {} if flexible else {'whitespace_flexible': False, 'item_separator': ',', 'key_separator': ':'}
        grammar = self.matcher_class.grammar_from_json_schema(schema, overrides=options)
        self.matcher = self.matcher_class(self.tokenizer, grammar, log_level=0)
        if self.matcher.is_error():
            raise Refused(self.matcher.get_error())

    def start(self):
        self.matcher.reset()
        return self.matcher

    def fill(self, matcher):
        matcher.unsafe_compute_mask_ptr(self.address, self.bytes)

    @staticmethod
    def advance(matcher, token):
        return matcher.consume_token(token)

    @staticmethod
    def nothing(matcher):
        matcher.is_error()


class Xgrammar:
    def __init__(self, path, eos):
        import transformers
        import xgrammar
        self.matcher_class = xgrammar.GrammarMatcher
        self.xgrammar = xgrammar
        fast = transformers.PreTrainedTokenizerFast(tokenizer_file=path, eos_token='</s>')
        self.size = len(fast)
        info = xgrammar.TokenizerInfo.from_huggingface(fast, vocab_size=self.size, stop_token_ids=[eos])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def allocate(self):
        self.tensor = self.xgrammar.allocate_token_bitmask(1, self.size)
        return self.tensor.numpy()[0]

    def compile(self, schema, flexible):
        options = {'any_whitespace': True} if flexible else {'any_whitespace': False, 'separators': (',', ':')}
        try:
            self.compiled = self.compiler.compile_json_schema(schema, strict_mode=False, **options)
        except (RuntimeError, ValueError, TypeError) as problem:
            raise Refused(str(problem)) from problem

    def start(self):
        return self.matcher_class(self.compiled)

    def fill(self, matcher):
        matcher.fill_next_token_bitmask(self.tensor)

    @staticmethod
    def advance(matcher, token):
        return matcher.accept_token(token)

    @staticmethod
    def nothing(matcher):
        matcher.is_terminated()


def follow(peer, bits, tokens, eos):
    """(accepted, times of masks, times of advances) of one instance."""
    matcher = peer.start()
    masks, advances = [], []
    for token in tokens + [eos]:
        asked = clock()
        peer.fill(matcher)
        masks.append(clock() - asked)
        if not int(bits[token >> 5]) >> (token & 31) & 1:
            return False, masks, advances
        if len(masks) > len(tokens):
            return True, masks, advances
        start = clock()
        taken = peer.advance(matcher, token)
        advances.append(clock() - start)
        if not taken:
            return False, masks, advances


def answer(peer, bits, line, eos):
    start = clock()
    try:
        peer.compile(line['schema'], line['spacing'] == 'flexible')
    except Refused as problem:
        return {'compile': clock() - start, 'error': str(problem)[:300], 'unsatisfiable': False}
    out = {'compile': clock() - start, 'accepted': [], 'masks': [], 'advances': []}
    for tokens in line['instances']:
        accepted, masks, advances = follow(peer, bits, tokens, eos)
        out['accepted'].append(accepted)
        out['masks'].append(masks)
        out['advances'].append(advances)
    return out


def main():
    name, path, eos, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    # Keeps a library's own output out of the lines.
    lines = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    try:
        peer = {'llguidance': Llguidance, 'xgrammar': Xgrammar}[name](path, eos)
    except ImportError as problem:
        print(problem, file=sys.stderr)
        sys.exit(77)
    bits = peer.allocate()
    peer.compile('{"type": "integer"}', True)
    matcher = peer.start()
    calls = []
    for _ in range(1000):
        start = clock()
        peer.nothing(matcher)
        calls.append(clock() - start)
    print(json.dumps({'ready': peer.size, 'call': sorted(calls)[500], 'version': importlib.metadata.version(name)}), file=lines, flush=True)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        print(json.dumps(answer(peer, bits, json.loads(line), eos)), file=lines, flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == '__main__':
    main()
