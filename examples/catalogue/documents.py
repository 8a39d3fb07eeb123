"""Vocabulary and products -> documents: one shared prefix and the rows that hang on it.

extraction: the prefix is a product record of running text and key-value lines, a row is a question
            about one attribute, the answer is that attribute's value as the record writes it.
ranking:    the prefix is a customer's request, a row is a short product record, the answer is yes
            when the product meets every point of the request and no when it misses one.

A record also tells of other products, with values for the same attributes, so that a value of the
right sort is not yet the right value. The answer follows the prompt after one space.
"""

from dataclasses import dataclass, field

from products import COMMON, KINDS, attributes_of

CHARACTERS_PER_TOKEN = 2.75  # of the model's tokenizer on this text; only steers the length
SHORTEST = 500  # characters, so that no record has fewer than 150 tokens

FILLER = (
    "Orders placed before noon leave the same day.",
    "Returns are accepted in the original box.",
    "Wipe with a dry cloth and keep away from direct sun.",
    "The packaging is free of plastic and can be recycled.",
    "Customers praise how easy it is to set up.",
    "A printed guide in four languages lies in the box.",
    "Read the safety notes before first use.",
    "Spare parts are kept for ten years after the last sale.",
    "It has been part of the catalogue for several seasons.",
    "Photographs may show optional accessories that are sold apart.",
    "Two people should carry the box.",
    "All figures are typical values and may change without notice.",
    "Business customers receive an invoice with every order.",
    "The offer holds while stocks last.",
    "Gift wrapping is available on request.",
    "Our staff will gladly answer further questions.",
    "Assembly takes a few minutes and needs no special tools.",
    "The design won over the jury of a trade fair.",
)
PURPOSES = "a hotel,a school,a small office,a holiday flat,a workshop,a hospital ward,a museum,a family of five,a theatre,a farm shop,a fire station,a library".split(",")
BULLETS = ("{l}: {v}", "- {l}: {v}", "* {l} = {v}", "| {l} | {v} |", "{l} ..... {v}", "{l}\t{v}", "  {l}: {v};", "• {l} – {v}")
HEADINGS = ("Technical data of the {n}", "{n}: data sheet", "Specification ({n})", "The {n} in figures", "## {n}")
OTHERS = ("Also in our range: {n}", "For comparison: {n}", "Discontinued: {n}", "Not to be confused with the {n}", "## Another product: {n}")
CONTRASTS = (
    "by contrast, {s}", "for comparison, {s}", "unlike this one, {s}", "elsewhere in the range, {s}", "other customers chose differently: {s}",
    "in an earlier season, {s}", "our other offer: {s}", "{s}",
)  # fmt: skip
OPENINGS = (
    "{n} {k}", "Product: {n}\nKind: {k}", "# {n}\n\nThe {n} is a product of the kind {k}.", "{K} {n}\n\nThis page describes the {n}.",
    "Record {c}\nName: {n}\nKind: {k}", "The {n} is our {k} for every day.",
)
GENERIC_QUESTIONS = (
    "What is the {a} of the {n}?", "State the {a} of the {n}.", "{A}?", "What {a} does the {n} have?", "Give the {a}.",
    "{A} of the {n}?", "What is the {a} of this product?", "Find the {a} of the {n}.",
)


@dataclass
class Row:
    own: str  # what follows the prefix; ends at the point where the answer begins
    answer: str  # without the space before it
    about: str  # the attribute asked for; of a ranking row, the point it misses or ""
    marks: list = field(default_factory=list)  # as of a Document, in `own`


@dataclass
class Document:
    task: str
    prefix: str
    rows: list = field(default_factory=list)
    # (first, last character, label) of values in the text: what each one is, OWN or OTHER in a record,
    # MET or MISSED in a ranking row. Training alone looks at them.
    marks: list = field(default_factory=list)


OWN, OTHER, MET, MISSED = 1, 2, 3, 4


class _Text:
    """Text with marks, put together piece by piece."""

    def __init__(self, text=""):
        self.text, self.marks = text, []

    def add(self, text, value=None, label=0):
        """With a value, marks its last occurrence in the piece."""
        if value is not None and label:
            first = len(self.text) + text.rindex(value)
            self.marks.append((first, first + len(value) - 1, label))
        self.text += text

    def join(self, pieces, separator):
        for number, piece in enumerate(pieces):
            self.text += separator if number else ""
            self.marks += [(first + len(self.text), last + len(self.text), label) for first, last, label in piece.marks]
            self.text += piece.text
        return self


