//! What becomes of the rows of data sets: those that cannot be used, those that were there before, several sets in one, examples in a file.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

use crate::support::{ending, settings};
use bellows_chat::{ChatError, Encoded, Template, Tokenizer};
use bellows_qwen::base::Base;
use bellows_qwen::config::SftConfig;
use bellows_qwen::data::{Encoding, LISTED, SftData};
use bellows_qwen::examples::Examples;
use bellows_qwen::preference::Objective;
use bellows_qwen::train::Finetune;
use bellows_runs::RunDir;
use burn::tensor::Device;

fn tokenizer() -> Tokenizer {
    Tokenizer::byte_level([], 0).unwrap()
}

fn open(config: &SftConfig) -> Result<SftData, ChatError> {
    let (options, tokenizer) = (config.encoding().unwrap(), tokenizer());
    SftData::open(
        config,
        &paths(config),
        Encoding { options: &options, tokenizer: &tokenizer, template: &Template::ChatMl },
        &mut |_, _| {},
    )
}

fn paths(config: &SftConfig) -> Vec<PathBuf> {
    config.data.iter().map(PathBuf::from).collect()
}

fn write(dir: &Path, name: &str, rows: impl IntoIterator<Item = String>) -> String {
    let path: PathBuf = dir.join(name);
    std::fs::write(&path, rows.into_iter().map(|row| row + "\n").collect::<String>()).unwrap();
    path.display().to_string()
}

fn text(text: impl std::fmt::Display) -> String {
    serde_json::json!({ "text": text.to_string() }).to_string()
}

fn all(examples: &Examples) -> Vec<Encoded> {
    examples.iter().map(|example| example.unwrap().into_owned()).collect()
}

/// The texts of examples, in order.
fn said(examples: &Examples) -> Vec<String> {
    let tokenizer = tokenizer();
    all(examples).iter().map(|example| tokenizer.decode(&example.ids, true).unwrap()).collect()
}

#[test]
fn rows_that_cannot_be_used_are_counted_listed_and_too_many_stop() {
    let dir = tempfile::tempdir().unwrap();
    let rows = |bad: usize| (0..300).map(move |i| if i < bad { format!("{{\"text\": {i}}}") } else { text(i) });
    let config =
        |bad, skip_bad_rows| SftConfig { data: vec![write(dir.path(), "a.jsonl", rows(bad))], skip_bad_rows, ..SftConfig::default() };
    assert!(open(&config(1, false)).unwrap_err().to_string().contains("a.jsonl:1: `text` is 0"));
    let data = open(&config(3, true)).unwrap();
    assert_eq!((data.train.len(), data.left.bad), (297, 3));
    let lines = data.summary(Objective::Sft);
    assert!(lines[1].starts_with("warning: 3 of 300 rows cannot be used") && lines.len() == 5, "{lines:?}");
    assert!(lines[4].contains("a.jsonl:3: `text` is 2"), "{lines:?}");
    let error = open(&config(4, true)).unwrap_err().to_string();
    assert!(error.starts_with("4 of 300 rows cannot be used, and more than 1 %") && error.contains("a.jsonl:1: "), "{error}");

    let many = (0..3000).map(|i| if i < LISTED + 5 { "{".to_owned() } else { text(i) });
    let config = SftConfig { data: vec![write(dir.path(), "b.jsonl", many)], skip_bad_rows: true, ..SftConfig::default() };
    let lines = open(&config).unwrap().summary(Objective::Sft);
    assert_eq!((lines.len(), lines.last().unwrap().as_str()), (LISTED + 3, "  and 5 more"));

    // A row of a table with a cell too many or too few is one row.
    let cells = (0..300).map(|i| ["prompt,completion".into(), "a".into(), "a,b,c".into()].get(i).cloned().unwrap_or(format!("a,b{i}")));
    let config = SftConfig { data: vec![write(dir.path(), "c.csv", cells)], skip_bad_rows: true, ..SftConfig::default() };
    let data = open(&config).unwrap();
    assert_eq!((data.train.len(), data.left.bad), (297, 2));
    assert!(data.summary(Objective::Sft)[2].contains("c.csv:2: CSV: 1 cells; the header has 2"), "{:?}", data.summary(Objective::Sft));
}

