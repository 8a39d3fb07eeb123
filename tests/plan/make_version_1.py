#!/usr/bin/env python3
"""Writes tests/plan/version-1.plan, version-1-tokens.plan and version-1-salts.plan.

A second implementation of docs/plan-file.md, independent of the library's, so that the two check each other. Needs the
packages xxhash and zstandard. Run it in this folder; the files are committed and must never change, as plans of format
version 1 stay readable.
"""
import struct

import xxhash
import zstandard

# Rows 0, 2 and 4 share 20 tokens, rows 1 and 5 share 24, and the first 16 of both are a common head; row 3 is alone.
# test_plan_file.cc has the same rows.
HEAD = list(range(100, 116))
A = HEAD + [1, 2, 3, 4]
B = HEAD + [-1, 2**31 - 1, -(2**31), 0, 5, 5, 5, 5]
ROWS = [A + [10], B + [11, 12], A + [13, 14, 15], [7], A + [16], B + [17]]
PREFIXES = [(1, 16, None), (1, 24, 0), (0, 20, 0)]  # row, tokens, parent
GROUPS = [(1, [5, 1]), (2, [0, 2, 4]), (None, [3])]  # prefix, rows


def varint(x):
    out = b""
    while x >= 0x80:
        out += bytes([x & 0x7F | 0x80])
        x >>= 7
    return out + bytes([x])


def zigzag(x):
    return varint(2 * x if x >= 0 else -2 * x - 1)


def section(number, body):
    return struct.pack("<IQ", number, len(body)) + body


def run(tokens):
    out, previous = b"", 0
    for token in tokens:
        out += zigzag(token - previous)
        previous = token
    return out


def fingerprint(row, salt):
    return xxhash.xxh3_64_intdigest(struct.pack("<%di" % len(row), *row), seed=salt) or 1


def sections(with_tokens, salts, prefixes):
    options = varint(1) + varint(2) + varint(0) + varint(16) + struct.pack("<Q", 0x1122334455667788)
    options += varint(len(ROWS)) + varint(len(prefixes)) + varint(len(GROUPS))
    out = section(1, options)
    out += section(2, b"".join(struct.pack("<Q", fingerprint(*pair)) for pair in zip(ROWS, salts)))
    out += section(3, b"".join(varint(len(row)) for row in ROWS))
    body, previous = b"", 0
    for i, (row, length, parent) in enumerate(prefixes):
        body += zigzag(row - previous) + varint(length) + varint(0 if parent is None else i - parent)
        previous = row
    out += section(4, body)
    body, previous = b"", -1
    for prefix, rows in GROUPS:
        if prefix is None:
            body += varint(0)
        else:
            step = prefix - previous
            body += varint((2 * step if step >= 0 else -2 * step - 1) + 1) + varint(len(rows))
            previous = prefix
    out += section(5, body)
    body, previous = b"", -1
    for _, rows in GROUPS:
        for row in rows:
            body += zigzag(row - previous)
            previous = row
    out += section(6, body)
    if with_tokens:
        body = b""
        for row, length, parent in prefixes:
            body += run(ROWS[row][0 if parent is None else prefixes[parent][1]:length])
        for prefix, rows in GROUPS:
            for row in rows:
                body += run(ROWS[row][0 if prefix is None else prefixes[prefix][1]:])
        out += section(7, body)
    if any(salts):
        out += section(9, struct.pack("<%dQ" % len(salts), *salts))
    return out


NO_SALTS = [0] * len(ROWS)
SALTS = [0, 0xFEDCBA9876543210, 0, 0, 0, 0xFEDCBA9876543210]
APART = [(1, 16, None), (1, 24, 0), (0, 20, None)]  # rows of different salts have no common head
for name, flags, salts, prefixes in (
    ("version-1.plan", 0, NO_SALTS, PREFIXES),
    ("version-1-tokens.plan", 1, NO_SALTS, PREFIXES),
    ("version-1-salts.plan", 3, SALTS, APART),
):
    compressor = zstandard.ZstdCompressor(write_checksum=True, write_content_size=True)
    with open(name, "wb") as file:
        file.write(b"BLLMPLAN" + struct.pack("<II", 1, flags))
        file.write(compressor.compress(sections(flags & 1, salts, prefixes)))
