//! Adapters as GGUF: what a reader computes from base and adapter is the merged model, in our arithmetic and in llama.cpp's.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Write;
use std::path::Path;
use std::process::Command;

use bellows_learner::Rng;
use bellows_qwen::adapter::{LoraConfig, Targets};
use bellows_qwen::arch::Architecture;
use bellows_qwen::base::{Base, random};
use bellows_qwen::export::{ExportError, write_gguf};
use bellows_qwen::gguf_lora::write_gguf_lora;
use bellows_qwen::peft;
use bellows_qwen::weights::merge;
use bellows_weights::gguf::{Gguf, Preset};
use bellows_weights::{Tensor as FileTensor, Tensors};
use burn::tensor::Device;

/// A small model and an adapter that changes it much.
struct Case {
    base: Base,
    adapter: LoraConfig,
    tensors: Tensors,
}

fn case(architecture: Architecture, adapter: LoraConfig) -> Case {
    let device = Device::flex();
    let mut base = Base::tiny(["What is 2 plus 3? 2 plus 3 is 5."], 0, &device).unwrap();
    base.config.architecture = architecture;
    base.config.qkv_bias = architecture.qkv_bias();
    base.config.qk_norm = architecture.qk_norm();
    base.model = random(&base.config, 1, &device);
    let equipped = adapter.apply(base.model.clone(), 2).unwrap();
    let mut tensors = peft::tensors(&equipped, &adapter).unwrap();
    for (name, tensor) in tensors.iter_mut().filter(|(name, _)| name.contains("lora_B")) {
        let mut rng = Rng::new(3, "lora_B", 0, name.len() as u64);
        let values: Vec<f32> = (0..tensor.shape.iter().product::<usize>()).map(|_| (rng.normal() * 0.05) as f32).collect();
        *tensor = FileTensor::from_f32(tensor.shape.clone(), &values);
    }
    Case { base, adapter, tensors }
}

