#!/usr/bin/env python3
"""Pictures a second on one core, beside Pillow with transformers' processor on torchvision. Needs what scripts/make_pictures.py needs.

    taskset -c 0 bench/pictures.py build/bench/pictures

A photograph-like picture of 720p and of 1080p (JPEG, quality 85) and a page of A4 at 150 dpi (PNG, RGB), for Qwen3-VL's settings. The two take turns,
and the fewest milliseconds of processor time of each count, so that other work on the machine disturbs little.
"""

import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path = [path for path in sys.path if path != str(pathlib.Path(__file__).resolve().parent)]  # tokenize.py is Python's own here
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
from PIL import Image, ImageDraw
from transformers import AutoImageProcessor

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "tests/image/processors/qwen3_vl"
ROUNDS, SECONDS = 4, 1.0


def photograph(width, height):
    """Smooth shapes with noise at three scales: as many coefficients as a photograph has."""
    random = np.random.default_rng(1)
    picture = np.zeros((height, width, 3))
    for scale, strength in ((160, 60), (24, 30), (4, 8)):
        small = random.normal(0, strength, (height // scale + 2, width // scale + 2, 3))
        for c in range(3):
            layer = Image.fromarray(small[..., c].astype(np.float32)).resize((width, height), Image.BICUBIC)
            picture[..., c] += np.array(layer)
    return Image.fromarray(np.clip(picture + 127, 0, 255).astype(np.uint8))


def page():
    image = Image.new("RGB", (1240, 1754), "white")
    draw = ImageDraw.Draw(image)
    random = np.random.default_rng(2)
    for line in range(60):
        words = " ".join("".join(chr(97 + int(v)) for v in random.integers(0, 26, int(n))) for n in random.integers(2, 10, 14))
        draw.text((90, 80 + 27 * line), words, fill="black", font_size=18)
    return image


def milliseconds(call, seconds):
    best, end = 1e9, time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.process_time()
        call()
        best = min(best, 1000 * (time.process_time() - start))
    return best


def main():
    torch.set_num_threads(1)
    processor = AutoImageProcessor.from_pretrained(MODEL, backend="torchvision")
    with tempfile.TemporaryDirectory() as folder:
        files = {"720p JPEG": pathlib.Path(folder, "720.jpg"), "1080p JPEG": pathlib.Path(folder, "1080.jpg"), "A4 page, PNG": pathlib.Path(folder, "a4.png")}
        photograph(1280, 720).save(files["720p JPEG"], quality=85)
        photograph(1920, 1080).save(files["1080p JPEG"], quality=85)
        page().save(files["A4 page, PNG"])
        print("| picture | KB | decoding, ms | Pillow's | all, ms | with Pillow and torchvision | a second | times |")
        print("|---|---|---|---|---|---|---|---|")
        for name, file in files.items():
            data, ours, decode = file.read_bytes(), 1e9, 1e9
            theirs = their_decode = 1e9
            for _ in range(ROUNDS):
                out = subprocess.run([sys.argv[1], MODEL, file, "--seconds", str(SECONDS)], capture_output=True, text=True, check=True).stdout
                one, all_of_it = map(float, re.search(r"decode ([\d.]+) ms, all ([\d.]+) ms", out).groups())
                decode, ours = min(decode, one), min(ours, all_of_it)
                their_decode = min(their_decode, milliseconds(lambda: Image.open(io.BytesIO(data)).convert("RGB"), SECONDS))
                theirs = min(theirs, milliseconds(lambda: processor(Image.open(io.BytesIO(data)), return_tensors="pt"), SECONDS))
            print(f"| {name} | {len(data) // 1024} | {decode:.1f} | {their_decode:.1f} | {ours:.1f} | {theirs:.1f} | {1000 / ours:.0f} | {theirs / ours:.1f} |")


main()
