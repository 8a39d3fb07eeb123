#!/usr/bin/env python3
"""Makes tests/image: pictures of all kinds, processors' settings, and what transformers makes of them.

    scripts/make_pictures.py                     with torch, torchvision, Pillow, transformers and numpy
    scripts/make_pictures.py --compare build/bench/pictures
        compares every value instead, and prints the table of docs/lab/pictures.md

The reference is the processor of each model in its torchvision form, which is given the picture as Pillow decodes it,
turned upright (ImageOps.exif_transpose). Of a grey picture with 16 bits it is given the upper 8, see docs/pictures.md.
"""

import argparse
import functools
import io
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import types
import warnings
import zlib

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers import AutoImageProcessor, PreTrainedTokenizerFast
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
from transformers.models.pixtral.processing_pixtral import PixtralProcessor
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/image"
SAMPLES = 24  # values kept of each prepared picture
CLIP = dict(image_mean=[0.48145466, 0.4578275, 0.40821073], image_std=[0.26862954, 0.26130258, 0.27577711])
HALF = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3)

# ---------------------------------------------------------------------------------------------------------- the pictures


def scene(width, height, channels=3, seed=0):
    """Slopes, edges and a little noise: uint8 [height, width, channels]."""
    random = np.random.default_rng(seed + width * 7 + height)
    y, x = np.mgrid[0:height, 0:width]
    planes = []
    for c in range(channels):
        plane = 127 + 90 * np.sin(x / (5 + 9 * c) + c) * np.cos(y / (7 + 4 * c)) + 40 * ((x // 11 + y // 13) % 2)
        planes.append(plane + random.normal(0, 6, plane.shape))
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def saved(image, format, **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def rgb(width, height, seed=0):
    return Image.fromarray(scene(width, height, 3, seed))


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(rows, bits, kind, channels, extra=b"", interlaced=False):
    """A PNG of values [height, width, channels], which Pillow cannot write."""
    height, width = rows.shape[:2]
    values = rows.reshape(height, width, channels).astype(np.uint32)

    def pack(part):
        data = b""
        for row in part:
            flat = row.reshape(-1)
            if bits == 16:
                packed = flat.astype(">u2").tobytes()
            elif bits == 8:
                packed = flat.astype(np.uint8).tobytes()
            else:
                digits = "".join(format(v, f"0{bits}b") for v in flat)
                digits += "0" * (-len(digits) % 8)
                packed = bytes(int(digits[i:i + 8], 2) for i in range(0, len(digits), 8))
            data += b"\0" + packed
        return data

    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
        parts = [values[y::down, x::right] for x, y, right, down in passes]
        data = b"".join(pack(part) for part in parts if part.size)
    else:
        data = pack(values)
    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, int(interlaced))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(data, 9)) +
            chunk(b"IEND", b""))


def exif(orientation, order="<"):
    head = b"II*\0" if order == "<" else b"MM\0*"
    return head + struct.pack(order + "IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def with_xmp(jpeg, orientation):
    packet = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="%d"/>' % orientation
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(packet) + 2) + packet + jpeg[2:]


