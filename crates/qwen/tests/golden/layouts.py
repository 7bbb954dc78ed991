"""Makes layouts.json for tests/layouts.rs with transformers: what configurations compute on weights that both sides make from integers.

    python layouts.py

Each case has a config.json, the token ids of one row, the rotary frequencies and the factor on cosines and sines (where the model has them in
one place), and the logits at some positions. Made with transformers 5.23.0 and torch 2.15.
"""
import json, pathlib
import numpy as np, torch
from transformers import AutoConfig, AutoModelForCausalLM

torch.set_num_threads(1)
SIZES = dict(vocab_size=24, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             max_position_embeddings=32, rms_norm_eps=1e-6, tie_word_embeddings=True, head_dim=16, rope_theta=10000.0)


def weights(number, shape):
    """Parameter `number` (by name) as a function of its elements' places: an integer hash, the same in Rust."""
    i = np.arange(int(np.prod(shape)), dtype=np.uint64)
    h = ((i + np.uint64(1) + np.uint64(1_000_003 * number)) * np.uint64(2654435761)) & np.uint64(0xffffffff)
    h ^= h >> np.uint64(15)
    h = (h * np.uint64(2246822519)) & np.uint64(0xffffffff)
    h ^= h >> np.uint64(13)
    return (h.astype(np.float64) / 2**32 - 0.5).astype(np.float32).reshape(shape)


def case(name, model_type, tokens, **more):
    described = {"model_type": model_type, **SIZES, **more}
    config = AutoConfig.for_model(**json.loads(json.dumps(described)))
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for number, (key, p) in enumerate(sorted(model.named_parameters())):
        values = weights(number, tuple(p.shape))
        p.data = torch.tensor(1 + 0.2 * values if "norm" in key else 0.6 * values)
    ids = [(7 * i * i + 3 * i + 5) % SIZES["vocab_size"] for i in range(tokens)]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    at = sorted({tokens - 1, tokens // 2, 1})
    rotary = model.model.rotary_emb
    out = {"name": name, "config": described, "ids": ids, "at": at, "logits": [[round(float(x), 6) for x in logits[i]] for i in at]}
    if hasattr(rotary, "inv_freq"):
        out |= {"frequencies": [float(f"{float(f):.8g}") for f in rotary.inv_freq], "factor": float(rotary.attention_scaling)}
    return out


llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
divisors = [1.0 + 0.3 * j for j in range(8)]
cases = [
    case("plain", "llama", 20),
    case("mistral", "mistral", 20, sliding_window=None),
    case("mistral with a window", "mistral", 20, sliding_window=7),
    case("linear", "llama", 20, rope_scaling={"type": "linear", "factor": 4.0}),
    case("dynamic, short", "llama", 20, rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    case("dynamic, long", "llama", 48, rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    case("llama3", "llama", 40, rope_scaling={"rope_type": "llama3", **llama3}),
    case("llama3 since version 5", "llama", 40, rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, **llama3}),
    case("yarn", "qwen2", 40, rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
    case("yarn without its length", "qwen3", 20, rope_scaling={"rope_type": "yarn", "factor": 2.0}),
    case("yarn with constants", "qwen2", 40, rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8.0,
         "beta_slow": 0.5, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}),
    case("yarn with a factor", "llama", 40, rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.3}),
    case("longrope, short", "llama", 12, rope_scaling={"rope_type": "longrope", "short_factor": divisors, "long_factor": divisors[::-1], "original_max_position_embeddings": 16}),
    case("longrope, long", "llama", 30, rope_scaling={"rope_type": "longrope", "short_factor": divisors, "long_factor": divisors[::-1], "original_max_position_embeddings": 16}),
]
lines = ",\n".join(json.dumps(c) for c in cases)
pathlib.Path(__file__).with_name("layouts.json").write_text(f"[\n{lines}\n]\n")
for c in cases:
    print(c["name"], c["logits"][-1][:3], c.get("factor"))
