//! What `eval` says of a model: losses against transformers' logits, choices and answers against the model's own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

use crate::support::{host, tokenizer};
use bellows_chat::Template;
use bellows_qwen::config::SftConfig;
use bellows_qwen::eval::{Judge, Right, Scores, table};
use bellows_qwen::generate::{Sampling, generate};
use bellows_qwen::load::load;
use bellows_qwen::model::pass::Pass;
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::peft;
use bellows_qwen::questions::{Asking, Questions, Words};
use bellows_qwen::storage::BaseDtype;
use bellows_weights::read;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde_json::{Value, json};

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen2").join(file)
}

/// The tiny checkpoint of tests/golden, its shape, and it with the adapter.
fn models() -> (CausalLm, CausalLm, ModelConfig) {
    let config = ModelConfig::from_json(&std::fs::read_to_string(golden("model/config.json")).unwrap()).unwrap();
    let weights = read(&golden("model/model.safetensors")).unwrap().tensors;
    let value = |name: &str| weights.get(name).map(|t| (t.shape.clone(), t.to_f32().unwrap()));
    let base = load(CausalLm::new(&config, &Device::flex()), BaseDtype::Auto, false, |name| Ok(value(name))).unwrap();
    let (lora, tensors) = peft::read(&golden("adapter")).unwrap();
    let adapted = peft::attach(base.clone(), &lora, tensors, &golden("adapter")).unwrap();
    (base, adapted, config)
}

/// `Σ −log softmax(logits)[next]` of the places from `start`, and their number.
fn loss_of(logits: &[f32], ids: &[u32], start: usize) -> (f64, usize) {
    let vocab = logits.len() / ids.len();
    let one = |at: usize| {
        let row: Vec<f64> = logits[(at - 1) * vocab..at * vocab].iter().map(|&x| f64::from(x)).collect();
        let top = row.iter().copied().fold(f64::MIN, f64::max);
        top + row.iter().map(|x| (x - top).exp()).sum::<f64>().ln() - row[ids[at] as usize]
    };
    ((start..ids.len()).map(one).sum(), ids.len() - start)
}

fn forward(model: &CausalLm, config: &ModelConfig, ids: &[u32]) -> Vec<f32> {
    let shape = [1, ids.len()];
    let positions: Vec<i32> = (0..ids.len() as i32).collect();
    let pass = Pass::new(shape, &positions, &vec![0; ids.len()], config, &Device::flex());
    let ids = ids.iter().map(|&id| id as i32).collect();
    host(model.forward(Tensor::<2, Int>::from_data(TensorData::new::<i32, _>(ids, shape), &Device::flex()), &pass))
}

fn score(rows: &[Value], model: &CausalLm, shape: &ModelConfig, limit: usize) -> Result<Scores, String> {
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    score_file("rows.jsonl", &text, model, shape, limit)
}

fn score_file(name: &str, text: &str, model: &CausalLm, shape: &ModelConfig, limit: usize) -> Result<Scores, String> {
    let config = SftConfig { batch_size: 2, pad_to_multiple_of: 8, ..SftConfig::default() };
    asked(name, text, &config, limit, |words, questions| {
        Judge { shape, words }.score(model, questions, &Device::flex(), &mut |_, _| {}).map_err(|e| e.to_string())
    })?
}

