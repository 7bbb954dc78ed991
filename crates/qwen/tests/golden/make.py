"""Makes the golden cases of tests/parity.rs with transformers and PEFT, each in a folder beside this file: `python make.py [CASE ...]`.

  model/                tiny random checkpoint (h 16, two layers, 64 tokens), as save_pretrained writes it
  adapter/              PEFT's adapter with A and B both drawn
  case.safetensors      input_ids, attention_mask and labels of two rows, -100 where nothing is learnt
  forward.safetensors   logits with the adapter, base_logits without it
  grads.safetensors     loss, and the gradient of each adapter tensor by PEFT's names
  steps.safetensors     loss of ten steps of AdamW, and the adapter after them
  merged.safetensors    the adapted matrices of layer 0, the adapter merged in

Made with transformers 5.23.0 (linear-, dynamic- and yarn-scaled: 5.24.0), peft 0.21.2 and torch 2.15; the same versions make the same weights again, and what is computed with them within the rounding
of another processor (2e-6 of each tensor's norm); PEFT writes the names of an adapter's target_modules in any order.
"""
import pathlib, shutil, sys
import torch, transformers
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
ROWS, TOKENS, VOCABULARY, HIDDEN, RANK, STEPS = 2, 18, 64, 16, 2, 10
MAPS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# In a text of 18 tokens and a model of 8 one of its two frequencies is divided, one blended.
LLAMA3 = dict(rope_type="llama3", rope_theta=1e5, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8)
# The text is longer than the 8 tokens of these models, whose heads have four frequencies; weights are large enough for attention to tell places apart.
SCALED = lambda rope_type, **more: dict(
    head_dim=8, max_position_embeddings=8, initializer_range=0.2,
    rope_parameters=dict(rope_type=rope_type, rope_theta=100.0, factor=4.0, **more))
QWEN2, QWEN3, LLAMA = ("Qwen2", dict(rope_theta=1e6)), ("Qwen3", dict(rope_theta=1e6, head_dim=32)), ("Llama", dict(rope_theta=1e5))
# Name: family with what its configuration has of its own, seed, whether the head is the embedding, what the adapter has of its own.
CASES = {
    "qwen2": (*QWEN2, 0, True, {}),
    "qwen3": (*QWEN3, 0, True, {}),
    "llama": (*LLAMA, 0, True, {}),
    "llama-untied": (*LLAMA, 4, False, {}),
    "qwen2-untied-rslora": (*QWEN2, 1, False, dict(use_rslora=True)),
    "qwen3-untied": (*QWEN3, 2, False, {}),
    "qwen2-dora": (*QWEN2, 3, True, dict(use_dora=True)),
    "llama3-scaled": ("Llama", dict(rope_parameters=LLAMA3), 5, False, {}),
    "linear-scaled": ("Llama", SCALED("linear"), 7, True, {}),
    "dynamic-scaled": ("Llama", SCALED("dynamic"), 8, True, {}),
    "yarn-scaled": ("Qwen3", SCALED("yarn", original_max_position_embeddings=8, beta_fast=1.0, beta_slow=0.1), 9, True, {}),
    # A window that is shorter than the text.
    "mistral-window": ("Mistral", dict(rope_parameters=dict(rope_type="default", rope_theta=1e5), sliding_window=5, head_dim=4), 6, False, {}),
}


def base(family, own, tied):
    """A model of the family, its norms and biases away from ones and zeros."""
    sizes = dict(vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=2 * HIDDEN + 32, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=tied)
    config = getattr(transformers, f"{family}Config")(**(sizes | own))
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


def batch():
    """Two rows, the second with five tokens of padding; the first third of each is read only."""
    ids = torch.randint(0, VOCABULARY, (ROWS, TOKENS))
    mask = torch.ones_like(ids)
    mask[1, TOKENS - 5:] = 0
    labels = ids.clone()
    labels[:, :TOKENS // 3] = -100
    labels[mask == 0] = -100
    return dict(input_ids=ids, attention_mask=mask, labels=labels)


def make(out, family, own, seed, tied, adapter):
    shutil.rmtree(out, ignore_errors=True)
    # The order of what is drawn is part of the goldens: weights, norms and biases, tokens, A, B.
    torch.manual_seed(seed)
    model = base(family, own, tied)
    model.save_pretrained(out / "model")
    rows = batch()
    save_file(rows, out / "case.safetensors")
    read = {key: rows[key] for key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        plain = model(**read).logits
    peft = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, task_type="CAUSAL_LM", target_modules=MAPS, **adapter))
    for name, parameter in peft.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.02)
    peft.save_pretrained(out / "adapter")
    peft.train()

    said = peft(**rows)
    save_file(dict(logits=said.logits.detach().contiguous(), base_logits=plain.contiguous()), out / "forward.safetensors")
    said.loss.backward()
    learnt = {name.replace(".default", ""): p for name, p in peft.named_parameters() if p.requires_grad}
    gradients = {name: p.grad.contiguous() for name, p in learnt.items()}
    save_file({"loss": said.loss.detach().view(1), **gradients}, out / "grads.safetensors")

    peft.zero_grad()
    optimizer = torch.optim.AdamW(learnt.values(), lr=1e-3, weight_decay=0.0)
    losses = []
    for _ in range(STEPS):
        loss = peft(**rows).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    after = {name: value.detach().clone().contiguous() for name, value in get_peft_model_state_dict(peft).items()}
    save_file({"loss": torch.stack(losses), **after}, out / "steps.safetensors")

    merged = peft.eval().merge_and_unload().state_dict()
    kept = {name: value.contiguous() for name, value in merged.items() if "layers.0." in name and "_proj.weight" in name}
    save_file(kept, out / "merged.safetensors")
    for extra in ["model/generation_config.json", "adapter/README.md"]:
        (out / extra).unlink(missing_ok=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unknown = set(sys.argv[1:]) - set(CASES)
    if unknown:
        sys.exit(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    for name in sys.argv[1:] or CASES:
        make(HERE / name, *CASES[name])
        print("made", name)
