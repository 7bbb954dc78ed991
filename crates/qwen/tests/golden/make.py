"""Makes the golden cases of tests/parity.rs with transformers and PEFT: `python make.py PATH/TO/lora_golden.py`.

Tiny checkpoints (h 16, two layers, 64 tokens), so that each case is some tens of kilobytes; of the merged model the adapted matrices of
layer 0 are kept.
"""
import pathlib, shutil, subprocess, sys
from safetensors.torch import load_file, save_file

CASES = {
    "qwen2": ["--arch", "qwen2"],
    "qwen3": ["--arch", "qwen3"],
    "llama": ["--arch", "llama"],
    "llama-untied": ["--arch", "llama", "--untied", "--seed", "4"],
    "qwen2-untied-rslora": ["--arch", "qwen2", "--untied", "--rslora", "--seed", "1"],
    "qwen3-untied": ["--arch", "qwen3", "--untied", "--seed", "2"],
    "qwen2-dora": ["--arch", "qwen2", "--dora", "--seed", "3"],
}
here = pathlib.Path(__file__).parent
for name, args in CASES.items():
    out = here / name
    shutil.rmtree(out, ignore_errors=True)
    small = ["--hidden", "16", "--layers", "2", "--vocab", "64", "--seq", "18", "--rank", "2"]
    subprocess.run([sys.executable, sys.argv[1], str(out), *small, *args], check=True)
    merged = load_file(out / "merged" / "model.safetensors")
    save_file({k: v for k, v in merged.items() if "layers.0." in k and "_proj.weight" in k}, out / "merged.safetensors")
    shutil.rmtree(out / "merged")
    for extra in ["model/generation_config.json", "adapter/README.md"]:
        (out / extra).unlink(missing_ok=True)
