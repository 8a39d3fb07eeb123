"""Kinds of product and their attributes: how each is labelled, told in a sentence, asked for, and drawn.

The same table serves both splits; only what Vocabulary draws differs.
"""

from dataclasses import dataclass
from typing import Callable


@dataclass(frozen=True)
class Attribute:
    key: str  # also its plain name in questions: "shipping weight"
    labels: tuple  # in key-value lines
    sentences: tuple  # {s}: subject, {v}: value. The cue always comes before the value
    questions: tuple  # {n}: the product
    draw: Callable  # (vocabulary, rng) -> value


def _quantity(low, high, units, decimals=0):
    def draw(vocabulary, rng):
        unit = rng.choice(units)
        return f"{vocabulary.number(rng, low, high, decimals)} {unit}"

    return draw


def _triple(vocabulary, rng):
    sides = [vocabulary.integer(rng, 3, 240) for _ in range(3)]
    return " x ".join(map(str, sides)) + " " + rng.choice(("cm", "mm", "in"))


def _price(vocabulary, rng):
    amount = vocabulary.number(rng, 3, 9000, 2)
    return rng.choice((f"{amount} EUR", f"{amount} USD", f"{amount} GBP", f"€{amount}", f"${amount}", f"£{amount}"))


def _span(vocabulary, rng):
    return f"{vocabulary.integer(rng, -40, 9)} to {vocabulary.integer(rng, 20, 95)} °C"


def _pixels(vocabulary, rng):
    return f"{vocabulary.integer(rng, 320, 7680)} x {vocabulary.integer(rng, 200, 4320)}"


def _numeric(key, unit, low, high, decimals, labels, sentences, questions, more_units=()):
    return Attribute(key, labels, sentences, questions, _quantity(low, high, (unit, *more_units), decimals))


def _textual(key, method, labels, sentences, questions):
    return Attribute(key, labels, sentences, questions, lambda vocabulary, rng: getattr(vocabulary, method)(rng))


