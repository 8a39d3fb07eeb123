"""Damaged and lying files beside a job: descriptions of devices, plans, states, templates, weights in four bits. Whatever
they hold, the program ends soon and says what is wrong, or has a result for every row.

BATCHLLM_TEST_SEED=N repeats a run; BATCHLLM_SIDE_FILES=N tries N files of each kind (30).
"""

import json
import os
import pathlib
import random
import shutil
import struct
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import program  # noqa: E402
from program import SIM, TESTS, ProgramTest, lines, token_rows  # noqa: E402

program.PROGRAM = os.environ["BATCHLLM_FAULTY_PROGRAM"]
SEED = int(os.environ.get("BATCHLLM_TEST_SEED", random.randrange(1 << 30)))
FILES = int(os.environ.get("BATCHLLM_SIDE_FILES", "30"))
NUMBERS = [0, -1, 1, 2, 1e308, -1e308, 1e-320, 2**31, 2**63, 2**64, -2**63, 0.5, None, True, "x", [], {}, [[0, 0]], 64]
DEVICE = {"format": 2, "name": "a device", "memory_bytes": 85664174551, "kv_fraction": 0.9, "page_tokens": 64, "step_tokens": 16384,
          "batches_in_flight": 2, "products": [[32, 7.1e13], [128, 2.7e14], [4096, 6e14]], "product_us": 2, "memory_bandwidth": 3e12,
          "attention_flops": 5.2e14, "attention_bandwidth": 4.4e12, "attention_overlap": 0.3, "attention_us": 20, "merge_ns": 1.4,
          "step_us": 60, "host_us": 335, "host_token_us": 0.18, "experts": [[16, 6.4e13], [64, 2e14]], "routing_us": 20,
          "routing_ns": 0.3, "expert_step_tokens": 8192, "gated_tokens": 1024}  # fmt: skip
FOUR_BITS = ["llama_awq", "llama_gptq_sym", "llama_ct_packed", "gpt_oss_mxfp4", "qwen3_moe_gptq", "qwen2_gptq_act_order"]


def is_json(line):
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


