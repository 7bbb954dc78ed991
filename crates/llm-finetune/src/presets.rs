//! Settings from a preset or a file, overlaid by flags.

use std::path::Path;

use bellows_cli::{Context, Exit, Failure, Usage, say, yaml_layer, yaml_text};
use bellows_qwen::config::SftConfig;
use bellows_qwen::memory::Place;
use bellows_runs::write_atomic;
use bellows_settings::Layer;
use serde_json::{Map, Value};

/// Settings as typed.
pub(crate) struct SettingsArgs {
    /// `--config`: a file, or the name of a preset.
    pub(crate) config: Option<String>,
    /// The flags.
    pub(crate) flags: Layer,
}

/// The files of `models/` that are for this program, by name.
pub(crate) const PRESETS: [(&str, &str); 4] = [
    ("tiny", include_str!("../../../models/tiny.yaml")),
    ("dorothy", include_str!("../../../models/dorothy.yaml")),
    ("worldmodel", include_str!("../../../models/worldmodel.yaml")),
    ("paper_r64", include_str!("../../../models/paper_r64.yaml")),
];

/// Their names, for a sentence.
pub(crate) fn names() -> String {
    PRESETS.map(|(name, _)| name).join(", ")
}

/// Defaults, `--config`, flags; how the base is stored is settled where the precision alone says it. (What a card adds is settled where it is known.)
pub(crate) fn settings(args: &SettingsArgs) -> Result<SftConfig, Failure> {
    let config = SftConfig::from_layers(&layers(args.config.as_deref(), &args.flags)?)?;
    let config = config.stored_at(Place::Processor);
    if args.config.as_deref() == Some("tiny") && config.data == [TINY_CHAT] {
        write_tiny_chat(Path::new(TINY_CHAT))?;
    }
    Ok(config)
}

/// The key of what a preset or a file says of a made-up model alone: values that would harm a trained one.
const ONLY_FOR_TINY: &str = "only_for_tiny";

fn layers(config: Option<&str>, flags: &Layer) -> Result<Vec<Layer>, Failure> {
    Ok(of_file(config, flags)?.into_iter().chain([flags.clone()]).collect())
}

/// What `--config` says, below the `flags`.
///
/// # Errors
/// As [`layer`].
pub(crate) fn of_file(config: Option<&str>, flags: &Layer) -> Result<Option<Layer>, Failure> {
    let Some(name) = config else { return Ok(None) };
    let mut file = layer(name)?;
    let made = match file.values.shift_remove(ONLY_FOR_TINY).unwrap_or_default() {
        Value::Null => Map::new(),
        Value::Object(made) => made,
        other => return Err(Usage(format!("{}: `{ONLY_FOR_TINY}` is {other}: it takes settings", file.origin)).into()),
    };
    let model = flags.values.get("model").or(file.values.get("model"));
    if model.is_some_and(|model| model == "tiny") {
        file.values.extend(made);
    }
    Ok(Some(file))
}

/// What a preset or a file of this name says.
///
/// # Errors
/// None of this name; a file that cannot be read or is no YAML, as [`Usage`].
fn layer(name: &str) -> Result<Layer, Failure> {
    match PRESETS.iter().find(|(preset, _)| *preset == name) {
        Some((name, text)) => yaml_text(&format!("preset {name}"), text),
        None if Path::new(name).exists() => yaml_layer(Path::new(name)),
        None => Err(Usage(format!("--config {name}: there is no such file, and the presets are {}", names())).into()),
    }
}

/// The data of the preset `tiny`.
const TINY_CHAT: &str = "datasets/tiny-chat";

