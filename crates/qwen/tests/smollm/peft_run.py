"""The same fine-tuning run as `llm-finetune`'s, in transformers and PEFT: docs/acceptance-llm.md has the commands.

`init OUT` writes a fresh adapter of PEFT's to go on from; `train OUT [RUN]` trains it on chats.jsonl (or --train) in the order that llm-finetune takes
them in, prints the loss of every update, and beside it those in RUN/events.jsonl; with --valid also the mean loss of a token of that file after every
epoch, in the precision of --dtype.
"""
import argparse, json, math, os, pathlib, time
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

p = argparse.ArgumentParser()
p.add_argument("what", choices=["init", "train"])
p.add_argument("out")
p.add_argument("run", nargs="?")
p.add_argument("--gguf", required=True)
p.add_argument("--accumulate", type=int, default=4)
p.add_argument("--lr", type=float, default=2e-4)
p.add_argument("--max-seq-length", type=int, default=256)
p.add_argument("--train", default=pathlib.Path(__file__).parent / "chats.jsonl")
p.add_argument("--valid")
p.add_argument("--epochs", type=int, default=1)
p.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
a = p.parse_args()
gguf = pathlib.Path(a.gguf)
load = dict(pretrained_model_name_or_path=str(gguf.parent), gguf_file=gguf.name)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(**load, dtype=getattr(torch, a.dtype), attn_implementation="eager")
if a.what == "init":
    config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(model, config).save_pretrained(a.out)
    raise SystemExit

tokenizer = AutoTokenizer.from_pretrained(**load)
model = PeftModel.from_pretrained(model, a.out, is_trainable=True).train()


def example(messages):
    """Token ids, and labels for what the assistant says up to and with <|im_end|>. Each stretch between special tokens on its own."""
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    if isinstance(text, list):
        text = text[0]
    ids, labels = [], []
    for turn in text.split("<|im_start|>")[1:]:
        body, end = turn.split("<|im_end|>")
        role, content = body.split("\n", 1)
        taught = role == "assistant"
        head = tokenizer(f"<|im_start|>{role}\n", add_special_tokens=False).input_ids
        said = tokenizer(f"{content}<|im_end|>", add_special_tokens=False).input_ids
        tail = tokenizer(end, add_special_tokens=False).input_ids
        whole = tokenizer(f"<|im_start|>{turn}", add_special_tokens=False).input_ids
        assert whole == head + said + tail, (turn, whole, head, said, tail)
        ids += whole
        labels += [-100] * len(head) + (said if taught else [-100] * len(said)) + [-100] * len(tail)
    return ids[: a.max_seq_length], labels[: a.max_seq_length]


def order(seed, epoch, count):
    """The order of an epoch: by a hash of (seed, "order", epoch, number) (SplitMix64's finaliser over FNV-1a)."""
    m = (1 << 64) - 1

    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & m
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & m
        return z ^ (z >> 31)

    name = 0xCBF29CE484222325
    for b in b"order":
        name = ((name ^ b) * 0x100000001B3) & m

    def draw(i):
        key = 0
        for part in (seed, name, epoch, i):
            key = mix(key ^ mix((part + 0x9E3779B97F4A7C15) & m))
        return mix((key + 0x9E3779B97F4A7C15) & m)

    return sorted(range(count), key=lambda i: (draw(i), i))


def read(path):
    return [example(json.loads(line)["messages"]) for line in open(path)]


def loss_of(example):
    """The sum over the learnt tokens, and their number."""
    ids, labels = (torch.tensor([x]) for x in example)
    logits = model(input_ids=ids).logits[0, :-1].float()
    return torch.nn.functional.cross_entropy(logits, labels[0, 1:], reduction="sum"), int((labels[0, 1:] != -100).sum())


def judge(epoch):
    with torch.no_grad():
        sums = [loss_of(e) for e in valid]
    print(f"validation loss after epoch {epoch}: {sum(float(s) for s, _ in sums) / sum(n for _, n in sums):.5f}")


examples, valid = read(a.train), read(a.valid) if a.valid else []
windows, plan = [], []
for epoch in range(a.epochs):
    of_epoch = order(0, epoch, len(examples))
    if epoch == 0:  # It begins with the longest.
        longest = max(range(len(of_epoch)), key=lambda i: (len(examples[of_epoch[i]][0]), -i))
        of_epoch[0], of_epoch[longest] = of_epoch[longest], of_epoch[0]
    windows += [of_epoch[i : i + a.accumulate] for i in range(0, len(of_epoch), a.accumulate)]
    plan += of_epoch
optimizer = torch.optim.AdamW([v for v in model.parameters() if v.requires_grad], lr=a.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
theirs, started = [], time.time()
for update, window in enumerate(windows):
    for group in optimizer.param_groups:
        group["lr"] = a.lr * 0.5 * (1 + math.cos(math.pi * update / len(windows)))
    count = sum(sum(l != -100 for l in examples[i][1][1:]) for i in window)
    for i in window:
        loss, tokens = loss_of(examples[i])
        (loss / count).backward()
        theirs.append((float(loss.detach()), tokens))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); optimizer.zero_grad()
    if valid and (update + 1) % (len(windows) // a.epochs) == 0:
        judge((update + 1) * a.epochs // len(windows))
seconds = time.time() - started
model.save_pretrained(os.path.join(a.out, "trained"))

ours = []
if a.run:
    events = map(json.loads, open(os.path.join(a.run, "events.jsonl")))
    ours = [e["items"]["loss"] for e in events if e.get("event", e.get("kind")) == "step"]
    assert len(ours) == len(theirs), (len(ours), len(theirs))
worst = 0.0
print(f"| update | tokens learnt | PEFT | llm-finetune | difference |\n|---|---|---|---|---|")
first = 0
for u, window in enumerate(windows):
    rows, first = range(first, first + len(window)), first + len(window)
    tokens = sum(theirs[i][1] for i in rows)
    peft = sum(theirs[i][0] for i in rows) / tokens
    if ours:
        worst = max([worst] + [abs(ours[i] - theirs[i][0] / theirs[i][1]) / (theirs[i][0] / theirs[i][1]) for i in rows])
        mine = sum(ours[i] * theirs[i][1] for i in rows) / tokens
        print(f"| {u + 1} | {tokens} | {peft:.5f} | {mine:.5f} | {100 * (mine - peft) / peft:+.4f} % |")
    else:
        print(f"| {u + 1} | {tokens} | {peft:.5f} | | |")
print(f"\nPEFT took {seconds:.0f} s; largest difference of any of {len(plan)} micro-batches: {100 * worst:.4f} %")
