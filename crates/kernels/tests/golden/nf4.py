"""What bitsandbytes makes of the values of `products/blocks_tests.rs`: writes nf4.txt beside itself (bitsandbytes 0.50.2, PyTorch, CPU)."""
from pathlib import Path

import bitsandbytes.functional as F
import torch

i = torch.arange(64 * 260, dtype=torch.int64)
values = (((i * 7919) % 2003 - 1001).float() / 1024) * (1 + (i // 64) % 7).float()
codes, state = F.quantize_4bit(values, blocksize=64, compress_statistics=True, quant_type="nf4")
back = F.dequantize_4bit(codes, state)


def bits(tensor):
    return " ".join(f"{v & 0xFFFFFFFF:08x}" for v in tensor.float().contiguous().view(torch.int32).flatten().tolist())


lines = [
    bits(state.code),
    bits(state.state2.code),
    bytes(codes.flatten()[: 32 * 40].tolist()).hex(),
    bytes(state.absmax.flatten().tolist()).hex(),
    bits(state.state2.absmax),
    bits(state.offset),
    bits(back.flatten()[::97]),
]
Path(__file__).with_suffix(".txt").write_text("\n".join(lines) + "\n")