def pictures():
    """(file name, bytes)"""
    for name, options in {
        "jpeg_420": dict(quality=85), "jpeg_422": dict(quality=85, subsampling=1), "jpeg_444": dict(quality=92, subsampling=0),
        "jpeg_progressive": dict(quality=80, progressive=True), "jpeg_coarse": dict(quality=5),
        "jpeg_restarts": dict(quality=85, restart_marker_blocks=2),
    }.items():
        yield name + ".jpg", saved(rgb(101, 67), "JPEG", **options)
    yield "jpeg_rgb.jpg", saved(rgb(50, 41), "JPEG", quality=90, keep_rgb=True)
    yield "jpeg_large.jpg", saved(rgb(900, 613), "JPEG", quality=60)
    yield "jpeg_large_progressive.jpg", saved(rgb(517, 700), "JPEG", quality=60, progressive=True)
    yield "jpeg_grey.jpg", saved(rgb(64, 64).convert("L"), "JPEG", quality=85)
    cmyk = saved(Image.fromarray(scene(70, 45, 4), "CMYK"), "JPEG", quality=90)
    yield "jpeg_cmyk.jpg", cmyk
    adobe = cmyk.index(b"Adobe")
    yield "jpeg_ycck.jpg", cmyk[:adobe + 11] + b"\2" + cmyk[adobe + 12:]
    for orientation in range(1, 9):
        yield f"jpeg_exif_{orientation}.jpg", saved(rgb(48, 29), "JPEG", quality=90, exif=b"Exif\0\0" + exif(orientation))
    yield "jpeg_exif_big_endian.jpg", saved(rgb(48, 29), "JPEG", quality=90, exif=b"Exif\0\0" + exif(6, ">"))
    yield "jpeg_exif_broken.jpg", saved(rgb(48, 29), "JPEG", quality=90, exif=b"Exif\0\0II*\0\xff\xff\0\0")
    yield "jpeg_xmp.jpg", with_xmp(saved(rgb(48, 29), "JPEG", quality=90), 8)
    yield "jpeg_1x1.jpg", saved(rgb(1, 1), "JPEG")
    yield "jpeg_1x5000.jpg", saved(rgb(1, 5000), "JPEG", quality=50)
    yield "jpeg_5000x1.jpg", saved(rgb(5000, 1), "JPEG", quality=50)

    yield "png_rgb.png", saved(rgb(77, 50), "PNG")
    yield "png_rgba.png", saved(Image.fromarray(scene(60, 44, 4)), "PNG")
    yield "png_grey.png", saved(rgb(55, 66).convert("L"), "PNG")
    yield "png_grey_alpha.png", saved(Image.fromarray(scene(44, 33, 2), "LA"), "PNG")
    yield "png_1x1.png", saved(rgb(1, 1), "PNG")
    yield "png_1x5000.png", saved(rgb(1, 5000), "PNG")
    yield "png_3x600.png", saved(rgb(3, 600), "PNG")
    yield "png_5000x26.png", saved(rgb(5000, 26).quantize(8), "PNG")
    yield "png_exif.png", saved(rgb(40, 31), "PNG", exif=exif(5))
    for bits in (1, 2, 4):
        values = scene(61, 29, 1) >> (8 - bits)
        yield f"png_grey_{bits}.png", png(values, bits, 0, 1)
        yield f"png_grey_{bits}_hidden.png", png(values, bits, 0, 1, chunk(b"tRNS", struct.pack(">H", {1: 0, 2: 85, 4: 51}[bits])))
    palette = scene(256, 1, 3, seed=5).reshape(-1).tobytes()
    for bits in (1, 2, 4, 8):
        values, colours = scene(63, 30, 1) >> (8 - bits), chunk(b"PLTE", palette[:3 << bits])
        yield f"png_palette_{bits}.png", png(values, bits, 3, 1, colours)
        hidden = chunk(b"tRNS", bytes(range(0, 1 << bits)) if bits == 8 else b"\x40\xff")
        yield f"png_palette_{bits}_alpha.png", png(values, bits, 3, 1, colours + hidden)
    yield "png_palette_short.png", png(scene(30, 30, 1) >> 4, 4, 3, 1, chunk(b"PLTE", palette[:12]))
    grey = scene(50, 40, 1).astype(np.uint32)
    wide = {channels: scene(37, 28, channels).astype(np.uint32) * 256 + scene(37, 28, channels, 9) for channels in (1, 2, 3, 4)}
    yield "png_grey_hidden.png", png(grey, 8, 0, 1, chunk(b"tRNS", struct.pack(">H", int(grey[0, 0, 0]))))
    colour = scene(40, 40) // 64
    yield "png_rgb_hidden.png", png(colour, 8, 2, 3, chunk(b"tRNS", struct.pack(">HHH", *(int(v) for v in colour[3, 3]))))
    yield "png_grey_16.png", png(wide[1], 16, 0, 1)
    yield "png_grey_alpha_16.png", png(wide[2], 16, 4, 2)
    yield "png_rgb_16.png", png(wide[3], 16, 2, 3)
    yield "png_rgba_16.png", png(wide[4], 16, 6, 4)
    yield "png_interlaced_rgb.png", png(scene(43, 38), 8, 2, 3, interlaced=True)
    yield "png_interlaced_palette.png", png(scene(43, 38, 1) >> 4, 4, 3, 1, chunk(b"PLTE", palette[:48]), interlaced=True)
    yield "png_interlaced_rgba_16.png", png(wide[4], 16, 6, 4, interlaced=True)
    yield "png_interlaced_1x1.png", png(scene(1, 1), 8, 2, 3, interlaced=True)

    yield "webp_lossy.webp", saved(rgb(83, 59), "WEBP", quality=70)
    yield "webp_lossless.webp", saved(rgb(83, 59), "WEBP", lossless=True)
    yield "webp_lossy_alpha.webp", saved(Image.fromarray(scene(60, 44, 4)), "WEBP", quality=70)
    yield "webp_lossless_alpha.webp", saved(Image.fromarray(scene(60, 44, 4)), "WEBP", lossless=True, exact=True)
    yield "webp_exif.webp", saved(rgb(40, 31), "WEBP", quality=80, exif=exif(6))
    yield "webp_1x1.webp", saved(rgb(1, 1), "WEBP", lossless=True)
    frames = [Image.fromarray(scene(40, 30, 4, seed)) for seed in range(3)]
    yield "webp_animated.webp", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)


