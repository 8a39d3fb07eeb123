"""Text to train and test tokenizers with. All of it is generated, so that no foreign text is in the tree.

english(n): plausible English prose. hostile(random): one string of the kinds that break tokenizers.
"""
import random as random_module

STEMS = """time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law car
city community name president team minute idea body information back parent face level office door
health person art war history party result change morning reason research girl guy moment air
teacher force education""".split()
VERBS = """be have do say get make go know take see come think look want give use find tell ask work
seem feel try leave call keep let begin help show hear play run move live believe bring happen write
provide sit stand lose pay meet include continue set learn lead understand watch follow stop create
speak read allow add spend grow open walk win offer remember love consider appear buy wait serve die
send expect build stay fall cut reach kill remain""".split()
SMALL = """the of and a to in is you that it he was for on are as with his they I at be this have from
or one had by but not what all were we when your can said there use an each which she do how their if
will up other about out many then them these so some her would make like him into has look two more
go see no way could my than first been who its now did get""".split()
ENDS = ["", "", "", "s", "ed", "ing", "er", "ly", "ness", "ment", "able", "tion", "'s", "n't"]
MARKS = [". ", ". ", ", ", ", ", "; ", ": ", "! ", "? ", " - ", " (", ") ", "\n", ".\n\n", " \"",
         "\" "]


def english(length, seed):
    random = random_module.Random(seed)
    parts = []
    size = 0
    begin = True
    while size < length:
        words = []
        for _ in range(random.randint(3, 14)):
            kind = random.random()
            if kind < 0.5:
                word = random.choice(SMALL)
            elif kind < 0.8:
                word = random.choice(STEMS) + random.choice(ENDS)
            elif kind < 0.97:
                word = random.choice(VERBS) + random.choice(ENDS)
            else:
                word = str(random.randint(0, 10 ** random.randint(1, 6)))
            words.append(word.capitalize() if begin else word)
            begin = False
        mark = random.choice(MARKS)
        begin = mark[0] in ".!?"
        part = " ".join(words) + mark
        parts.append(part)
        size += len(part)
    return "".join(parts)[:length]


def code(length, seed):
    random = random_module.Random(seed)
    lines = []
    size = 0
    while size < length:
        name = random.choice(STEMS) + "_" + random.choice(VERBS)
        depth = "    " * random.randint(0, 3) if random.random() < 0.8 else "\t"
        line = depth + random.choice([
            f"def {name}({random.choice(STEMS)}, {random.choice(STEMS)}=None):",
            f"if {name} >= {random.randint(0, 99999)}:", f"return {name}[{random.randint(0, 9)}]",
            f"for (int i = 0; i < {random.randint(1, 4096)}; ++i) {{", "}", "",
            f"{name} += {random.random():.6f}  # {random.choice(SMALL)}",
        ])
        lines.append(line + random.choice(["\n", "\n", "\n", "\r\n"]))
        size += len(line) + 1
    return "".join(lines)[:length]


# First and last code points of the ranges to draw from.
SCRIPTS = [(0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x17F), (0x370, 0x3FF), (0x400, 0x4FF),
           (0x5D0, 0x5EA), (0x620, 0x64A), (0x904, 0x97F), (0xE01, 0xE3A), (0x1100, 0x11FF),
           (0x3041, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xAFFF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF),
           (0x2000, 0x206F), (0x2070, 0x218F), (0xFB00, 0xFB4F), (0x1F300, 0x1F6FF),
           (0x1D400, 0x1D7FF), (0xF900, 0xFAFF), (0x20000, 0x200FF)]
UNICODE_16 = [0x10D40, 0x10D4A, 0x10D65, 0x10D69, 0x105C0, 0x105C9, 0x11380, 0x113C5, 0x11BC0,
              0x11BF0, 0x16100, 0x16121, 0x16130, 0x16D40, 0x16D68, 0x16D70, 0x1CCF0, 0x1E5D0,
              0x1E5EE, 0x1E5F1, 0xA7CB, 0xA7DA, 0xA7DC, 0x1C89, 0x1C8A, 0x897, 0x1FAE9, 0x1CC00]