class SideFiles(ProgramTest):
    def setUp(self):
        super().setUp()
        self.random = random.Random(f"{SEED} {self.id()}")
        self.file = self.directory / "side"
        self.input.write_bytes(lines(token_rows(40)))
        self.codes = []

    def damaged(self, data):
        data, pick = bytearray(data), self.random.randrange
        for _ in range(self.random.choice([1, 1, 2, 8])):
            at = pick(max(1, len(data)))
            how = pick(5)
            if how == 0:
                data[at:at + 1] = bytes([pick(256)])
            elif how == 1:
                del data[at:at + self.random.choice([1, 8, 64])]
            elif how == 2:
                data[at:at] = self.random.randbytes(9)
            elif how == 3:
                data[at:at + 8] = self.random.choice([b"\xff" * 8, bytes(8), b"\x7f\xff\xff\xff"])
            else:
                del data[at:]
        return bytes(data)

    def lied(self, value):
        """A JSON value with one or a few members changed."""
        value, places = json.loads(json.dumps(value)), []

        def walk(at):
            for key in at if isinstance(at, dict) else range(len(at)):
                places.append((at, key))
                if isinstance(at[key], (dict, list)):
                    walk(at[key])

        walk(value)
        for at, key in self.random.sample(places, min(len(places), self.random.choice([1, 1, 3]))):
            at[key] = self.random.choice(NUMBERS)
        return value

    def check(self, *arguments):
        """Runs the program, which may refuse the file."""
        begin = time.monotonic()
        done = self.run_program(*arguments)
        said = f"seed {SEED}: {arguments}: {done.stderr[-600:]!r}"
        self.assertIn(done.returncode, (0, 1, 3), said)
        self.assertNotIn(b"fault of the program", done.stderr, said)
        self.assertLess(time.monotonic() - begin, 60, said)
        if done.returncode == 1:
            self.assertRegex(done.stderr, rb"^batchllm: .{9}", said)
        self.codes.append(done.returncode)
        return done

    def run_job(self, *arguments, backend=SIM):
        return self.check("run", *backend, "-i", self.input, "-o", self.output, "--progress", "none", *arguments)

    def test_descriptions_of_devices(self):
        for i in range(FILES):
            text = json.dumps(self.lied(DEVICE) if i % 3 else DEVICE).encode()
            self.file.with_suffix(".json").write_bytes(text if i % 3 else self.damaged(text))
            self.check("plan", "-i", self.input, "--model", TESTS / "golden/qwen3_bf16", "-o", self.directory / "made.plan",
                       "--device", self.file.with_suffix(".json"))
        self.assertIn(1, self.codes)

    def test_plans(self):
        kinds = [path.read_bytes() for path in (TESTS / "plan").glob("*.plan")]
        self.check("plan", "-i", self.input, "-o", self.file)
        kinds.append(self.file.read_bytes())
        for _ in range(FILES):
            self.file.write_bytes(self.damaged(self.random.choice(kinds)))
            self.run_job("--plan", self.file, "--force")
        self.assertIn(1, self.codes)
        version = kinds[-1].index(struct.pack("<I", 1))
        for number in (0, 2, 2**31):  # of other versions of the library
            self.file.write_bytes(kinds[-1][:version] + struct.pack("<I", number) + kinds[-1][version + 4:])
            self.assertIn(b"format version %d; this library reads" % number, self.run_job("--plan", self.file, "--force").stderr)

    def test_states_and_torn_outputs(self):
        self.assertEqual(self.run_job("--force").returncode, 0)
        path = pathlib.Path(str(self.output) + ".state")
        state, output = path.read_bytes(), self.output.read_bytes()
        for i in range(FILES):
            path.write_bytes(self.damaged(state) if i % 3 else state)
            self.output.write_bytes(self.damaged(output) if i % 3 == 1 else output[:self.random.randrange(len(output))])
            another = any(is_json(line) and line not in output.splitlines() for line in self.output.read_bytes().splitlines())
            if self.run_job("--resume").returncode == 0 and not another:  # a row whose id is damaged is another row
                self.assertEqual(len({row["id"] for row in self.read_output()}), 40, f"seed {SEED}")

    def test_templates(self):
        pieces = ["{", "}", "{{", "}}", "{a}", "{b}", "{c}", "\n", "x", "é", "{a.b}", "{a:>9}", "{}", "\0", "{a}" * 40]
        values = ["x", "", None, 1, 1.5, True, 10**400, "{a}", "\ud83d", "y" * 3000, [1], {"q": 1}, -0.0]
        for _ in range(FILES):
            self.file.write_text("".join(self.random.choices(pieces, k=self.random.randrange(1, 9))))
            rows = [{"id": i, "a": self.random.choice(values), "b": self.random.choice(values)} for i in range(20)]
            self.input.write_bytes(lines(rows))
            self.run_job("--model", os.environ["BATCHLLM_TEXT_MODEL"], "--template-file", self.file, "--force", "--fields",
                         self.random.choice(["given", "reorder"]), backend=["--backend", "sim"])

    def test_weights_in_four_bits_whose_parts_lie(self):
        for i in range(FILES):
            folder = self.directory / "model"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(TESTS / "golden" / self.random.choice(FOUR_BITS), folder)
            path = self.random.choice(sorted(folder.glob("*.safetensors")))
            data = bytearray(path.read_bytes())
            size = struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8:8 + size])
            parts = [name for name in header if any(end in name for end in ("g_idx", "zero", "scale", "shape", "blocks"))]
            if i % 3 == 0 or not parts:
                text = json.dumps(self.lied(header)).encode()
                path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])
            for name in self.random.sample(parts, min(len(parts), 3)) if i % 3 else []:
                begin, end = (at + 8 + size for at in header[name]["data_offsets"])
                word = struct.pack("<i", self.random.choice([-1, 2**31 - 1, -2**31, 1_000_000, 1]))
                data[begin:end] = (word * (end - begin))[:end - begin] if i % 2 else self.random.randbytes(end - begin)
                path.write_bytes(data)
            self.input.write_bytes(lines([{"id": row, "tokens": [5, 6, 7, row], "max_tokens": 3} for row in range(4)]))
            self.run_job("--model", folder, "--threads", "1", "--kv-memory", "8MiB", "--force", backend=["--backend", "cpu"])
        self.assertIn(1, self.codes)


if __name__ == "__main__":
    unittest.main()