/// What `of` makes of the questions of a file.
fn asked<T>(name: &str, text: &str, config: &SftConfig, limit: usize, of: impl FnOnce(Words<'_>, &Questions) -> T) -> Result<T, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    let (tokenizer, options) = (tokenizer(), config.encoding().unwrap());
    let asking = Asking { raw: true, thinking: false, max_new_tokens: 4, limit };
    let words = Words { tokenizer: &tokenizer, template: &Template::ChatMl, config, options: &options, asking };
    let questions = words.read(&[path]).map_err(|e| e.to_string())?;
    Ok(of(words, &questions))
}

#[test]
fn losses_are_those_of_transformers_before_and_after_an_adapter() {
    let (base, adapted, shape) = models();
    let case = read(&golden("case.safetensors")).unwrap().tensors;
    let (ids, forward) = (case["input_ids"].clone(), read(&golden("forward.safetensors")).unwrap().tensors);
    // The first row has no padding.
    let seq = ids.shape[1];
    let ids: Vec<u32> = ids.to_f32().unwrap()[..seq].iter().map(|&x| x as u32).collect();
    for (model, key) in [(&base, "base_logits"), (&adapted, "logits")] {
        let logits = forward[key].to_f32().unwrap();
        let (sum, count) = loss_of(&logits[..seq * shape.vocab_size], &ids, 1);
        // A row that is all learnt, and the same once more, of which half is.
        let labels: Vec<i64> = ids.iter().enumerate().map(|(i, &id)| if i < 9 { -100 } else { i64::from(id) }).collect();
        let (half, fewer) = loss_of(&logits[..seq * shape.vocab_size], &ids, 9);
        let scores = score(&[json!({ "input_ids": ids }), json!({ "input_ids": ids, "labels": labels })], model, &shape, 0).unwrap();
        let expected = (sum + half) / (count + fewer) as f64;
        assert!((scores.loss.unwrap() / expected - 1.0).abs() < 1e-5, "{key}: {scores:?} for {expected}");
        assert_eq!((scores.tokens, scores.perplexity), (Some(count + fewer), Some(scores.loss.unwrap().exp())));
        assert_eq!((scores.exact_match, scores.choice), (None, None));
    }
}

#[test]
fn the_likeliest_choice_is_the_answer_and_greedy_answers_are_compared_whole() {
    let (model, _, shape) = models();
    let tokenizer = tokenizer();
    let ids = |text: &str| tokenizer.encode(text, false).unwrap();
    let prompt = "AB=CD";
    let greedy = Sampling { max_new_tokens: 4, temperature: 0.0, ..Sampling::default() };
    let said = tokenizer.decode(&generate(&model, &shape, &ids(prompt), &greedy, &[1], &Device::flex(), |_| true).unwrap(), true).unwrap();
    // What the model would say is the likeliest a byte; in all, a shorter text is.
    let choices = [said.as_str(), "Q", "QR7", "0"];
    let sums: Vec<f64> = choices
        .iter()
        .map(|choice| {
            let all = [ids(prompt), ids(choice)].concat();
            -loss_of(&forward(&model, &shape, &all), &all, prompt.len()).0
        })
        .collect();
    let best = |values: &[f64]| (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b])).unwrap();
    let per_byte: Vec<f64> = sums.iter().zip(choices).map(|(sum, choice)| sum / choice.len() as f64).collect();
    let (likeliest, by_length) = (best(&sums), best(&per_byte));
    assert_ne!(likeliest, by_length, "the case tells both scores apart: {sums:?}");
    let row = |answer: Value| json!({ "prompt": prompt, "choices": choices, "answer": answer });
    let letter = ["A", "B", "C", "D"][likeliest];
    let rows = [row(json!(likeliest)), row(json!(choices[likeliest])), row(json!(letter)), row(json!(by_length))];
    let scores = score(&rows, &model, &shape, 0).unwrap();
    assert_eq!((scores.choice, scores.choice_by_length), (Some(Right { right: 3, rows: 4 }), Some(Right { right: 1, rows: 4 })));
    assert_eq!(score(&rows, &model, &shape, 1).unwrap().choice, Some(Right { right: 1, rows: 1 }));

    let cells = "prompt,choices,answer\nAB=CD,\"[\"\"Q\"\", \"\"QR7\"\"]\",1\nAB=CD,\"[\"\"Q\"\", \"\"QR7\"\"]\",B\n";
    let row = json!({ "prompt": prompt, "choices": ["Q", "QR7"], "answer": 1 });
    let expected = score(&[row.clone(), row], &model, &shape, 0).unwrap().choice;
    assert_eq!(score_file("rows.csv", cells, &model, &shape, 0).unwrap().choice, expected);
    let error = score_file("rows.csv", "prompt,choices,answer\nA,['Q' 'R'],1\n", &model, &shape, 0).unwrap_err();
    assert!(error.contains(":2: `choices`"), "{error}");

    // A row of a table has all of its keys.
    let rows = [
        json!({ "question": prompt, "answer": format!(" {said}\n"), "choices": null, "completion": null, "system": null }),
        json!({ "prompt": prompt, "answer": format!("{said}x"), "question": null }),
    ];
    let scores = score(&rows, &model, &shape, 0).unwrap();
    assert_eq!((scores.exact_match, scores.loss), (Some(Right { right: 1, rows: 2 }), None));
    let learnt = json!({ "problem": "p", "answer": "4", "text": "AB" });
    let told = score(&[learnt], &model, &shape, 0).unwrap();
    assert!(told.loss.is_some() && told.exact_match.is_none(), "a row to learn from is one, whatever it has besides: {told:?}");
    // What is named comes first.
    let named = |text_key: &str, prompt_key: &str, row: Value| {
        let (text_key, prompt_key) = (text_key.into(), prompt_key.into());
        let config = SftConfig { text_key, prompt_key, batch_size: 2, pad_to_multiple_of: 8, ..SftConfig::default() };
        let judged = asked("rows.jsonl", &row.to_string(), &config, 0, |words, questions| {
            Judge { shape: &shape, words }.score(&model, questions, &Device::flex(), &mut |_, _| {}).unwrap()
        });
        judged.unwrap()
    };
    let told = named("story", "prompt", json!({ "question": prompt, "answer": "4", "choices": ["3", "4"], "story": "AB" }));
    assert!(told.loss.is_some() && told.exact_match.is_none() && told.choice.is_none(), "{told:?}");
    let told = named("story", "prompt", json!({ "question": prompt, "answer": said, "story": "" }));
    assert_eq!(told.exact_match, Some(Right { right: 1, rows: 1 }));
    let told = named("text", "problem", json!({ "problem": prompt, "question": 7, "answer": said }));
    assert_eq!(told.exact_match, Some(Right { right: 1, rows: 1 }));
    let lines = table(&scores, Some(&scores));
    assert_eq!(lines, [("exact match", "50.0 % (1 of 2, 9.5 to 90.5)".to_owned(), Some("50.0 % (1 of 2, 9.5 to 90.5)".to_owned()))]);
}