/// They are encoded in pieces, on all cores.
#[test]
fn rows_keep_their_order_and_the_first_that_is_wrong_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let open = |rows: &mut dyn Iterator<Item = String>| {
        open(&SftConfig { data: vec![write(dir.path(), "a.jsonl", rows)], ..SftConfig::default() })
    };
    let texts: Vec<String> = (0..2500).map(|i| i.to_string()).collect();
    assert_eq!(said(&open(&mut texts.iter().map(text)).unwrap().train), texts);
    // The first can be read and not be encoded, the second not even be read.
    let wrong = ["{\"input_ids\": [5]}", "{"].map(String::from);
    let error = open(&mut texts[..2000].iter().map(text).chain(wrong)).unwrap_err().to_string();
    assert!(error.contains("a.jsonl:2001: none of the 1 tokens is trained"), "{error}");
}

#[test]
fn a_row_that_says_what_an_earlier_one_said_is_left_out_on_request() {
    let dir = tempfile::tempdir().unwrap();
    // The same text once as text (all of it learnt) and once as a completion (the end of it): not the same to learn.
    let prompt = serde_json::json!({ "prompt": "a", "completion": "b" }).to_string();
    let data = vec![
        write(dir.path(), "a.jsonl", [text("ab"), text("c"), text("ab"), prompt]),
        write(dir.path(), "b.jsonl", [text("c"), text("d")]),
    ];
    let config = SftConfig { data, ..SftConfig::default() };
    assert_eq!(open(&config).unwrap().train.len(), 6);
    let once = open(&SftConfig { deduplicate: true, ..config }).unwrap();
    assert_eq!((said(&once.train), once.left.duplicates), (["ab", "c", "ab", "d"].map(String::from).to_vec(), 2));
    assert!(once.summary(Objective::Sft)[0].ends_with("0 left out, 2 said before"), "{:?}", once.summary(Objective::Sft));
}

/// As wikitext has them: a third of its rows.
#[test]
fn empty_texts_are_left_out_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let rows = ["", "a", "", "b", ""].map(text);
    let data = open(&SftConfig { data: vec![write(dir.path(), "a.jsonl", rows)], ..SftConfig::default() }).unwrap();
    assert_eq!((said(&data.train), data.left.dropped, data.left.empty), (vec!["a".to_owned(), "b".to_owned()], 3, 3));
    assert!(data.summary(Objective::Sft)[0].ends_with("0 truncated, 3 left out"), "{:?}", data.summary(Objective::Sft));
}

#[test]
fn a_pair_of_answers_is_one_example() {
    let dir = tempfile::tempdir().unwrap();
    let row = |i: usize| serde_json::json!({ "prompt": "a", "chosen": format!("b{i}"), "rejected": "c" }).to_string();
    let data = vec![write(dir.path(), "pairs.jsonl", (0..5).map(row))];
    let config = SftConfig { data, objective: Objective::Orpo, val_size: 2.0, ..SftConfig::default() };
    let data = open(&config).unwrap();
    let line = data.summary(config.objective).remove(0);
    assert!(data.pairs && line.starts_with("3 pairs to train on (") && line.contains(" 2 to judge by ("), "{line}");
}

