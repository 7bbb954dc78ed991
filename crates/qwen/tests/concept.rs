//! A concept from two sets of prompts to a model without it: found, scored, taken out, written, read again.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use bellows_chat::Template;
use bellows_qwen::base::Base;
use bellows_qwen::concept::ConceptError;
use bellows_qwen::concept::direction::{Place, candidates, common_end, find, separation};
use bellows_qwen::concept::edit::{Ablation, steer};
use bellows_qwen::concept::files::{Found, digest, read_scores, record, write_control_vector, write_model, write_scores};
use bellows_qwen::concept::judge::judge;
use bellows_qwen::concept::prompts::{EncodedSets, PromptSets};
use bellows_qwen::concept::reader::Reader;
use bellows_qwen::concept::score::{marker_ids, score};
use bellows_qwen::export::{write_gguf, write_transformers};
use bellows_weights::DType;
use bellows_weights::gguf::{Gguf, Preset};
use burn::tensor::{Device, Tensor, TensorData};

fn quiet(_: usize, _: usize) {}

/// Prompts with `aa` in them against prompts with `bb`.
fn sets(dir: &Path) -> PromptSets {
    let lines = |word: &str| {
        (0..24).map(|i| format!("{word} {word} {}\n", ["one", "two", "three", "four"][i % 4].repeat(1 + i / 4))).collect::<String>()
    };
    std::fs::write(dir.join("target.txt"), lines("aa")).unwrap();
    std::fs::write(dir.join("baseline.txt"), lines("bb")).unwrap();
    std::fs::write(dir.join("markers.txt"), "aa\n").unwrap();
    std::fs::write(dir.join("guard.txt"), "one two three four one two three four").unwrap();
    PromptSets::open(dir).unwrap()
}

/// A made-up model in which the embedding of the token `aa` leans far to one side, and one layer copies what it reads there.
fn base(device: &Device) -> Base {
    let mut base = Base::tiny(["aa aa bb bb one two three four"], 3, device).unwrap();
    let h = base.config.hidden_size;
    let id = base.tokenizer.encode("aa", false).unwrap()[0] as usize;
    let weight = base.model.model.embed_tokens.weight.clone();
    base.model.model.embed_tokens.weight = weight.map(|old| {
        let [v, _] = old.dims();
        let lean = (0..v * h).map(|i| if i / h == id { if i % 2 == 0 { 0.4 } else { -0.4 } } else { 0.0f32 }).collect::<Vec<_>>();
        old + Tensor::from_data(TensorData::new(lean, [v, h]), device)
    });
    base
}

fn found(base: &Base, encoded: &EncodedSets, device: &Device) -> Found {
    let reader = Reader { model: &base.model, config: &base.config, device };
    let positions = common_end(encoded);
    let directions = find(reader, &encoded.target.found_on, &encoded.baseline.found_on, positions, &mut quiet).unwrap();
    let separations = separation(reader, &directions, &encoded.target.held_out, &encoded.baseline.held_out, &mut quiet).unwrap();
    let chosen = candidates(&separations, directions.layers).into_iter().max_by(|a, b| a.effect.total_cmp(&b.effect)).unwrap().place;
    Found {
        tool: "a test".into(),
        model: "made".into(),
        concept: "words".into(),
        prompts_sha256: digest(encoded),
        target: [18, 6],
        baseline: [18, 6],
        separations,
        chosen,
        directions,
    }
}

