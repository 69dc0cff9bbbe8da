"""PyTorch's side of `rowmill-bench peers`: pools when it is told to, and says how long it took.

Reads commands from standard input, one a line, and answers each with a line. Rows are made of the same
block of bytes over and over, which a file holds, and ids come from a file too, so that both sides pool the
same rows of the same ids.

    case FORMAT DIM ROWS BLOCK_FILE IDS_FILE BAG CALL_BAGS    -> ready WHAT
    round                                                      -> SECONDS
    first FILE      writes the f32 results of the first call   -> written
    decoded FILE N  writes N rows as PyTorch decodes them      -> written
"""

import sys
import time

import numpy as np
import torch

torch.set_num_threads(1)
BYTES = {"f32": lambda d: 4 * d, "f16": lambda d: 2 * d, "bf16": lambda d: 2 * d, "int8": lambda d: d + 8, "int4": lambda d: d // 2 + 4}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Case:
    def __init__(self, form, dim, rows, block_file, ids_file, bag, call_bags):
        self.form, self.bag, self.call = form, bag, bag * call_bags
        stride = BYTES[form](dim)
        block = np.fromfile(block_file, dtype=np.uint8)
        whole = np.empty(rows * stride, dtype=np.uint8)
        for at in range(0, len(whole), len(block)):
            part = whole[at : at + len(block)]
            part[:] = block[: len(part)]
        self.rows = torch.from_numpy(whole).view(rows, stride)
        if form in DTYPES:
            self.rows = self.rows.view(DTYPES[form])
        # The faster of the two types of ids is chosen below.
        ids = np.fromfile(ids_file, dtype=np.uint32)
        self.ids = {t: torch.from_numpy(ids.astype(t)) for t in ("int64", "int32")}
        offsets = np.arange(0, self.call + 1, bag)
        self.offsets = {t: torch.from_numpy(offsets.astype(t)) for t in ("int64", "int32")}
        self.type = min(("int64", "int32"), key=lambda t: self.seconds(t, 4))

    def pool(self, ids, offsets):
        if self.form == "int8":
            return torch.ops.quantized.embedding_bag_byte_rowwise_offsets(self.rows, ids, offsets, include_last_offset=True)
        if self.form == "int4":
            return torch.ops.quantized.embedding_bag_4bit_rowwise_offsets(self.rows, ids, offsets, include_last_offset=True)
        return torch.nn.functional.embedding_bag(ids, self.rows, offsets, mode="sum", include_last_offset=True)

    def call_number(self, t, number):
        ids = self.ids[t][number * self.call : (number + 1) * self.call]
        return self.pool(ids, self.offsets[t][: len(ids) // self.bag + 1])

    def seconds(self, t, calls=None):
        count = -(-len(self.ids[t]) // self.call)
        began = time.perf_counter()
        for number in range(min(count, calls or count)):
            self.call_number(t, number)
        return time.perf_counter() - began

    def decoded(self, n):
        if self.form == "int8":
            return torch.ops.quantized.embedding_bag_byte_unpack(self.rows[:n].contiguous())
        if self.form == "int4":
            return torch.ops.quantized.embedding_bag_4bit_unpack(self.rows[:n].contiguous())
        return self.rows[:n].to(torch.float32)

    def what(self):
        name = {"int8": "embedding_bag_byte", "int4": "embedding_bag_4bit"}.get(self.form, "embedding_bag")
        return f"torch-{torch.__version__.split('+')[0]}-{name}"


def answer(words, case):
    if words[0] == "case":
        form, dim, rows, block, ids, bag, call = words[1:]
        case = Case(form, int(dim), int(rows), block, ids, int(bag), int(call))
        return f"ready {case.what()}", case
    if words[0] == "round":
        return repr(case.seconds(case.type)), case
    if words[0] == "first":
        case.call_number(case.type, 0).to(torch.float32).numpy().tofile(words[1])
        return "written", case
    if words[0] == "decoded":
        case.decoded(int(words[2])).numpy().tofile(words[1])
        return "written", case
    raise ValueError(f"unknown command {words[0]!r}")


def main():
    case = None
    with torch.inference_mode():
        for line in sys.stdin:
            text, case = answer(line.split(), case)
            print(text, flush=True)


main()