def _product_name(vocabulary, rng):
    name = f"{vocabulary.name(rng)} {vocabulary.name(rng)}"
    extra = rng.random()
    if extra < 0.25:
        name += f" {vocabulary.integer(rng, 2, 9999)}"
    elif extra < 0.4:
        name += " " + rng.choice(("Pro", "Plus", "Mini", "XL", "S", "Duo", "Max", "II"))
    return name


def _capital(text):
    return text[0].upper() + text[1:]


def _sentence(rng, attribute, value, subject):
    sentence = rng.choice(attribute.sentences)
    if subject == "it" and not sentence.startswith("{s}"):
        subject = "the product"
    return sentence.format(s=subject, v=value)


def _line(rng, style, attribute, value):
    return style.format(l=rng.choice(attribute.labels), v=value)


def _other_value(vocabulary, rng, attribute, value):
    while True:
        other = attribute.draw(vocabulary, rng)
        if other != value:
            return other


def extraction(vocabulary, rng, tokens, max_questions=24):
    """One record of about so many tokens (150 to 1,200), and 4 to max_questions questions on it."""
    budget = tokens * CHARACTERS_PER_TOKEN
    kind = rng.choice(list(KINDS))
    name = _product_name(vocabulary, rng)
    others = [_product_name(vocabulary, rng) for _ in range(rng.randint(1, 3))]
    available = attributes_of(kind)
    most = max(4, min(24, len(available), tokens // 32))
    chosen = rng.sample(available, rng.randint(max(4, most // 2), most))
    values = {attribute.key: attribute.draw(vocabulary, rng) for attribute in chosen}

    style = rng.choice(BULLETS)
    share_told = rng.choice((0, 0.3, 0.5, 0.7, 1))
    told = [a for a in chosen if rng.random() < share_told]
    listed = [a for a in chosen if a not in told]
    head = rng.choice(OPENINGS).format(n=name, k=kind, K=_capital(kind), c=vocabulary.code(rng))

    prose = [("own", a) for a in told]
    lists = [("own", listed)] if listed else []
    size = len(head) + sum(len(values[a.key]) + 30 for a in chosen) + 60
    while size < budget:
        what = rng.random()
        if what < 0.45:
            attribute = rng.choice(chosen)
            prose.append(("other", attribute))
            size += 62
        elif what < 0.72:
            prose.append(("filler", rng.choice(FILLER)))
            size += 52
        elif len(lists) < 4:
            table = rng.sample(available, min(len(available), rng.randint(2, 7)))
            lists.append(("other", table))
            size += 35 + 29 * len(table)
    rng.shuffle(prose)

    blocks = []
    while prose:
        count = rng.randint(2, 7)
        blocks.append(_paragraph(vocabulary, rng, prose[:count], values, name, others))
        prose = prose[count:]
    for what, content in lists:
        if what == "own":
            heading, label = rng.choice(HEADINGS).format(n=name), OWN
            pairs = [(a, values[a.key]) for a in content]
        else:
            heading, label = rng.choice(OTHERS).format(n=rng.choice(others)), OTHER
            pairs = [(a, _other_value(vocabulary, rng, a, values.get(a.key))) for a in content]
        lines = [_Text(heading)]
        for attribute, value in pairs:
            lines.append(_Text())
            lines[-1].add(_line(rng, style, attribute, value), value, label)
        blocks.append(_Text().join(lines, "\n"))
    rng.shuffle(blocks)
    while sum(len(block.text) for block in blocks) + len(head) < SHORTEST:
        blocks.append(_Text(" ".join(rng.sample(FILLER, 2))))

    text = _Text().join([_Text(head), *blocks, _Text()], "\n\n")
    document = Document("extraction", text.text, marks=text.marks)
    asked = list(chosen)
    rng.shuffle(asked)
    for attribute in asked[: min(max_questions, rng.randint(4, 24))]:
        if rng.random() < 0.5:
            question = rng.choice(GENERIC_QUESTIONS)
        else:
            question = rng.choice(attribute.questions)
        question = question.format(a=attribute.key, A=_capital(attribute.key), n=name)
        document.rows.append(Row(f"Question: {question}\nAnswer:", values[attribute.key], attribute.key))
    return document


def _paragraph(vocabulary, rng, prose, values, name, others):
    """Sentences on the product, on others, and on neither. "It" only follows a sentence on the product."""
    sentences = []
    previous_own = False
    for what, content in prose:
        text = _Text()
        if what == "filler":
            text.add(content)
        elif what == "own":
            subject = rng.choice(("it", "the product", f"the {name}") if previous_own else (f"the {name}", f"the {name}", name))
            value = values[content.key]
            text.add(_capital(_sentence(rng, content, value, subject)), value, OWN)
        else:
            other = rng.choice(others)
            value = _other_value(vocabulary, rng, content, values[content.key])
            sentence = _sentence(rng, content, value, rng.choice((f"the {other}", other)))
            text.add(_capital(rng.choice(CONTRASTS).format(s=sentence)), value, OTHER)
        sentences.append(text)
        previous_own = what == "own"
    return _Text().join(sentences, " ")


def ranking(vocabulary, rng, rows):
    """One request with one to three points, and so many short records, about half of which meet it."""
    kind = rng.choice(list(KINDS))
    available = attributes_of(kind)
    points = []
    for attribute in rng.sample(available, rng.choice((1, 1, 2, 3))):
        wanted = attribute.draw(vocabulary, rng)
        points.append((attribute, wanted, _values(vocabulary, rng, attribute, wanted)))

    customer = vocabulary.company(rng) if rng.random() < 0.5 else vocabulary.person(rng)
    story = [
        f"{customer} is looking for a new {kind} for {rng.choice(PURPOSES)} in {vocabulary.place(rng)}.",
        f"Delivery is wanted by {vocabulary.date(rng)}.",
        f"The present {kind}, a {_product_name(vocabulary, rng)}, is worn out.",
        f"Please name {vocabulary.code(rng)} in the reply.",
        f"Questions go to {vocabulary.address(rng)}.",
    ]
    story = story[:1] + rng.sample(story[1:], rng.randint(0, 4)) + rng.sample(FILLER, rng.randint(0, 3))
    wishes = "\n".join(f"- {_capital(a.key)}: {text}" for a, text, _ in points)
    prefix = (
        f"Request {vocabulary.code(rng)}\n\n{' '.join(story)}\n\nThe product must be of this kind: {kind}\n{wishes}\n\n"
        "Does the product below meet every point of the request? Answer yes or no.\n\n"
    )
    document = Document("ranking", prefix)
    for _ in range(rows):
        missed = -2 if rng.random() < 0.5 else rng.randint(-1, len(points) - 1)
        its_kind = kind if missed != -1 else rng.choice([k for k in KINDS if k != kind])
        found = [(a, value(missed != index), MISSED if missed == index else MET) for index, (a, _, value) in enumerate(points)]
        asked_for = {a.key for a, _, _ in points}
        rest = [a for a in COMMON if a.key not in asked_for]
        found += [(a, a.draw(vocabulary, rng), 0) for a in rng.sample(rest, rng.randint(0, 4))]
        rng.shuffle(found)
        name = _product_name(vocabulary, rng)
        own = _Text(f"Product: {name}\n")
        own.add(f"Kind: {its_kind}\n", its_kind, MET if its_kind == kind else MISSED)
        listed = rng.random() < 0.5
        style = rng.choice(BULLETS)
        pieces = []
        for attribute, value, label in found:
            pieces.append(_Text())
            if listed:
                piece = _line(rng, style, attribute, value)
            else:
                piece = _capital(_sentence(rng, attribute, value, rng.choice(("it", "the product", f"the {name}"))))
            pieces[-1].add(piece, value, label)
        own.join(pieces, "\n" if listed else " ")
        about = "" if missed == -2 else "kind" if missed == -1 else points[missed][0].key
        document.rows.append(Row(own.text + "\nAnswer:", "no" if about else "yes", about, own.marks))
    return document


def _values(vocabulary, rng, attribute, wanted):
    def value(meets):
        if meets:
            return wanted
        other = _other_value(vocabulary, rng, attribute, wanted)
        # Half right is still wrong: "dark teal" for "dark umber".
        mine, theirs = wanted.split(" "), other.split(" ")
        if len(mine) > 1 and len(mine) == len(theirs) and rng.random() < 0.5:
            mixed = " ".join([mine[0], *theirs[1:]] if rng.random() < 0.5 else [*mine[:-1], theirs[-1]])
            return mixed if mixed != wanted else other
        return other

    return value