# Attributes that any product can have.
COMMON = (
    _numeric("weight", "g", 15, 9500, 2, ("Weight", "Net weight"), ("{s} weighs {v}.", "{s} has a weight of {v}."),
             ("How much does the {n} weigh?", "How heavy is the {n}?"), ("kg", "lb", "oz")),
    _numeric("shipping weight", "kg", 2, 900, 1, ("Shipping weight", "Packed weight"), ("packed for shipping, {s} weighs {v}.", "{s} has a shipping weight of {v}."),
             ("How much does the {n} weigh when packed?",), ("lb",)),
    _numeric("height", "mm", 10, 2900, 1, ("Height",), ("{s} is {v} high.", "{s} stands at a height of {v}.", "{s} has a height of {v}."),
             ("How high is the {n}?", "How tall is the {n}?"), ("cm", "in")),
    _numeric("width", "mm", 10, 2900, 1, ("Width",), ("{s} has a width of {v}.", "{s} is as wide as {v}."), ("How wide is the {n}?",), ("cm", "in")),
    _numeric("depth", "mm", 10, 1900, 1, ("Depth",), ("{s} has a depth of {v}.", "{s} reaches back to a depth of {v}."), ("How deep is the {n}?",), ("cm", "in")),
    Attribute("dimensions", ("Dimensions", "Size"), ("{s} measures {v}.", "{s} has overall dimensions of {v}."),
              ("What does the {n} measure overall?",), _triple),
    Attribute("price", ("Price", "List price"), ("{s} costs {v}.", "{s} sells at a price of {v}.", "{s} is listed at {v}."),
              ("How much does the {n} cost?", "What does the {n} sell for?"), _price),
    _numeric("warranty", "months", 4, 160, 0, ("Warranty", "Guarantee"), ("{s} carries a warranty of {v}.", "{s} is guaranteed for {v}."),
             ("How long is the {n} guaranteed?",), ("years", "weeks")),
    _textual("colour", "colour", ("Colour", "Color"), ("{s} comes in {v}.", "{s} is coloured {v}.", "{s} has a colour called {v}."),
             ("Which colour is the {n}?", "In which colour does the {n} come?")),
    _textual("material", "material", ("Material", "Made of"), ("{s} is made of {v}.", "the body of {s} is {v}."),
             ("What is the {n} made of?",)),
    _textual("finish", "material", ("Finish", "Surface"), ("{s} has a finish of {v}.", "{s} is finished in {v}."), ("How is the {n} finished?",)),
    _textual("handle", "material", ("Handle", "Grip"), ("{s} has a handle of {v}.", "the handle of {s} is {v}."), ("What is the handle of the {n} made of?",)),
    _textual("coating", "trade_name", ("Coating",), ("{s} is protected by a coating named {v}.", "the coating of {s} is {v}."), ("Which coating does the {n} have?",)),
    _textual("manufacturer", "company", ("Manufacturer", "Made by"), ("{s} is made by {v}.", "the manufacturer of {s} is {v}."),
             ("Who makes the {n}?",)),
    _textual("supplier", "company", ("Supplier", "Distributor"), ("{s} is supplied by {v}.", "{s} is distributed by {v}."), ("Who supplies the {n}?",)),
    _textual("designer", "person", ("Designer", "Designed by"), ("{s} was designed by {v}.", "the designer of {s} is {v}."), ("Who designed the {n}?",)),
    _textual("inspector", "person", ("Inspector", "Inspected by"), ("{s} was inspected by {v}.", "the inspector of {s} was {v}."), ("Who inspected the {n}?",)),
    _textual("origin", "place", ("Origin", "Made in"), ("{s} is produced in {v}.", "the origin of {s} is {v}."), ("Where is the {n} produced?", "Where does the {n} come from?")),
    _textual("warehouse", "place", ("Warehouse", "Stored at"), ("{s} is stored at {v}.", "{s} leaves the warehouse in {v}."), ("Where is the {n} stored?",)),
    _textual("series", "trade_name", ("Series", "Product line"), ("{s} belongs to the series {v}.", "{s} is part of the product line {v}."), ("To which series does the {n} belong?",)),
    _textual("model number", "code", ("Model number", "Model no."), ("{s} has the model number {v}.", "{s} is sold under model number {v}."), ("Under which model number is the {n} sold?",)),
    _textual("article number", "code", ("Article number", "Article no.", "SKU"), ("{s} has the article number {v}.", "{s} is ordered by article number {v}."), ("By which article number is the {n} ordered?",)),
    _textual("certificate", "code", ("Certificate", "Certified to"), ("{s} holds certificate {v}.", "{s} is certified to {v}."), ("Which certificate does the {n} hold?",)),
    _textual("batch", "code", ("Batch", "Lot"), ("{s} is from batch {v}.", "{s} was made in lot {v}."), ("From which batch is the {n}?",)),
    _textual("release date", "date", ("Release date", "Released"), ("{s} was released on {v}.", "{s} first appeared on {v}."), ("When was the {n} released?",)),
    _textual("last revision", "date", ("Last revision", "Revised"), ("{s} was last revised on {v}.", "{s} saw its last revision on {v}."), ("When was the {n} last revised?",)),
    _textual("contact", "address", ("Contact", "Help"), ("for help with {s}, write to {v}.", "help with {s} is at {v}."), ("Where is help with the {n} found?",)),
    _textual("manual", "address", ("Manual",), ("{s} has a manual at {v}.", "the manual of {s} is kept at {v}."), ("Where is the manual of the {n}?",)),
)

