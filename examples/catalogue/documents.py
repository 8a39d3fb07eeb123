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
OTHERS = ("Also in our range: {n}", "For comparison: {n}", "{n} (discontinued)", "Not to be confused with the {n}", "## {n}")
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


@dataclass
class Document:
    task: str
    prefix: str
    rows: list = field(default_factory=list)


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


def _lines(rng, style, attribute, value):
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
            heading = rng.choice(HEADINGS).format(n=name)
            pairs = [_lines(rng, style, a, values[a.key]) for a in content]
        else:
            heading = rng.choice(OTHERS).format(n=rng.choice(others))
            pairs = [_lines(rng, style, a, _other_value(vocabulary, rng, a, values.get(a.key))) for a in content]
        blocks.append("\n".join([heading, *pairs]))
    rng.shuffle(blocks)

    document = Document("extraction", "\n\n".join([head, *blocks]) + "\n\n")
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
        if what == "filler":
            sentences.append(content)
        elif what == "own":
            subject = rng.choice(("it", "the product", f"the {name}") if previous_own else (f"the {name}", f"the {name}", name))
            sentences.append(_capital(_sentence(rng, content, values[content.key], subject)))
        else:
            other = rng.choice(others)
            value = _other_value(vocabulary, rng, content, values[content.key])
            sentence = _sentence(rng, content, value, rng.choice((f"the {other}", other)))
            sentences.append(_capital(rng.choice(("", "", "by contrast, ", "for comparison, ", "unlike this one, ")) + sentence))
        previous_own = what == "own"
    return " ".join(sentences)


def _bound(vocabulary, rng, attribute):
    """The wording of a bound on a whole number, and a function that draws numbers that keep it or not."""
    low, high = attribute.low, attribute.high
    owned = [number for number in range(low, high + 1) if vocabulary.owns(str(number))]
    at_least = rng.random() < 0.5
    # At least three numbers on either side; by magnitude, as the numbers themselves are.
    bound = min(max(int(low * (high / low) ** rng.random()), owned[3]), owned[-4])
    sides = ([n for n in owned if n < bound], [n for n in owned if n > bound])

    def value(keeps):
        pool = sides[keeps == at_least]
        if rng.random() < 0.4:  # a near miss, or just enough
            near = [n for n in pool if bound * 3 < n * 4 and n * 3 < bound * 4]
            return rng.choice(near or pool)
        aim = pool[0] * (pool[-1] / pool[0]) ** rng.random()
        return min(rng.choices(pool, k=12), key=lambda n: abs(n - aim))

    words = rng.choice(("at least", "no less than", "from")) if at_least else rng.choice(("at most", "no more than", "up to"))
    return f"{words} {bound} {attribute.unit}", value


def ranking(vocabulary, rng, rows):
    """One request with one to three points, and so many short records, about half of which meet it."""
    kind = rng.choice(list(KINDS))
    available = attributes_of(kind)
    texts = [a for a in available if not a.unit and a.key not in ("dimensions", "resolution", "price", "working temperature")]
    numbers = [a for a in available if a.unit]
    # A point on a whole number, for some of the requests; the others are met by the very same words.
    points = []
    if rng.random() < 0.6:
        attribute = rng.choice(numbers)
        wish, number = _bound(vocabulary, rng, attribute)
        points.append((attribute, wish, lambda keeps, number=number, unit=attribute.unit: f"{number(keeps)} {unit}"))
    for attribute in rng.sample(texts, rng.randint(0 if points else 1, 2)):
        wanted = attribute.draw(vocabulary, rng)
        points.append((attribute, wanted, _textual_values(vocabulary, rng, attribute, wanted)))
    rng.shuffle(points)

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
        found = [(a, value(missed != index)) for index, (a, _, value) in enumerate(points)]
        asked_for = {a.key for a, _, _ in points}
        rest = [a for a in COMMON if a.key not in asked_for]
        found += [(a, a.draw(vocabulary, rng)) for a in rng.sample(rest, rng.randint(0, 4))]
        rng.shuffle(found)
        name = _product_name(vocabulary, rng)
        if rng.random() < 0.5:
            style = rng.choice(BULLETS)
            body = "\n".join(_lines(rng, style, a, v) for a, v in found)
            own = f"Product: {name}\nKind: {its_kind}\n{body}"
        else:
            sentences = [_capital(_sentence(rng, a, v, rng.choice(("it", "the product", f"the {name}")))) for a, v in found]
            own = f"Product: {name}\nKind: {its_kind}\n{' '.join(sentences)}"
        about = "" if missed == -2 else "kind" if missed == -1 else points[missed][0].key
        document.rows.append(Row(own + "\nAnswer:", "no" if about else "yes", about))
    return document


def _textual_values(vocabulary, rng, attribute, wanted):
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
