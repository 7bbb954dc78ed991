"""Makes tests/golden/preference: the losses of pairs by TRL's formulas (CPOTrainer with loss_type "simpo" and cpo_alpha 0, ORPOTrainer, DPOTrainer
with loss_type "sigmoid"), over fixed log-probabilities and over the tiny checkpoint and adapter of tests/golden/qwen2. `python preference.py`.

Pairs are taken one at a time, as TRL does with a batch of one, and summed; everything is float64.
"""
import json
import pathlib

import torch
import torch.nn.functional as F
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

here = pathlib.Path(__file__).parent
out = here / "preference"
out.mkdir(exist_ok=True)
BETA = {"orpo": 0.3, "simpo": 2.0, "dpo": 0.1}
GAMMA = 0.5


def simpo(chosen, rejected, beta=BETA["simpo"], gamma=GAMMA):
    """Mean log-probabilities of both answers."""
    return -F.logsigmoid(beta * (chosen - rejected - gamma / beta))


def orpo(chosen, rejected, nll, beta=BETA["orpo"]):
    """Mean log-probabilities of both answers, mean negative log-likelihood of the chosen text with its prompt."""
    log_odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
    return nll - beta * F.logsigmoid(log_odds)


def dpo(chosen, rejected, ref_chosen, ref_rejected, beta=BETA["dpo"]):
    """Summed log-probabilities of both answers, by the model and by the reference."""
    return -F.logsigmoid(beta * ((chosen - rejected) - (ref_chosen - ref_rejected)))


d = lambda x: torch.tensor(x, dtype=torch.float64)
generator = torch.Generator().manual_seed(3)
fixed = []
for _ in range(12):
    c, r, nll, rc, rr = (-4 * torch.rand(5, generator=generator, dtype=torch.float64)).tolist()
    n, m = torch.randint(1, 9, (2,), generator=generator).tolist()
    fixed.append({"chosen": c, "chosen_tokens": n, "rejected": r, "rejected_tokens": m, "text": nll, "text_tokens": n + 3, "reference": [rc, rr],
        "orpo": orpo(d(c / n), d(r / m), d(-nll / (n + 3))).item(), "simpo": simpo(d(c / n), d(r / m)).item(), "dpo": dpo(d(c), d(r), d(rc), d(rr)).item()})

base = AutoModelForCausalLM.from_pretrained(here / "qwen2" / "model", torch_dtype=torch.float64)
model = PeftModel.from_pretrained(base, here / "qwen2" / "adapter", is_trainable=True).double().eval()
ids = lambda n: torch.randint(0, 64, (n,), generator=generator).tolist()
pairs = [{"prompt": ids(p), "chosen": ids(c), "rejected": ids(r)} for p, c, r in [(3, 5, 4), (6, 2, 7)]]


def log_p(prompt, answer):
    """Of every token but the first, and how many of them are the prompt's."""
    tokens = torch.tensor([prompt + answer])
    logits = model(tokens).logits[0, :-1].log_softmax(-1)
    return logits.gather(1, tokens[0, 1:, None])[:, 0], len(prompt) - 1


losses, gradients = {}, {}
for name in BETA:
    model.zero_grad()
    total = 0
    for pair in pairs:
        (chosen, start), (rejected, _) = log_p(pair["prompt"], pair["chosen"]), log_p(pair["prompt"], pair["rejected"])
        if name == "dpo":
            with torch.no_grad(), model.disable_adapter():
                reference = [log_p(pair["prompt"], pair[side])[0][start:].sum() for side in ("chosen", "rejected")]
            total = total + dpo(chosen[start:].sum(), rejected[start:].sum(), *reference)
        elif name == "simpo":
            total = total + simpo(chosen[start:].mean(), rejected[start:].mean())
        else:
            total = total + orpo(chosen[start:].mean(), rejected[start:].mean(), -chosen.mean())
    total.backward()
    losses[name] = total.item()
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients[f"{name}.{key.replace('.default', '')}"] = parameter.grad.float().contiguous()
json.dump({"beta": BETA, "gamma": GAMMA, "fixed": fixed, "pairs": pairs, "losses": losses}, open(out / "cases.json", "w"), indent=1)
save_file(gradients, out / "gradients.safetensors")
print(losses)