/// Writes them where they are not there: a program far from its sources brings them along.
fn write_tiny_chat(dir: &Path) -> Result<(), Failure> {
    if dir.exists() {
        return Ok(());
    }
    let files = [
        ("train.jsonl", include_str!("../../../datasets/tiny-chat/train.jsonl")),
        ("valid.jsonl", include_str!("../../../datasets/tiny-chat/valid.jsonl")),
    ];
    std::fs::create_dir_all(dir).context(Exit::Failed, dir.display())?;
    for (name, text) in files {
        write_atomic(&dir.join(name), text.as_bytes())?;
    }
    say(&format!("Wrote {}", dir.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use bellows_device::Card;
    use bellows_qwen::adapter::Targets;
    use bellows_qwen::bench::Size;
    use bellows_qwen::checkpointing::Checkpointing;
    use bellows_qwen::fit::Question;
    use bellows_qwen::precision::RunPrecision;
    use bellows_qwen::storage::{BaseDtype, Storage};
    use serde_json::json;

    use super::*;

    fn with_flags(name: &str, flags: Value) -> SftConfig {
        let flags = Layer { origin: "command line".into(), values: flags.as_object().unwrap().clone() };
        SftConfig::from_layers(&layers(Some(name), &flags).unwrap()).unwrap()
    }

    fn preset(name: &str) -> SftConfig {
        with_flags(name, json!({}))
    }

    #[test]
    fn what_a_made_up_model_needs_is_not_done_to_a_real_one() {
        let (tiny, plain) = (preset("tiny"), SftConfig::default());
        let made = SftConfig {
            model: "tiny".into(),
            data: vec![TINY_CHAT.into()],
            sample_prompt: Some("What is 2 plus 3?".into()),
            save_merged: true,
            save_gguf: Some("q8_0".into()),
            r: 32,
            lora_alpha: 64.0,
            modules_to_save: ["embed_tokens", "norm"].map(String::from).into(),
            max_seq_length: 128,
            pad_to_multiple_of: 16,
            batch_size: 16,
            gradient_accumulation_steps: 1,
            epochs: 30,
            learning_rate: 0.002,
            warmup_ratio: 0.1,
            ..plain.clone()
        };
        assert_eq!(tiny, made);
        let real = with_flags("tiny", json!({ "model": "Qwen/Qwen2.5-0.5B-Instruct" }));
        let SftConfig { data, sample_prompt, save_merged, save_gguf, .. } = made;
        assert_eq!(real, SftConfig { model: "Qwen/Qwen2.5-0.5B-Instruct".into(), data, sample_prompt, save_merged, save_gguf, ..plain });
        assert_eq!(with_flags("tiny", json!({ "epochs": 2 })), SftConfig { epochs: 2, ..tiny });
    }

    #[test]
    fn f16_is_of_the_base_too() {
        let said = |flags: Value| {
            let flags = Layer { origin: "command line".into(), values: flags.as_object().unwrap().clone() };
            settings(&SettingsArgs { config: None, flags }).unwrap()
        };
        let stored = |flags: Value| said(flags).base_dtype;
        assert_eq!(stored(json!({ "model": "m", "precision": "fp16-pure" })), BaseDtype::F16);
        assert_eq!(stored(json!({ "model": "m", "precision": "fp16-pure", "base_dtype": "nf4" })), BaseDtype::Nf4, "what is asked for");
        assert_eq!(stored(json!({ "model": "m.gguf", "precision": "fp16-pure" })), BaseDtype::Auto, "its own blocks");
        let on_a_card = |flags: Value| said(flags).stored_at(Place::Card).base_dtype;
        let rounded = json!({ "model": "m", "precision": "fp16" });
        assert_eq!((stored(rounded.clone()), on_a_card(rounded)), (BaseDtype::Auto, BaseDtype::F16));
        assert_eq!(on_a_card(json!({ "model": "m", "precision": "fp16", "base_dtype": "nf4" })), BaseDtype::Nf4);
        assert_eq!(on_a_card(json!({ "model": "m", "precision": "fp16", "method": "full" })), BaseDtype::Auto, "trained in f32");
        assert_eq!(on_a_card(json!({ "model": "m", "precision": "fp16", "ranks": 2 })), BaseDtype::Auto, "as the others have it");
        assert_eq!(on_a_card(json!({ "model": "m" })), BaseDtype::Auto);
    }

    #[test]
    fn every_file_of_models_that_names_this_program_is_a_preset_and_valid() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let mut found = 0;
        for path in std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()) {
            let text = std::fs::read_to_string(&path).unwrap();
            if !text.lines().next().unwrap().contains("llm-finetune --config") {
                continue;
            }
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert_eq!(PRESETS.iter().find(|(preset, _)| *preset == name).map(|(_, text)| *text), Some(text.as_str()), "{name}");
            preset(name);
            found += 1;
        }
        assert_eq!(found, PRESETS.len());
    }

    /// Cards of 12 GiB hold the two runs that were on such, and the third.
    #[test]
    fn presets_fit_the_cards_they_are_for() {
        for (name, size) in [("dorothy", "1.5B"), ("worldmodel", "3B"), ("paper_r64", "0.5B")] {
            let (config, model) = (preset(name), Size::named(size).unwrap().shape());
            let (storage, seq) = (Storage::asked(config.base_dtype).unwrap_or(Storage::F32), config.max_seq_length);
            let card = Card::named("RX 6700 XT").unwrap().memory() as f64;
            let mut run = Question { model: &model, config, storage, place: Place::Card, has_f16: true, seq };
            assert!(run.choose(Some(card)).unwrap().peak() < 0.8 * card, "{name}");
        }
    }

    #[test]
    fn presets_are_the_runs_they_are_named_after() {
        let dorothy = preset("dorothy");
        assert!(dorothy.gradient_checkpointing == Checkpointing::Auto && dorothy.sync_launches);
        assert_eq!((dorothy.model.as_str(), dorothy.max_seq_length, dorothy.batch_size), ("Qwen/Qwen2.5-Coder-1.5B-Instruct", 2048, 1));
        let world = preset("worldmodel");
        assert_eq!((world.r, world.lora_alpha, world.batch_size, world.gradient_accumulation_steps), (16, 32.0, 1, 16));
        assert_eq!(world.target_modules, Targets::Names(["q_proj", "k_proj", "v_proj", "o_proj"].map(String::from).into()));
        let paper = preset("paper_r64");
        assert_eq!(paper.gradient_checkpointing, Checkpointing::ALL);
        assert_eq!((paper.precision, paper.base_dtype), (RunPrecision::Fp16Pure, BaseDtype::F16));
        assert_eq!((paper.r, paper.batch_size, paper.gradient_accumulation_steps), (64, 8, 8));
        let wrong = layer("dorothea").unwrap_err().to_string();
        assert!(wrong.contains("dorothea") && wrong.contains("tiny, dorothy, worldmodel, paper_r64"), "{wrong}");
    }
}