# Attributes that come with a trait of the kind.
BY_TRAIT = {
    "electric": (
        _numeric("power", "W", 5, 9500, 1, ("Power", "Rated power"), ("{s} draws {v}.", "{s} has a rated power of {v}."), ("How much power does the {n} draw?",), ("kW",)),
        _numeric("voltage", "V", 3, 980, 1, ("Voltage", "Supply voltage"), ("{s} runs on {v}.", "{s} needs a supply voltage of {v}."), ("On what voltage does the {n} run?",)),
        _numeric("noise level", "dB", 10, 140, 1, ("Noise level", "Noise"), ("{s} is rated at a noise level of {v}.", "at full load {s} makes a noise of {v}."), ("How loud is the {n}?",)),
        _numeric("cable length", "cm", 10, 990, 1, ("Cable length", "Cable"), ("{s} has a cable of {v}.", "the cable of {s} is {v} long."), ("How long is the cable of the {n}?",), ("m", "ft")),
        _numeric("energy use", "kWh", 10, 4200, 1, ("Energy use", "Energy per year"), ("in a year {s} uses {v}.", "{s} has an energy use of {v}."), ("How much energy does the {n} use?",)),
    ),
    "battery": (
        _numeric("battery life", "hours", 3, 900, 1, ("Battery life", "Runtime"), ("on one charge {s} lasts {v}.", "{s} has a battery life of {v}."), ("How long does the battery of the {n} last?",), ("h", "days")),
        _numeric("charging time", "minutes", 10, 990, 0, ("Charging time", "Charge time"), ("{s} charges in {v}.", "{s} has a charging time of {v}."), ("How long does the {n} take to charge?",), ("min",)),
        _textual("battery type", "code", ("Battery type", "Battery"), ("{s} takes batteries of type {v}.", "the battery of {s} is a {v}."), ("Which battery does the {n} take?",)),
    ),
    "vessel": (
        _numeric("capacity", "ml", 10, 9500, 2, ("Capacity", "Volume"), ("{s} holds {v}.", "{s} has a capacity of {v}."), ("How much does the {n} hold?",), ("l", "litres", "gallons")),
        _numeric("flow rate", "l/min", 3, 700, 1, ("Flow rate", "Flow"), ("{s} delivers a flow of {v}.", "{s} has a flow rate of {v}."), ("What flow does the {n} deliver?",), ("l/h",)),
        _numeric("pressure", "bar", 2, 400, 1, ("Pressure", "Working pressure"), ("{s} works at a pressure of {v}.", "{s} is built for a pressure of {v}."), ("At what pressure does the {n} work?",), ("kPa", "psi")),
    ),
    "furniture": (
        _numeric("maximum load", "kg", 5, 950, 0, ("Maximum load", "Max. load"), ("{s} carries up to {v}.", "{s} bears a maximum load of {v}."), ("How much can the {n} carry?",), ("lb",)),
        _textual("cover", "material", ("Cover", "Upholstery"), ("{s} has a cover of {v}.", "the cover of {s} is {v}."), ("What is the cover of the {n}?",)),
        _textual("legs", "material", ("Legs", "Base"), ("{s} stands on legs of {v}.", "the legs of {s} are {v}."), ("What are the legs of the {n} made of?",)),
    ),
    "screen": (
        Attribute("resolution", ("Resolution", "Pixels"), ("{s} shows {v} pixels.", "{s} has a resolution of {v}."), ("How many pixels does the {n} show?",), _pixels),
        _numeric("screen size", "in", 3, 120, 1, ("Screen size", "Display"), ("{s} has a screen of {v}.", "the display of {s} measures {v}."), ("How large is the screen of the {n}?",), ("cm",)),
        _numeric("memory", "MB", 10, 9900, 0, ("Memory", "RAM"), ("{s} has a memory of {v}.", "the memory of {s} is {v}."), ("How much memory does the {n} have?",), ("GB",)),
        _numeric("storage", "GB", 10, 9900, 0, ("Storage", "Disk"), ("{s} stores {v}.", "{s} has a storage of {v}."), ("How much can the {n} store?",), ("TB",)),
    ),
    "light": (
        _numeric("brightness", "lm", 10, 9900, 0, ("Brightness", "Luminous flux"), ("{s} gives {v}.", "{s} has a brightness of {v}."), ("How bright is the {n}?",)),
        _numeric("colour temperature", "K", 1000, 9000, 0, ("Colour temperature", "Light colour"), ("{s} shines at {v}.", "{s} has a colour temperature of {v}."), ("What is the light colour of the {n}?",)),
        _textual("bulb", "code", ("Bulb", "Socket"), ("{s} takes a bulb of type {v}.", "the bulb of {s} is a {v}."), ("Which bulb does the {n} take?",)),
    ),
    "moving": (
        _numeric("top speed", "km/h", 3, 320, 1, ("Top speed", "Max. speed"), ("{s} reaches {v}.", "{s} has a top speed of {v}."), ("How fast is the {n}?",), ("mph",)),
        _numeric("range", "km", 3, 990, 1, ("Range", "Reach"), ("{s} travels as far as {v}.", "{s} has a range of {v}."), ("How far does the {n} travel?",), ("miles",)),
        _numeric("wheel size", "mm", 20, 990, 0, ("Wheel size", "Wheels"), ("{s} rolls on wheels of {v}.", "{s} has a wheel size of {v}."), ("How large are the wheels of the {n}?",), ("in",)),
    ),
    "tool": (
        _numeric("rotation speed", "rpm", 20, 9900, 0, ("Rotation speed", "Speed"), ("{s} turns at {v}.", "{s} has a rotation speed of {v}."), ("How fast does the {n} turn?",)),
        _numeric("torque", "Nm", 3, 990, 1, ("Torque",), ("{s} develops {v}.", "{s} has a torque of {v}."), ("How much torque does the {n} develop?",)),
        Attribute("working temperature", ("Working temperature", "Temperature range"), ("{s} may be used at {v}.", "{s} has a working temperature of {v}."), ("At what temperatures may the {n} be used?",), _span),
        _textual("spare part", "code", ("Spare part", "Replacement"), ("{s} takes spare part {v}.", "the spare part of {s} is {v}."), ("Which spare part does the {n} take?",)),
    ),
    "textile": (
        _numeric("thread count", "threads", 10, 990, 0, ("Thread count", "Threads"), ("{s} is woven from {v}.", "{s} has a thread count of {v}."), ("How many threads does the {n} have?",)),
        _textual("pattern", "trade_name", ("Pattern",), ("{s} shows the pattern {v}.", "the pattern of {s} is {v}."), ("Which pattern does the {n} show?",)),
        _textual("lining", "material", ("Lining",), ("{s} is lined with {v}.", "the lining of {s} is {v}."), ("What is the lining of the {n}?",)),
    ),
}

