"""Makes torch_optim.json, the golden case of src/adaptive.rs: `python torch_optim.py` (needs torch).

The tensors, gradients, rates and weight decay of optimizers.json; the rules are torch.optim's, built as Ultralytics builds them.
"""
import json, pathlib
import torch

here = pathlib.Path(__file__)
case = json.loads(here.with_name("optimizers.json").read_text())
MOMENTUM, DECAY = 0.937, case["weight_decay"]
betas = {"betas": (MOMENTUM, 0.999), "weight_decay": DECAY}
RULES = {
    "NAdam": lambda p: torch.optim.NAdam(p, **betas),
    "RAdam": lambda p: torch.optim.RAdam(p, **betas),
    "Adamax": lambda p: torch.optim.Adamax(p, **betas),
    "RMSProp": lambda p: torch.optim.RMSprop(p, momentum=MOMENTUM, weight_decay=DECAY),
}


def run(rule):
    params = [torch.nn.Parameter(torch.tensor(v)) for v in case["start"]]
    optimizer, after = rule(params), []
    for grads, lr in zip(case["grads"], case["rates"]):
        for p, g in zip(params, grads):
            p.grad = torch.tensor(g)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        after.append([[round(x, 9) for x in p.flatten().tolist()] for p in params])
    return after


golden = {"torch": torch.__version__, "momentum": MOMENTUM, "after": {name: run(rule) for name, rule in RULES.items()}}
here.with_suffix(".json").write_text(json.dumps(golden, separators=(",", ":")).replace("],[[", "],\n[[") + "\n")
