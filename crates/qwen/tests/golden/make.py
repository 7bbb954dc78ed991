"""Makes the golden cases of tests/parity.rs with transformers and PEFT: `python make.py PATH/TO/lora_golden.py [CASE ...]`.

Tiny checkpoints (h 16, two layers, 64 tokens), so that each case is some tens of kilobytes; of the merged model the adapted matrices of
layer 0 are kept.
"""
import pathlib, runpy, shutil, subprocess, sys
from safetensors.torch import load_file, save_file

CASES = {
    "qwen2": ["--arch", "qwen2"],
    "qwen3": ["--arch", "qwen3"],
    "llama": ["--arch", "llama"],
    "llama-untied": ["--arch", "llama", "--untied", "--seed", "4"],
    "qwen2-untied-rslora": ["--arch", "qwen2", "--untied", "--rslora", "--seed", "1"],
    "qwen3-untied": ["--arch", "qwen3", "--untied", "--seed", "2"],
    "qwen2-dora": ["--arch", "qwen2", "--dora", "--seed", "3"],
    # What the script calls llama with other classes in its place, in a process of its own.
    "llama3-scaled": ["--arch", "llama", "--untied", "--seed", "5"],
    "mistral-window": ["--arch", "llama", "--untied", "--seed", "6"],
}


def variant(name, script, arguments):
    """The script with the classes of a case that it does not know."""
    import peft, transformers  # PEFT first: it loads what is to be replaced
    assert peft
    if name == "llama3-scaled":
        # Positions of a text of 18 tokens in a model of 8: one frequency is divided, one blended.
        scaling = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8)
        plain = transformers.LlamaConfig
        transformers.LlamaConfig = lambda rope_theta, **fields: plain(rope_parameters=dict(scaling, rope_theta=rope_theta), **fields)
    if name == "mistral-window":
        plain = transformers.MistralConfig
        transformers.LlamaConfig = lambda rope_theta, **fields: plain(
            rope_parameters=dict(rope_type="default", rope_theta=rope_theta), sliding_window=5, head_dim=4, **fields)
        transformers.LlamaForCausalLM = transformers.MistralForCausalLM
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


if sys.argv[1] == "--variant":
    variant(sys.argv[2], sys.argv[3], sys.argv[4:])
    sys.exit()
here = pathlib.Path(__file__).parent
for name, args in CASES.items():
    if sys.argv[2:] and name not in sys.argv[2:]:
        continue
    out = here / name
    shutil.rmtree(out, ignore_errors=True)
    small = ["--hidden", "16", "--layers", "2", "--vocab", "64", "--seq", "18", "--rank", "2"]
    subprocess.run([sys.executable, __file__, "--variant", name, sys.argv[1], str(out), *small, *args], check=True)
    merged = load_file(out / "merged" / "model.safetensors")
    save_file({k: v for k, v in merged.items() if "layers.0." in k and "_proj.weight" in k}, out / "merged.safetensors")
    shutil.rmtree(out / "merged")
    for extra in ["model/generation_config.json", "adapter/README.md"]:
        (out / extra).unlink(missing_ok=True)
