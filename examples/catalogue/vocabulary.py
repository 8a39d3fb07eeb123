"""Names and values of the catalogue, in two splits that share none.

A word, a number or a code belongs to the held-out split when the CRC-32 of its spelling (lower case,
no thousands separators) is divisible by four, and to the training split otherwise. So no name and no
value that a held-out question asks for was ever a name or a value in training: it has to be read from
the record. What both splits share is the language around them: kinds of product, attributes, units.
"""

import random
import re
import zlib

SPLITS = ("train", "held-out")

ONSETS = "b br c ch cl d dr f fl g gr h j k kl l m n p pl qu r s sh sk st t th tr v w y z".split()
NUCLEI = "a e i o u ai au ea ee ei ia ie io oa oo ou y ö ü é".split()
NUCLEUS_WEIGHTS = [12, 12, 12, 12, 8] + [2] * 12 + [1, 1, 1]
CODAS = ["", "", "", "", "", "l", "n", "r", "s", "t", "m", "x", "k", "nd", "rt", "lm", "st", "ck", "v"]
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"

COLOURS = """amber apricot aqua azure beige black blue bronze brown burgundy charcoal cherry chestnut cobalt copper
coral cream crimson cyan ebony emerald gold graphite green grey indigo ivory jade khaki lavender lemon lilac lime
magenta maroon mint mustard navy ochre olive orange orchid peach pearl pink plum purple red rose ruby rust saffron
salmon sand scarlet silver slate smoke tan teal terracotta turquoise umber vanilla violet white wine yellow""".split()
SHADES = "bright cool dark deep dusty faded frosted light matt metallic misty pale satin smoky soft warm".split()
MATERIALS = """acrylic alder aluminium ash bamboo beech birch brass canvas carbon cedar ceramic copper cork cotton denim
elm felt flax fleece glass granite hemp iron jute larch latex leather linen maple marble merino nickel nylon oak
oilcloth pine plaster plywood polyester porcelain quartz rattan resin rubber silicone silk slate steel suede teak
tin titanium velvet vinyl walnut wicker willow wool zinc""".split()
TREATMENTS = "anodised blasted brushed coated glazed hardened laminated moulded oiled painted plated polished recycled solid stained tempered treated varnished waxed".split()
MONTHS = "January February March April May June July August September October November December".split()


class Vocabulary:
    """Draws names and values of one split. Holds no random state: each call gets its generator."""

    def __init__(self, split):
        if split not in SPLITS:
            raise ValueError(f"split is {split!r}, not one of {SPLITS}")
        self.split = split
        self.colours = self._own(COLOURS)
        self.shades = self._own(SHADES)
        self.materials = self._own(MATERIALS)
        self.treatments = self._own(TREATMENTS)

    def owns(self, text):
        canonical = re.sub(r"(?<=\d)[, ](?=\d{3})", "", text.lower())
        return (zlib.crc32(canonical.encode()) % 4 == 0) == (self.split == "held-out")

    def _own(self, words):
        return [word for word in words if self.owns(word)]

    def _draw(self, make):
        while True:
            text = make()
            if self.owns(text):
                return text

    # Words that exist nowhere, so that they can only be copied.
    def word(self, rng):
        def make():
            syllables = rng.choice((2, 2, 2, 3, 3, 1))
            text = "".join(
                rng.choice(ONSETS) + rng.choices(NUCLEI, NUCLEUS_WEIGHTS)[0] + rng.choice(CODAS) for _ in range(syllables)
            )
            if rng.random() < 0.08:  # letters in no order at all
                text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 8)))
            return text if len(text) > 2 else text + rng.choice("lnrst")

        return self._draw(make)

    def name(self, rng):
        return self.word(rng).capitalize()

    def person(self, rng):
        return f"{self.name(rng)} {self.name(rng)}"

    def company(self, rng):
        return rng.choice(("{a} {b}", "{a} & {b}", "{a} Ltd", "{a} GmbH", "{a} & Sons", "{a} Works", "{a} {b} Inc.")).format(
            a=self.name(rng), b=self.name(rng)
        )

    def place(self, rng):
        return self.name(rng) if rng.random() < 0.7 else f"{self.name(rng)}, {self.name(rng)}"

    def colour(self, rng):
        base = self.word(rng) if rng.random() < 0.4 else rng.choice(self.colours)
        other = rng.random()
        if other < 0.35:
            return f"{rng.choice(self.shades)} {base}"
        if other < 0.6:
            return f"{self.word(rng)} {base}"
        return base

    def material(self, rng):
        base = self.word(rng) if rng.random() < 0.4 else rng.choice(self.materials)
        other = rng.random()
        if other < 0.35:
            return f"{rng.choice(self.treatments)} {base}"
        if other < 0.55:
            return f"{base} and {self.word(rng)}"
        return base

    def trade_name(self, rng):
        return self.name(rng) if rng.random() < 0.6 else f"{self.name(rng)} {self.name(rng)}"

    # Numbers: the digits alone decide the split, whatever the unit and the format.
    def integer(self, rng, low, high):
        return int(self._draw(lambda: str(rng.randint(low, high))))

    def number(self, rng, low, high, decimals=0):
        """One of several formats: 1250, 1,250, 12.5. Decimals as given, at random fewer."""
        decimals = rng.randint(0, decimals)

        def make():
            # By magnitude first, so that short and long numbers are both common.
            top = low * (high / low) ** rng.random() if low > 0 else rng.uniform(low, high)
            text = f"{top:.{decimals}f}"
            if rng.random() < 0.3 and len(text.split(".")[0]) > 3:
                text = f"{top:,.{decimals}f}"
            return text

        return self._draw(make)

    def date(self, rng):
        def make():
            day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1990, 2039)
            style = rng.randint(0, 3)
            if style == 0:
                return f"{year}-{month:02}-{day:02}"
            if style == 1:
                return f"{day} {MONTHS[month - 1]} {year}"
            if style == 2:
                return f"{MONTHS[month - 1]} {year}"
            return f"{day:02}/{month:02}/{year}"

        return self._draw(make)

    def code(self, rng):
        """Letters and digits as on a type plate: KX-4471, 8F3-22Z, QRT 482/7."""

        def part():
            style = rng.random()
            if style < 0.4:
                return "".join(rng.choices(LETTERS, k=rng.randint(1, 3)))
            if style < 0.85:
                return "".join(rng.choices("0123456789", k=rng.randint(2, 5)))
            return "".join(rng.choices(LETTERS + "0123456789", k=3))

        return self._draw(lambda: rng.choice("-- /.").join(part() for _ in range(rng.randint(2, 3))))

    def address(self, rng):
        word = self.word(rng)
        return rng.choice((f"{word}.example/{self.word(rng)}", f"{self.word(rng)}@{word}.example", f"www.{word}.example"))


def generator(split, seed, index):
    """The random numbers of one document: a function of these three and nothing else."""
    return random.Random(f"{split}/{seed}/{index}")