# -------------------------------------------------------------------------------------------------------- the processors

WORDS = ["a", "b", "c", "\n", " ", "\n\n"]
SPECIAL = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<start_of_image>", "<image_soft_token>", "<end_of_image>",
           "[IMG]", "[IMG_BREAK]", "[IMG_END]", "<|image|>", "<|boi|>", "<|eoi|>", "<|video_pad|>", "<|video|>"]
ID = {text: len(WORDS) + i for i, text in enumerate(SPECIAL)}

PROCESSORS = {
    # Small limits, so that the pictures are made smaller and larger; otherwise as published.
    "qwen2_vl": (dict(model_type="qwen2_vl", image_token_id=ID["<|image_pad|>"]),
                 dict(image_processor_type="Qwen2VLImageProcessor", patch_size=14, merge_size=2, temporal_patch_size=2,
                      min_pixels=3136, max_pixels=100352, **CLIP), None),
    "qwen2_5_vl": (dict(model_type="qwen2_5_vl", image_token_id=ID["<|image_pad|>"]),
                   dict(image_processor_type="Qwen2VLImageProcessorFast", patch_size=14, merge_size=2, temporal_patch_size=2,
                        size=dict(shortest_edge=20000, longest_edge=1003520), do_convert_rgb=True, resample=3, **CLIP), None),
    "qwen3_vl": (dict(model_type="qwen3_vl", image_token_id=ID["<|image_pad|>"]),
                 dict(image_processor_type="Qwen2VLImageProcessorFast", patch_size=16, merge_size=2, temporal_patch_size=2,
                      size=dict(shortest_edge=65536, longest_edge=16777216), **HALF), None),
    "gemma3": (dict(model_type="gemma3", mm_tokens_per_image=16, vision_config=dict(patch_size=14),
                    boi_token_index=ID["<start_of_image>"], image_token_index=ID["<image_soft_token>"],
                    eoi_token_index=ID["<end_of_image>"]),
               dict(image_processor_type="Gemma3ImageProcessor", do_convert_rgb=None, do_pan_and_scan=None, resample=2,
                    rescale_factor=0.00392156862745098, size=dict(height=224, width=224), **HALF), None),
    "mistral3": (dict(model_type="mistral3", image_token_index=ID["[IMG]"]),
                 dict(image_processor_type="PixtralImageProcessor", patch_size=dict(height=14, width=14), resample=3,
                      rescale_factor=0.00392156862745098, size=dict(longest_edge=400), **CLIP),
                 dict(patch_size=14, spatial_merge_size=2, image_token="[IMG]", image_break_token="[IMG_BREAK]",
                      image_end_token="[IMG_END]")),
    "gemma4": (dict(model_type="gemma4", image_token_id=ID["<|image|>"], boi_token_id=ID["<|boi|>"], eoi_token_id=ID["<|eoi|>"]),
               None,
               dict(image_processor=dict(image_processor_type="Gemma4ImageProcessor", do_normalize=False, image_mean=[0.0] * 3,
                                         image_std=[1.0] * 3, image_seq_length=70, max_soft_tokens=70, patch_size=16,
                                         pooling_kernel_size=3, resample=3, rescale_factor=0.00392156862745098))),
}


def write_processors():
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": ID[text], "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for text in SPECIAL],
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {word: i for i, word in enumerate(WORDS)},
                  "merges": [["\n", "\n"]]}}
    for name, (config, picture, processor) in PROCESSORS.items():
        folder = ROOT / "processors" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, value in {"config.json": {"vision_config": {}, **config}, "preprocessor_config.json": picture,
                            "processor_config.json": processor, "tokenizer.json": tokenizer}.items():
            if value is not None:
                (folder / file).write_text(json.dumps(value) + "\n")