fn cases() -> [(&'static str, Case); 3] {
    let patterns = LoraConfig {
        r: 4,
        lora_alpha: 6.0,
        rank_pattern: [("down_proj".into(), 2), ("layers.1.self_attn.q_proj".into(), 8)].into(),
        alpha_pattern: [("o_proj".into(), 12.0)].into(),
        ..LoraConfig::default()
    };
    let names = |list: &[&str]| Targets::Names(list.iter().map(ToString::to_string).collect());
    let stable = LoraConfig { r: 4, use_rslora: true, rank_pattern: [("k_proj".into(), 9)].into(), ..LoraConfig::default() };
    let few = LoraConfig { r: 3, target_modules: names(&["q_proj", "up_proj"]), layers_to_transform: vec![1, 3], ..LoraConfig::default() };
    [
        ("qwen2", case(Architecture::Qwen2, patterns)),
        ("llama", case(Architecture::Llama, stable)),
        ("qwen3", case(Architecture::Qwen3, few)),
    ]
}

impl Case {
    /// `base.gguf`, `merged.gguf` and `adapter.gguf`.
    fn write(&self, dir: &Path) {
        let Base { model, config, tokenizer, .. } = &self.base;
        let equipped = peft::attach(model.clone(), &self.adapter, self.tensors.clone(), dir).unwrap();
        write_gguf(&dir.join("base.gguf"), model, config, tokenizer, Preset::F16, "base").unwrap();
        // A matrix at a time, or the whole model first.
        write_gguf(&dir.join("merged.gguf"), &equipped, config, tokenizer, Preset::F16, "merged").unwrap();
        write_gguf(&dir.join("before.gguf"), &merge(equipped), config, tokenizer, Preset::F16, "merged").unwrap();
        let bytes = |file: &str| std::fs::read(dir.join(file)).unwrap();
        assert!(bytes("merged.gguf") == bytes("before.gguf") && bytes("merged.gguf") != bytes("base.gguf"));
        write_gguf_lora(&dir.join("adapter.gguf"), &self.adapter, self.tensors.clone(), config, "adapter").unwrap();
    }
}

#[test]
fn base_and_scaled_pairs_are_the_merged_model() {
    for (name, case) in cases() {
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let open = |file: &str| Gguf::open(&dir.path().join(file)).unwrap();
        let (base, merged, adapter) = (open("base.gguf"), open("merged.gguf"), open("adapter.gguf"));
        let text = |key: &str| adapter.metadata()[key].as_str().unwrap().to_owned();
        assert_eq!([text("general.type"), text("adapter.type"), text("general.architecture")], ["adapter", "lora", name].map(String::from));
        let alpha = adapter.metadata()["adapter.lora.alpha"].as_f32().unwrap();
        assert_eq!(alpha, if name == "llama" { 64.0 } else { case.adapter.lora_alpha as f32 }, "32 √4 stands for 32, rank-stabilised");
        let mut changed = 0;
        for (tensor, info) in base.tensors() {
            let (mut ours, theirs) = (base.tensor_f32(tensor).unwrap(), merged.tensor_f32(tensor).unwrap());
            if let Some(a) = adapter.tensors().get(&format!("{tensor}.lora_a")) {
                let ([rank, input], out) = ([a.shape[0], a.shape[1]], info.shape[0]);
                let a = adapter.tensor_f32(&format!("{tensor}.lora_a")).unwrap();
                let b = adapter.tensor_f32(&format!("{tensor}.lora_b")).unwrap();
                for (i, j, k) in (0..out).flat_map(|i| (0..rank).flat_map(move |k| (0..input).map(move |j| (i, j, k)))) {
                    ours[i * input + j] += alpha / rank as f32 * b[i * rank + k] * a[k * input + j];
                }
                changed += 1;
            }
            assert_eq!(ours.len(), theirs.len(), "{name} {tensor}");
            for (ours, theirs) in ours.iter().zip(&theirs) {
                // Both models are stored in f16.
                assert!((ours - theirs).abs() < 3e-4, "{name} {tensor}: {ours} for {theirs}");
            }
        }
        assert_eq!(2 * changed, adapter.tensors().len(), "{name}: every pair belongs to a tensor");
        assert_eq!(changed, if name == "qwen3" { 4 } else { 28 });
    }
}

#[test]
fn what_the_format_cannot_hold_is_refused() {
    let plain = case(Architecture::Qwen2, LoraConfig::default());
    let dir = tempfile::tempdir().unwrap();
    let refused = |adapter: &LoraConfig, tensors: Tensors| {
        let path = dir.path().join("x.gguf");
        let error = write_gguf_lora(&path, adapter, tensors, &plain.base.config, "x").unwrap_err();
        assert!(matches!(error, ExportError::Adapter(_)) && !path.exists());
        error.to_string()
    };
    let dora = LoraConfig { use_dora: true, ..LoraConfig::default() };
    assert!(refused(&dora, plain.tensors.clone()).contains("DoRA"));
    let whole = LoraConfig { modules_to_save: vec!["norm".into()], ..LoraConfig::default() };
    assert!(refused(&whole, plain.tensors.clone()).contains("modules_to_save (norm)"));
    let other = LoraConfig { r: 8, ..LoraConfig::default() };
    assert!(refused(&other, plain.tensors.clone()).contains("[16, 128], this model needs [8, 128]"));
    let mut extra = plain.tensors.clone();
    extra.insert("base_model.model.lm_head.lora_A.weight".into(), FileTensor::from_f32(vec![1], &[0.0]));
    assert!(refused(&plain.adapter, extra).contains("no place for base_model.model.lm_head.lora_A.weight"));
}

/// Prints, of each case, the largest difference of logits between merged and base with adapter, and between merged and base.
const PEER: &str = r#"
import sys, numpy, gguf
from llama_cpp import Llama
for folder in sys.argv[1:]:
    reader = gguf.GGUFReader(f"{folder}/adapter.gguf")
    tensors = {t.name: list(t.shape) for t in reader.tensors}
    assert tensors["blk.1.attn_q.weight.lora_a"][0] == 128, tensors
    assert reader.fields["adapter.lora.alpha"].types == [gguf.GGUFValueType.FLOAT32]
    assert reader.fields["general.type"].contents() == gguf.GGUFType.ADAPTER
    def logits(model, lora=None):
        llama = Llama(f"{folder}/{model}.gguf", lora_path=lora, logits_all=True, n_ctx=64, n_threads=1, verbose=False)
        ids = list(range(5, 45))
        llama.eval(ids)
        return numpy.array(llama.scores[: len(ids)])
    merged, base, both = logits("merged"), logits("base"), logits("base", f"{folder}/adapter.gguf")
    print(numpy.abs(merged - both).max(), numpy.abs(merged - base).max())
"#;

#[test]
fn llama_cpp_computes_the_merged_model_from_base_and_adapter() {
    let Some(python) = std::env::var_os("BELLOWS_PEERS_PYTHON") else {
        writeln!(std::io::stderr(), "skipped: BELLOWS_PEERS_PYTHON names no Python with gguf and llama_cpp").unwrap();
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let folders = cases().map(|(name, case)| {
        let folder = dir.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        case.write(&folder);
        folder
    });
    let output = Command::new(python).args(["-c", PEER]).args(&folders).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    println!("{out}");
    assert_eq!(out.lines().count(), folders.len(), "{out}");
    for line in out.lines() {
        let numbers: Vec<f64> = line.split(' ').map(|x| x.parse().unwrap()).collect();
        // Weights of both models, and llama.cpp's keys and values, are f16.
        assert!(numbers[0] < 1e-2 && numbers[1] > 200.0 * numbers[0], "{out}");
    }
}