#[test]
fn rows_that_cannot_be_asked_are_named() {
    let (model, _, shape) = models();
    for (row, part) in [
        (json!({ "prompt": "A", "choices": ["B"], "answer": 0 }), ":2: `choices`"),
        (json!({ "prompt": "A", "choices": ["B", 3], "answer": 0 }), ":2: `choices`"),
        (json!({ "prompt": "A", "choices": ["B", ""], "answer": 0 }), ":2: `choices`"),
        (json!({ "prompt": "A", "choices": ["B", "C"], "answer": 2 }), ":2: `answer` is 2"),
        (json!({ "choices": ["B", "C"], "answer": 0 }), ":2: `prompt` is missing"),
        (json!({ "prompt": "A", "answer": 7 }), ":2: `answer` is 7"),
        (json!({ "prompt": "", "choices": ["B", "C"], "answer": 0 }), ":2: `prompt` is empty"),
        (json!({ "question": "", "answer": "B" }), ":2: `question` is empty"),
        (json!({ "prompt": "A", "chosen": "B", "rejected": "C" }), ":2: the row is a pair of answers; expected one answer: eval judges"),
    ] {
        let error = score(&[json!({ "text": "A" }), row], &model, &shape, 0).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    // Or left out and counted, as far as they are accidents.
    let skipped = |rows: usize| {
        let text = "{\"text\": \"A\"}\n".to_owned() + "{\"prompt\": \"A\", \"answer\": 7}\n" + &"{\"text\": \"A\"}\n".repeat(rows - 2);
        let config = SftConfig { skip_bad_rows: true, ..SftConfig::default() };
        asked("rows.jsonl", &text, &config, 0, |_, questions| questions.left.skipped())
    };
    let lines = skipped(100).unwrap();
    assert!(lines.len() == 2 && lines[0].contains("1 of 100 rows") && lines[1].contains(":2: `answer` is 7"), "{lines:?}");
    assert!(skipped(99).unwrap_err().contains("1 of 99 rows cannot be used"));
}
