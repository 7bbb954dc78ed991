"""Writes blocks.safetensors: rows of numbers, and what other programs make of them. Run by hand when a case is added.

    python blocks.py [candle-oracle]

Needs numpy, the `gguf` package (its encoders of the 32-blocks and all its decoders) and `llama_cpp` (its ggml library encodes the
K-quants). `candle-oracle` is the program of candle.rs beside this file; without it its tensors stay as they are in the file.
"""

import ctypes
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy
from gguf import GGMLQuantizationType as T

HERE = Path(__file__).parent
LEGACY = [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0]
K_QUANTS = [T.Q4_K, T.Q5_K, T.Q6_K]


def rows():
    random = numpy.random.default_rng(20250101)
    normal = random.standard_normal((16, 256)) * 0.05
    heavy = random.standard_t(2.5, (8, 256)) * 0.05
    special = numpy.zeros((8, 256))
    special[1] = 0.0625  # exact in f16
    special[2] = -0.3
    special[3] = 0.0123
    special[4] = numpy.linspace(-1, 1, 256)
    special[5] = numpy.abs(normal[0])  # no negative element
    special[6] = normal[1] * 1e-6  # scales that are subnormal in f16
    special[7, 77] = -5.0  # a single element
    return numpy.concatenate([normal, heavy, special]).astype(numpy.float32)


def ggml_quantize(x, kind):
    import llama_cpp

    library = ctypes.CDLL(str(next((Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.so"))))
    quantize = library.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    out = numpy.zeros(x.size // block * size, numpy.uint8)
    written = quantize(int(kind), x.ctypes.data, out.ctypes.data, 0, x.shape[0], x.shape[1], None)
    assert written == out.nbytes
    return out


def random_blocks(kind, random):
    """Bytes of any value, but for the f16 scales, which are made finite."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (512 // block, size), dtype=numpy.uint8)
    halves = {T.Q4_1: [0, 2], T.Q5_1: [0, 2], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}.get(kind, [0])
    for at in halves:
        blocks[:, at + 1] &= 0xBF
    return blocks


def write(path, tensors):
    names = {"f": "F32", "u": "U8"}
    header, end = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": names[x.dtype.kind], "shape": list(x.shape), "data_offsets": [end, end + x.nbytes]}
        end += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(x.tobytes() for x in tensors.values()))


def main():
    x = rows()
    random = numpy.random.default_rng(7)
    tensors = {"rows": x}
    # Every finite 16-bit pattern's neighbourhood is too much; these hold ties, subnormals, the largest value and NaN.
    floats = random.integers(0, 2**32, 512, dtype=numpy.uint32).view(numpy.float32)
    ties = (random.integers(0x3300, 0x4780, 256).astype(numpy.uint32) << 16 | 0x8000).view(numpy.float32)
    floats = numpy.concatenate([floats, ties, numpy.float32([0.0, -0.0, 1e-8, 65504, 65519, -65504, 3.4e38])])
    tensors["floats"] = floats
    with numpy.errstate(over="ignore", invalid="ignore"):
        tensors["F16"] = gguf.quantize(floats, T.F16).view(numpy.uint8)
    tensors["BF16"] = gguf.quantize(floats[: len(floats)].reshape(1, -1), T.BF16).reshape(-1)
    for kind in LEGACY:
        tensors[kind.name] = gguf.quantize(x, kind).reshape(-1)
    for kind in K_QUANTS:
        tensors[kind.name] = ggml_quantize(x, kind)
    for kind in LEGACY + K_QUANTS:
        blocks = random_blocks(kind, random)
        tensors[f"{kind.name}.any"] = blocks.reshape(-1)
        tensors[f"{kind.name}.values"] = gguf.dequantize(blocks, kind).reshape(-1)
    path = HERE / "blocks.safetensors"
    if len(sys.argv) > 1:
        for kind in LEGACY + K_QUANTS:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "rows").write_bytes(x.tobytes())
                subprocess.run([sys.argv[1], kind.name, Path(folder, "rows"), Path(folder, "blocks")], check=True)
                tensors[f"{kind.name}.candle"] = numpy.fromfile(Path(folder, "blocks"), numpy.uint8)
    else:
        old = path.read_bytes()
        (length,) = struct.unpack("<Q", old[:8])
        for name, info in json.loads(old[8 : 8 + length]).items():
            if name.endswith(".candle"):
                start, end = (8 + length + at for at in info["data_offsets"])
                tensors[name] = numpy.frombuffer(old[start:end], numpy.uint8)
    write(path, tensors)


main()