#[test]
fn from_prompts_to_an_edited_model_that_says_so() {
    let (dir, device) = (tempfile::tempdir().unwrap(), Device::flex());
    let (sets, base) = (sets(dir.path()), base(&device));
    let encoded = sets.encode(&base.tokenizer, Some(&Template::ChatMl), 0).unwrap();
    let found = found(&base, &encoded, &device);
    assert!(found.separations.iter().any(|s| s.place == found.chosen && s.auc > 0.9), "{:?}", found.separations);

    // On disk and back.
    let concept = dir.path().join("concept");
    assert!(!Found::is_in(&concept));
    found.write(&concept).unwrap();
    assert_eq!(Found::read(&concept).unwrap(), found);
    assert!(std::fs::read(concept.join("separation.png")).unwrap().starts_with(b"\x89PNG"));

    // Scores are those of the edit itself.
    let edit = Ablation { layers: "0-2".parse().unwrap(), ..Ablation::default() };
    let reader = Reader { model: &base.model, config: &base.config, device: &device };
    let markers = marker_ids(&sets.markers, &base.tokenizer).unwrap();
    let (all, mut told) = (candidates(&found.separations, 4), 0);
    let scores = score(reader, &found.directions, &all, &encoded, &markers, &edit, &mut |done, _| told = done).unwrap();
    assert_eq!((scores.candidates.len(), told, read_scores(&concept).unwrap()), (all.len(), all.len(), None));
    write_scores(&concept, &scores).unwrap();
    assert_eq!(read_scores(&concept).unwrap(), Some(scores.clone()));
    assert!(scores.candidates.iter().all(|s| s.divergence >= -1e-6 && s.ablation.is_finite()), "{scores:?}");
    let none = score(reader, &found.directions, &all, &encoded, &[], &edit, &mut quiet).unwrap_err();
    assert!(matches!(none, ConceptError::Setting(text) if text.contains("markers.txt")));

    // Taken out, written, read: nothing of it is written by the edited layers, and the model says what was done to it.
    let unit = found.directions.unit(found.chosen).unwrap();
    let edited = edit.apply(base.model.clone(), &unit).unwrap();
    let note = record(&found, found.chosen, &edit, "another model", "a test").unwrap();
    let out = dir.path().join("edited");
    // As of a process of the highest number, which none has.
    let mine = bellows_runs::part_of(&out).unwrap().to_string_lossy().into_owned();
    let left = std::path::PathBuf::from(mine.replace(&format!("-{}-", std::process::id()), "-2147483646-"));
    std::fs::create_dir(&left).unwrap();
    write_model(&out, &edited, &base.config, note.clone(), &base.tokenizer, DType::F32).unwrap();
    assert!(!left.exists() && out.join("README.md").is_file());
    let again = write_model(&out, &edited, &base.config, note.clone(), &base.tokenizer, DType::F32).unwrap_err();
    assert!(again.to_string().contains("is there already"));
    let read = Base::open(&out, &device).unwrap();
    assert_eq!(read.config.edits, std::slice::from_ref(&note));
    let card = std::fs::read_to_string(out.join("README.md")).unwrap();
    for words in ["edited-weights", "words", "another model", "layers 0-2", &note.direction_sha256] {
        assert!(card.contains(words), "no {words} in {card}");
    }
    let weight: Vec<f32> = read.model.model.layers[1].mlp.down_proj.weight.val().into_data().try_into_vec_as().unwrap();
    let columns = weight.len() / unit.len();
    let along = (0..columns).map(|j| unit.iter().enumerate().map(|(i, r)| r * f64::from(weight[i * columns + j])).sum::<f64>().abs());
    assert!(along.fold(0.0, f64::max) < 1e-6);

    // It goes with the model into a GGUF, and comes back out of it.
    let file = dir.path().join("m.gguf");
    write_gguf(&file, &read.model, &read.config, &read.tokenizer, Preset::F16, "m").unwrap();
    let metadata = Gguf::open(&file).unwrap();
    assert!(metadata.metadata()["general.description"].as_str().unwrap().contains("direction between the prompt sets of \"words\""));
    assert_eq!(Base::shape(&file).unwrap().edits, [note]);

    // What it says is counted.
    let template = Template::ChatMl;
    let words = (&base.tokenizer, Some(&template));
    let verdict = judge(Reader { model: &read.model, ..reader }, words, &sets, &encoded, 3, &mut quiet).unwrap();
    assert_eq!((verdict.target.unwrap().of, verdict.baseline_answers.len()), (6, 6));
    assert!(verdict.perplexity.unwrap() > 1.0);

    // The card goes when a model without edits takes the place; another's stays.
    let card = out.join("README.md");
    let replace = || write_transformers(&out, &base.model, &base.config, &base.tokenizer, DType::F32).unwrap();
    replace();
    assert!(!card.exists());
    std::fs::write(&card, "# Mine\n").unwrap();
    replace();
    assert_eq!(std::fs::read_to_string(&card).unwrap(), "# Mine\n");
}

#[test]
fn a_vector_that_is_added_moves_the_next_word_and_goes_to_llama_cpp() {
    let (dir, device) = (tempfile::tempdir().unwrap(), Device::flex());
    let (sets, base) = (sets(dir.path()), base(&device));
    let encoded = sets.encode(&base.tokenizer, None, 0).unwrap();
    let place = Place { layer: 2, position: 1 };
    let vector: Vec<f64> = (0..base.config.hidden_size).map(|i| if i % 2 == 0 { 0.5 } else { -0.5 }).collect();
    let reader = Reader { model: &base.model, config: &base.config, device: &device };
    let id = base.tokenizer.encode("aa", false).unwrap()[0] as usize;
    let prompts = &encoded.baseline.held_out;
    let likelihood = |model| Reader { model, ..reader }.next(prompts).unwrap().iter().map(|p| f64::from(p[id])).sum::<f64>();
    let steered = steer(base.model.clone(), place.layer, &vector).unwrap();
    assert!(likelihood(&steered) > likelihood(&base.model) + 1.0, "the tied head reads the direction as the word");
    let file = dir.path().join("vector.gguf");
    write_control_vector(&file, &vector, place, &base.config, "words").unwrap();
    let written = Gguf::open(&file).unwrap();
    assert_eq!(written.metadata()["general.architecture"].as_str(), Some("controlvector"));
    let values = written.tensor_f32("direction.1").unwrap();
    assert!(values.iter().zip(&vector).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6) && values.len() == vector.len());
    let early = write_control_vector(&file, &vector, Place { layer: 1, position: 1 }, &base.config, "words");
    assert!(early.unwrap_err().to_string().contains("layer 1"));
}
