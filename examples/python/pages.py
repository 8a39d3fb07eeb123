"""A folder of pages to a table: each picture becomes a row with the fields of a schema, and a page that cannot be read has an
error. Prints CSV. Usage: pages.py MODEL_DIRECTORY FOLDER, such as pages.py examples/pages/model PAGES with the pages that
examples/pages/draw.py --output PAGES draws. For another model, change FIELDS and ASK."""

import csv
import pathlib
import sys

import batchllm

FIELDS = {
    "number": {"type": "string", "pattern": "^[0-9]{3,5}$"},
    "shape": {"enum": ["circle", "square", "triangle", "cross"]},
    "colour": {"enum": ["red", "green", "blue", "yellow"]},
    "paid": {"type": "boolean"},
}
SCHEMA = {"type": "object", "properties": FIELDS, "required": list(FIELDS), "additionalProperties": False}
ASK = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "The page's fields as JSON:"}]}]

folder = pathlib.Path(sys.argv[2])
pages = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp"))
with batchllm.Engine(sys.argv[1], image_folders=[folder]) as engine:
    results = engine.chat([ASK] * len(pages), batchllm.SamplingParams(json_schema=SCHEMA, max_tokens=200), images=pages)
table = csv.DictWriter(sys.stdout, ["page", *FIELDS, "error"])
table.writeheader()
for page, result, value in zip(pages, results, results.parsed):
    table.writerow({"page": page, **(value or {}), "error": result.error or ("" if value else "cut off")})