def load_processors():
    """name -> (image processor, what makes the text that stands for a picture)"""
    result = {}
    for name, (config, _, settings) in PROCESSORS.items():
        folder = str(ROOT / "processors" / name)
        images = AutoImageProcessor.from_pretrained(folder, backend="torchvision")
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer.json")
        for attribute, text in {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>",
                                "eoi_token": "<end_of_image>"}.items() if name == "gemma3" else {
                "boi_token": "<|boi|>", "image_token": "<|image|>", "eoi_token": "<|eoi|>"}.items() if name == "gemma4" else ():
            setattr(tokenizer, attribute, text)
            setattr(tokenizer, attribute + "_id", ID[text])
        text = types.SimpleNamespace(image_processor=images, image_token="<|image_pad|>")
        if name == "gemma3":
            whole = "<start_of_image>" + "<image_soft_token>" * 16 + "<end_of_image>"
            text = types.SimpleNamespace(full_image_sequence=f"\n\n{whole}\n\n")
            replace = Gemma3Processor.replace_image_token
        elif name == "gemma4":
            text = types.SimpleNamespace(boi_token="<|boi|>", image_token="<|image|>", eoi_token="<|eoi|>")
            replace = Gemma4Processor.replace_image_token
        elif name == "mistral3":
            text = types.SimpleNamespace(**{k: v for k, v in settings.items()})
            replace = PixtralProcessor.replace_image_token
        else:
            replace = Qwen3VLProcessor.replace_image_token if name == "qwen3_vl" else Qwen2VLProcessor.replace_image_token
        result[name] = images, tokenizer, functools.partial(replace, text)
    return result


def reference(data):
    """The picture that the processors are given, and its RGB."""
    image = Image.open(io.BytesIO(data))
    if image.mode == "I;16":
        image = Image.fromarray((np.array(image) >> 8).astype(np.uint8))
    try:
        return ImageOps.exif_transpose(image)
    except SyntaxError:  # of broken EXIF
        return image


def in_rgb(image):
    from transformers.image_transforms import convert_to_rgb
    return convert_to_rgb(image, return_numpy=True)


def prepare(name, images, image):
    """([rows, columns, merge, tokens], patches as this project has them)"""
    more = dict(patch_size=28) if name == "mistral3" else dict(do_convert_rgb=True)
    out = images(image, return_tensors="pt", **more)
    values = out["pixel_values"]
    if name.startswith("qwen"):
        _, rows, columns = out["image_grid_thw"][0].tolist()
        merge, tokens = 2, rows * columns // 4
        side = images.patch_size
        values = values.reshape(rows * columns, 3, 2, side, side)
        assert torch.equal(values[:, :, 0], values[:, :, 1])
        values = values[:, :, 0]
    elif name == "gemma4":
        tokens, merge = int(out["num_soft_tokens_per_image"][0]), 3
        positions = out["image_position_ids"][0]
        real = positions[:, 0] >= 0
        columns, rows = (positions[real].max(0).values + 1).tolist()
        values = values[0][real]
        out["image_sizes"] = None
    else:
        side = 14
        _, _, height, width = values.shape
        rows, columns = height // side, width // side
        merge = 4 if name == "gemma3" else 2
        tokens = rows * columns // merge**2
        values = values[0].reshape(3, rows, side, columns, side).permute(1, 3, 0, 2, 4)
    return [rows, columns, merge, tokens], values.reshape(-1).numpy(), out


def sample(values):
    return np.linspace(0, len(values) - 1, SAMPLES).astype(np.int64)


