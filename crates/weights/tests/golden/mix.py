"""Writes mix.txt: the block type llama.cpp's quantiser gives to every tensor of small made-up Qwen2 models. Run by hand.

Needs the `gguf` and `llama_cpp` packages. A line: preset, layers, tied or untied, torch shape, type, then the
tensors it is true of.
"""

import ctypes
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy

HERE = Path(__file__).parent
# llama_ftype
PRESETS = {"f16": 1, "bf16": 32, "q4_0": 2, "q8_0": 7, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18}


def write_model(path, layers, tied, hidden, ffn):
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(0)
    shapes = {"token_embd.weight": (32, hidden), "output_norm.weight": (hidden,)}
    if not tied:
        shapes["output.weight"] = (32, hidden)
    for i in range(layers):
        for name, shape in {
            "attn_norm.weight": (hidden,),
            "attn_q.weight": (hidden, hidden),
            "attn_q.bias": (hidden,),
            "attn_k.weight": (hidden // 2, hidden),
            "attn_v.weight": (hidden // 2, hidden),
            "attn_output.weight": (hidden, hidden),
            "ffn_norm.weight": (hidden,),
            "ffn_gate.weight": (ffn, hidden),
            "ffn_up.weight": (ffn, hidden),
            "ffn_down.weight": (hidden, ffn),
        }.items():
            shapes[f"blk.{i}.{name}"] = shape
    random = numpy.random.default_rng(1)
    for name, shape in shapes.items():
        writer.add_tensor(name, random.standard_normal(shape).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    lines = {}
    # Rows that are whole 256-blocks, whole 32-blocks, and neither; and ffn rows that fit where the hidden ones do not.
    for layers, tied, hidden, ffn in [(9, True, 256, 512), (16, False, 256, 512), (3, True, 96, 256), (1, False, 48, 96)]:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "f32.gguf"), Path(folder, "out.gguf")
            write_model(source, layers, tied, hidden, ffn)
            for preset, ftype in PRESETS.items():
                params = llama_cpp.llama_model_quantize_default_params()
                params.ftype = ftype
                params.nthread = 1
                result = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
                assert result == 0, (preset, result)
                for tensor in gguf.GGUFReader(target).tensors:
                    shape = "x".join(str(n) for n in reversed(tensor.shape.tolist()))
                    case = f"{preset} {layers} {'tied' if tied else 'untied'} {shape} {tensor.tensor_type.name}"
                    lines.setdefault(case, []).append(tensor.name)
    (HERE / "mix.txt").write_text("".join(f"{case} {' '.join(names)}\n" for case, names in lines.items()))


main()