KINDS = {
    "electric kettle": "electric vessel", "coffee machine": "electric vessel", "washing machine": "electric vessel", "dishwasher": "electric vessel",
    "water pump": "electric vessel tool", "pressure cooker": "vessel", "thermos flask": "vessel", "garden sprayer": "vessel tool",
    "watering can": "vessel", "fuel canister": "vessel", "aquarium": "vessel light electric", "rain barrel": "vessel",
    "armchair": "furniture textile", "office chair": "furniture textile moving", "dining table": "furniture", "bookcase": "furniture",
    "bed frame": "furniture", "wardrobe": "furniture", "workbench": "furniture tool", "bar stool": "furniture", "sofa": "furniture textile",
    "laptop": "screen battery", "tablet": "screen battery", "television": "screen electric", "monitor": "screen electric",
    "digital camera": "screen battery", "smart watch": "screen battery", "projector": "screen light electric", "e-book reader": "screen battery",
    "floor lamp": "light electric", "desk lamp": "light electric", "torch": "light battery", "headlamp": "light battery", "ceiling light": "light electric",
    "electric bicycle": "moving battery", "scooter": "moving battery", "wheelbarrow": "moving furniture", "pram": "moving textile",
    "toy train": "moving battery", "drone": "moving battery screen", "lawn mower": "moving electric tool", "hand cart": "moving furniture",
    "cordless drill": "tool battery", "angle grinder": "tool electric", "circular saw": "tool electric", "sander": "tool electric",
    "torque wrench": "tool", "chain saw": "tool battery", "table fan": "electric tool",
    "winter jacket": "textile", "rucksack": "textile", "sleeping bag": "textile", "tent": "textile", "curtain": "textile", "carpet": "textile", "blanket": "textile",
}


def attributes_of(kind):
    found = list(COMMON)
    for trait in KINDS[kind].split():
        found.extend(BY_TRAIT[trait])
    return found