#[test]
fn sets_are_mixed_by_their_probabilities() {
    let dir = tempfile::tempdir().unwrap();
    let of =
        |name: &'static str, count: usize| write(dir.path(), &format!("{name}.jsonl"), (0..count).map(|i| text(format_args!("{name}{i}"))));
    let config = SftConfig { data: vec![of("a", 40), of("b", 400)], data_probabilities: vec![0.5, 0.5], ..SftConfig::default() };
    config.validate().unwrap();
    let count = |data: &SftData, name: &str| said(&data.train).iter().filter(|text| text.starts_with(name)).count();
    let first = open(&config).unwrap();
    assert!(count(&first, "a") == 40 && (20..80).contains(&count(&first, "b")), "{}", count(&first, "b"));
    let every = open(&SftConfig { stopping_strategy: "all_exhausted".into(), ..config.clone() }).unwrap();
    assert!(count(&every, "b") == 400 && count(&every, "a") > 200, "{}", count(&every, "a"));
    // Nobody means an epoch of 400 million rows, and no memory holds many more.
    let odds = SftConfig { data_probabilities: vec![1.0, 0.000001], ..config.clone() };
    assert_eq!(count(&open(&odds).unwrap(), "a"), 40);
    let error = open(&SftConfig { stopping_strategy: "all_exhausted".into(), ..odds }).unwrap_err().to_string();
    assert!(error.starts_with("data_probabilities is 1,0.000001 with all_exhausted, which makes an epoch of 400000400 rows"), "{error}");
    // So much larger may one set be, and its epoch is no longer than twice its rows.
    let unlike = SftConfig { data: vec![of("c", 1), of("d", 3000)], stopping_strategy: "all_exhausted".into(), ..config.clone() };
    assert_eq!(count(&open(&unlike).unwrap(), "d"), 3000);
    let weighed = |weights: [f64; 2]| SftConfig { data_probabilities: Vec::new(), data_weights: weights.into(), ..config.clone() };
    assert_eq!(count(&open(&weighed([0.02, 1.0])).unwrap(), "a"), 1);
    let error = open(&weighed([0.01, 1.0])).unwrap_err().to_string();
    assert!(error.contains("a.jsonl: data_weights is 0.01 for 40 rows, of which none is left"), "{error}");
    for (wrong, part) in [
        (SftConfig { data_probabilities: vec![1.0], ..config.clone() }, "one probability a data set"),
        (SftConfig { data_probabilities: vec![1.0, 0.0], ..config.clone() }, "data_probabilities: 0"),
        (SftConfig { data_weights: vec![1.0, 1.0], ..config.clone() }, "exclude each other"),
        (SftConfig { stopping_strategy: "never".into(), ..config.clone() }, "stopping_strategy"),
    ] {
        let error = wrong.validate().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// Data, order and weights are the same to the bit, whether examples are in memory or in a file, and a run goes on from one with the other.
#[test]
fn examples_in_a_file_train_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let data = vec![write(dir.path(), "a.jsonl", (0..10).map(|i| text("iron glows ".repeat(1 + i % 5))))];
    let config = |streaming| SftConfig { data: data.clone(), val_size: 2.0, data_weights: vec![1.5], streaming, epochs: 1, ..settings() };
    let (held, stored) = (open(&config(false)).unwrap(), open(&config(true)).unwrap());
    assert!(all(&held.train) == all(&stored.train) && all(&held.valid) == all(&stored.valid) && held.valid.len() == 2);
    let mut weights = Vec::new();
    for (name, streaming) in [("memory", false), ("file", true)] {
        let device = Device::flex();
        let base = Base::tiny(["iron glows"], 0, &device).unwrap();
        let (config, dir) = (config(streaming), RunDir::create(dir.path(), name, false).unwrap());
        let options = config.encoding().unwrap();
        let encoding = Encoding { options: &options, tokenizer: &base.tokenizer, template: &Template::ChatMl };
        let data = SftData::open(&config, &paths(&config), encoding, &mut |_, _| {}).unwrap();
        let mut run = Finetune::new(config, base, data, Template::ChatMl, &device, dir).unwrap();
        run.run().unwrap();
        weights.push(ending(&mut run));
    }
    assert!(weights[0] == weights[1]);
}
