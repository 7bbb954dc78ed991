"""Reads what tests/peers.rs wrote with PEFT, transformers, gguf and llama.cpp: `python peers.py DIR`, a case in each folder of it."""
import json, pathlib, sys
import gguf, numpy, torch
from llama_cpp import Llama
from peft import PeftModel
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

LIMIT = 1e-4
cases = sorted(d for d in pathlib.Path(sys.argv[1]).iterdir() if d.is_dir())
for case in cases:
    ours, facts = load_file(case / "ours.safetensors"), json.loads((case / "ours.json").read_text())
    ids = torch.tensor([facts["prompt"]])

    def compare(model, key):
        model.eval()
        with torch.no_grad():
            theirs = model(input_ids=ids).logits.float().numpy()
        error = numpy.abs(ours[key] - theirs).max()
        assert error < LIMIT, (case.name, key, error)
        return error

    load = lambda path: AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    adapter = compare(PeftModel.from_pretrained(load(case / "base"), case / "adapter"), "adapter")
    without = load(case / "base").eval()(input_ids=ids).logits.detach().numpy()
    assert numpy.abs(without - ours["adapter"]).max() > 0.05, "the adapter does something"
    merged = compare(load(case / "merged"), "merged")

    tokenizer = AutoTokenizer.from_pretrained(case / "merged")
    for text, want in zip(facts["texts"], facts["ids"]):
        got = tokenizer(text, add_special_tokens=False).input_ids
        assert got == want, (case.name, text, got, want)
        assert tokenizer.decode(want) == text.replace("e\u0301", "\u00e9"), (text, tokenizer.decode(want))
    for chat, want in zip(facts["chats"], facts["rendered"]):
        got = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert got == want, (case.name, got, want)

    same = {}
    for kind in ["f16", "q8_0"]:
        path = case / f"{kind}.gguf"
        tensors = gguf.GGUFReader(path).tensors
        assert {f"{kind}/{t.name}" for t in tensors} == {k for k in ours if k.startswith(kind + "/")}
        for t in tensors:
            want = ours[f"{kind}/{t.name}"]
            got = gguf.dequantize(t.data, t.tensor_type).reshape(want.shape)
            assert (got == want).all(), (case.name, kind, t.name, numpy.abs(got - want).max())
        llama = Llama(str(path), n_ctx=256, n_threads=2, verbose=False)
        assert llama.n_vocab() == ours["merged"].shape[-1]
        # llama.cpp does not normalise what it tokenises; the last text has special tokens in it.
        for text, want in list(zip(facts["texts"], facts["ids"]))[:3] + [(facts["texts"][4], facts["ids"][4])]:
            got = llama.tokenize(text.encode(), add_bos=False, special=True)
            assert got == want, (case.name, kind, text, got, want)
        want, got = facts["greedy"][kind], []
        for token in llama.generate(facts["prompt"], temp=0.0, repeat_penalty=1.0):
            got.append(token)
            if len(got) == len(want):
                break
        same[kind] = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), len(want))
        # Q8_0 products of llama.cpp round the activations to 8 bits too.
        assert same[kind] == len(want) or kind == "q8_0" and same[kind] >= 4, (case.name, kind, got, want)
    print(f"{case.name}: logits within {adapter:.1e} (PEFT), {merged:.1e} (transformers); of {len(want)} greedy tokens llama.cpp says the first "
          f"{same['f16']} (F16), {same['q8_0']} (Q8_0)")
print(len(cases), "cases agree")