def golden():
    (ROOT / "pictures").mkdir(parents=True, exist_ok=True)
    write_processors()
    processors = load_processors()
    result = {"pictures": [], "rope": rope()}
    for file, data in pictures():
        (ROOT / "pictures" / file).write_bytes(data)
        image = reference(data)
        pixels = in_rgb(image)
        flat = pixels.reshape(-1)
        entry = {"file": file, "width": image.width, "height": image.height,
                 "pixels": flat[sample(flat)].tolist(), "sum": int(flat.astype(np.int64).sum()), "prepared": {}}
        for name, (images, tokenizer, replace) in processors.items():
            try:
                grid, values, out = prepare(name, images, image)
            except (ValueError, RuntimeError) as error:
                entry["prepared"][name] = {"error": str(error)}
                continue
            kept = {"grid": grid, "values": [round(float(v), 6) for v in values[sample(values)]],
                    "mean": float(values.astype(np.float64).mean())}
            if len(result["pictures"]) % 8 == 0 and grid[3] <= 100:
                if name == "gemma3":
                    out["num_crops"] = [0]
                text = "a" + replace(out, 0) + " b"
                kept["ids"] = tokenizer(text)["input_ids"]
            entry["prepared"][name] = kept
        result["pictures"].append(entry)
    (ROOT / "pictures.json").write_text(
        "{\"rope\": [\n" + ",\n".join(json.dumps(case) for case in result["rope"]) + "],\n\"pictures\": [\n" +
        ",\n".join(json.dumps(entry) for entry in result["pictures"]) + "]}\n")
    print(len(result["pictures"]), "pictures")


def rope():
    """Positions by get_rope_index of Qwen2.5-VL and Qwen3-VL, which agree on pictures."""
    random, cases = np.random.default_rng(1), []
    for case in range(12):
        kinds, grids = [], []
        kinds += [0] * int(random.integers(0, 5))
        places = []
        for _ in range(int(random.integers(0, 4))):
            rows, columns = (2 * int(v) for v in random.integers(1, 7, 2))
            places.append([len(kinds), rows, columns, 2])
            grids.append([1, rows, columns])
            kinds += [1] * (rows * columns // 4) + [0] * int(random.integers(1, 6))
        kinds += [0] * int(random.integers(0 if kinds else 1, 9))
        vision = types.SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
        both = []
        for model in (Qwen2_5_VLModel, Qwen3VLModel):
            self = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
            self.get_vision_position_ids = functools.partial(model.get_vision_position_ids, self)
            positions, _ = model.get_rope_index(self, torch.zeros(1, len(kinds), dtype=torch.long),
                                                mm_token_type_ids=torch.tensor([kinds]),
                                                image_grid_thw=torch.tensor(grids) if grids else None)
            both.append(positions[:, 0].tolist())
        assert both[0] == both[1]
        cases.append({"pictures": places, "positions": both[0]})
    return cases


def compare(program, only):
    """Every value of every picture, instead of samples."""
    processors = load_processors()
    files = sorted((ROOT / "pictures").iterdir())
    print("| processor | pictures | other grid | refused by both | by one alone | largest difference of a value | in levels of 255 | values that differ |")
    print("|---|---|---|---|---|---|---|---|")
    for name, (images, _, _) in processors.items():
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([program, str(ROOT / "processors" / name), *map(str, files), "--write", folder],
                                  capture_output=True, text=True, check=True)
            lines = done.stdout.splitlines()
            other, both, one, largest, levels, differing, total, worst = 0, 0, 0, 0.0, 0.0, 0, 0, []
            for number, (file, line) in enumerate(zip(files, lines, strict=True)):
                try:
                    grid, values, _ = prepare(name, images, reference(file.read_bytes()))
                except (ValueError, RuntimeError) as error:
                    grid, problem = None, error
                if grid is None or line.startswith("error"):
                    both += grid is None and line.startswith("error")
                    if (grid is None) != line.startswith("error"):
                        one += 1
                        print("   ", file.name, line, "reference:", grid or problem)
                    continue
                if line != " ".join(map(str, grid)):
                    other += 1
                    print("   ", file.name, line, "reference:", grid)
                    continue
                mine = np.fromfile(f"{folder}/{number}.f32", np.float32)
                differences = np.abs(mine - values)
                scale = 255 * (np.array(images.image_std).min() if images.do_normalize else 1)
                largest = max(largest, float(differences.max()))
                levels = max(levels, float(differences.max() * scale))
                differing += int((differences > 1e-6).sum())
                total += len(values)
                if differences.max() > 1e-6:
                    worst.append(f"{file.name} {differences.max() * scale:.2f}")
            print(f"| {name} | {len(files)} | {other} | {both} | {one} | {largest:.2g} | {levels:.2g} | {differing} of {total} |")
            if worst:
                print("   ", "; ".join(worst))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", metavar="PROGRAM")
    parser.add_argument("--only", nargs="*", help="processors to compare")
    arguments = parser.parse_args()
    compare(arguments.compare, arguments.only) if arguments.compare else golden()