MARKS_COMBINING = [0x300, 0x301, 0x302, 0x303, 0x308, 0x30A, 0x323, 0x327, 0x328, 0x338, 0x345,
                   0x5B0, 0x5BC, 0x64B, 0x93C, 0x94D, 0x9BE, 0xE38, 0x1DC4, 0x20D0, 0x3099, 0x309A,
                   0x1AB0, 0x1D165, 0x1D16E, 0x11A8, 0x1161, 0x11C2]
SPACES = [" ", " ", " ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", "\x0b", "\x0c", "\x85", "\xa0",
          "\u1680", "\u2003", "\u2009", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b",
          "\ufeff", "\u2581", "\u2581\u2581"]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'rE", "'ve", "'VE", "'m", "'M", "'ll",
                "'LL", "'lL", "'d", "'D", "'\u017f", "\u2019s", "'", "''", "'l", "'r", "'v", "'ss",
                "'tis", "'\u212a"]
NFC_PAIRS = ["e\u0301", "A\u030a", "\u212b", "\u1100\u1161\u11a8", "\uac00\u11a8", "q\u0323\u0307",
             "q\u0307\u0323", "\u0344", "\u0958", "\u2adc", "\ufb1d", "\u0915\u093c", "\u1e9b\u0323",
             "\u2126", "\u1fef", "a\u0328\u0301", "\u03b1\u0345\u0301", "\u0fb2\u0f71\u0f80",
             "\ud55c", "\u1112\u1161\u11ab", "\u09c7\u09be", "\U0001d15e", "\U00011099\U000110ba"]


def piece(random, specials):
    kind = random.randrange(17)
    if kind == 0:
        first, last = random.choice(SCRIPTS)
        return "".join(chr(random.randint(first, last)) for _ in range(random.randint(1, 12)))
    if kind == 1:
        return random.choice(SPACES) * random.randint(1, 4)
    if kind == 2:
        return "".join(random.choice(SPACES) for _ in range(random.randint(1, 6)))
    if kind == 3:
        return random.choice(STEMS + VERBS) + random.choice(CONTRACTIONS)
    if kind == 4:
        return random.choice(CONTRACTIONS)
    if kind == 5:
        return str(random.randint(0, 10 ** random.randint(1, 18)))
    if kind == 6:
        return random.choice(specials)
    if kind == 7:
        return random.choice(SPACES) * random.randint(0, 2) + random.choice(specials) + \
            random.choice(SPACES + ["a", "_", ".", "9"]) * random.randint(0, 2)
    if kind == 8:
        return random.choice(specials)[:random.randint(1, 8)]
    if kind == 9:
        return random.choice(NFC_PAIRS)
    if kind == 10:
        return random.choice("aeoAqn\u0915\u1100\uac00") + "".join(
            chr(random.choice(MARKS_COMBINING)) for _ in range(random.randint(1, 5)))
    if kind == 11:
        return chr(random.choice(UNICODE_16)) * random.randint(1, 2)
    if kind == 12:
        return random.choice(["\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea",
                              "\u2764\ufe0f", "\U0001f44d\U0001f3fd", "\U0001faf1\U0001f3fb"])
    if kind == 13:
        while True:
            point = random.randint(0, 0x10FFFF)
            if not 0xD800 <= point < 0xE000:
                return chr(point)
    if kind == 14:
        return "".join(random.choice("!?.,;:()[]{}<>|/\\@#$%^&*-_=+~`\"") for _ in
                       range(random.randint(1, 8))) + random.choice(["", "\n", "\r\n\n", " \n "])
    if kind == 15:
        word = random.choice(STEMS) + random.choice(VERBS)
        return random.choice([word.upper(), word.capitalize(), word])
    return " ".join(random.choice(SMALL + STEMS) for _ in range(random.randint(1, 6)))


def token_ids(random, vocabulary):
    """Tokens that no text produces: bytes cut off inside characters, runs of one kind, anything."""
    ids = []
    for _ in range(random.randint(1, 6)):
        first = random.choice([0, 3, random.randrange(vocabulary)])
        ids += [min(first + random.randrange(256), vocabulary - 1) for _ in range(random.randint(1, 6))]
    return ids


def hostile(random, specials):
    if random.random() < 0.004:  # one very long word
        unit = random.choice(["a", "ab", "\u4e2d", "9", " ", "\n", "!", "e\u0301", "\U0001f600"])
        return unit * random.randint(50, 1500)
    joint = random.choice(["", "", " "])
    return joint.join(piece(random, specials) for _ in range(random.randint(0, 9)))
