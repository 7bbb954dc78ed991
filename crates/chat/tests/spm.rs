//! SentencePiece's BPE against the ids of Hugging Face's `tokenizers`, from a directory and through a GGUF's values.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use bellows_chat::{
    Conversation, EncodeOptions, Example, Message, Outcome, Place, RenderOptions, Role, Template, TokenType, Tokenizer, Vocabulary, encode,
    encode_prompt,
};
use serde_json::{Value, json};

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/spm").join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

/// The fixture with another normaliser and pre-tokeniser.
fn variant(normalizer: Value, pre_tokenizer: Value) -> Tokenizer {
    let mut file = read("tokenizer.json");
    (file["normalizer"], file["pre_tokenizer"]) = (normalizer, pre_tokenizer);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    Tokenizer::from_file(&dir.path().join("tokenizer.json")).unwrap()
}

fn metaspace(scheme: &str, split: bool) -> Tokenizer {
    variant(Value::Null, json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}))
}

fn agrees(tokenizer: &Tokenizer, key: &str) {
    let golden = read("golden.json");
    for (text, ids) in golden["texts"].as_array().unwrap().iter().zip(golden[key].as_array().unwrap()) {
        let ids: Vec<u32> = ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(tokenizer.encode(text.as_str().unwrap(), true).unwrap(), ids, "{key} {text}");
    }
}

#[test]
fn ids_are_those_of_the_library_and_stay_through_a_gguf() {
    let tokenizer = Tokenizer::from_dir(&fixture("")).unwrap();
    agrees(&tokenizer, "prepend");
    let vocabulary = tokenizer.vocabulary(480).unwrap();
    assert_eq!((vocabulary.model(), vocabulary.space_prefix, vocabulary.add_bos, vocabulary.unk), ("llama", true, true, Some(0)));
    assert!(tokenizer.vocabulary_differs(&vocabulary).unwrap().is_empty());
    let kinds = |kind| vocabulary.types.iter().filter(|&&k| k == kind).count();
    let all = [TokenType::Unknown, TokenType::Control, TokenType::UserDefined, TokenType::Byte, TokenType::Unused].map(kinds);
    assert_eq!(all, [1, 2, 2, 256, 36]);
    // As SentencePiece has them: 0 for what is not made of text, then one less for each token.
    assert_eq!(vocabulary.scores[..3], [0.0; 3]);
    assert_eq!(vocabulary.scores[259..262], [0.0, -1.0, -2.0]);

    let back = Tokenizer::from_gguf_vocab(&vocabulary).unwrap();
    agrees(&back, "prepend");
    assert_eq!(back.vocabulary(480).unwrap(), vocabulary);
    assert_eq!((back.bos(), back.eos(), back.leading_bos()), (Some(1), Some(2), Some(1)));
    let golden = read("golden.json");
    for (ids, text) in golden["prepend"].as_array().unwrap().iter().zip(golden["decoded"].as_array().unwrap()) {
        let ids: Vec<u32> = ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(back.decode(&ids, false).unwrap(), text.as_str().unwrap());
    }
    // Nobody forges an end of text.
    assert!(!back.encode("</s>", false).unwrap().contains(&2));
    // A tokenizer.json of it begins texts where no tokenizer_config.json is read.
    let dir = tempfile::tempdir().unwrap();
    back.save(dir.path()).unwrap();
    let file: Value = serde_json::from_slice(&std::fs::read(dir.path().join("tokenizer.json")).unwrap()).unwrap();
    assert_eq!(file["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");
    agrees(&Tokenizer::from_dir(dir.path()).unwrap(), "prepend");
}

#[test]
fn spaces_are_put_where_the_file_says() {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let cases = [
        ("plain", variant(replace, Value::Null), false),
        ("never", metaspace("never", false), false),
        ("first", metaspace("first", false), true),
    ];
    for (key, tokenizer, prefix) in cases {
        agrees(&tokenizer, key);
        let vocabulary = tokenizer.vocabulary(480).unwrap();
        assert_eq!(vocabulary.space_prefix, prefix, "{key}");
        assert_eq!(tokenizer.vocabulary_differs(&vocabulary).unwrap().len(), usize::from(key == "first"), "{key}");
        agrees(&Tokenizer::from_gguf_vocab(&vocabulary).unwrap(), if prefix { "prepend" } else { "plain" });
    }
    for other in [metaspace("always", true), variant(json!({"type": "NFC"}), Value::Null)] {
        assert!(other.vocabulary(480).unwrap_err().to_string().contains("no GGUF writes spaces"));
    }
}

#[test]
fn a_completion_goes_on_where_its_prompt_ends() {
    let configured = Tokenizer::from_dir(&fixture("")).unwrap();
    let golden = &read("golden.json")["continued"];
    for (key, tokenizer) in [("prepend", configured), ("first", metaspace("first", false)), ("always", metaspace("always", false))] {
        for (texts, ids) in golden["texts"].as_array().unwrap().iter().zip(golden[key].as_array().unwrap()) {
            let completion = texts[1].as_str().unwrap();
            let ids: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
            let tokens = tokenizer.tokens(completion, false, Place::Middle).unwrap();
            assert_eq!(tokens.iter().map(|token| token.id).collect::<Vec<_>>(), ids, "{key} {completion:?}");
            assert_eq!(tokens.last().unwrap().end, completion.len());
            // What is learnt of such a row is that, and the end of the text.
            let prompt = texts[0].as_str().unwrap().to_owned();
            let example = Example::Prompt { prompt, completion: completion.to_owned() };
            let outcome = encode(&example, &tokenizer, &Template::ChatMl, &EncodeOptions::default()).unwrap();
            let Outcome::Kept(kept) = outcome else { panic!() };
            let learnt = kept[0].ids.iter().zip(&kept[0].trained).filter(|(_, trained)| **trained).map(|(&id, _)| id);
            assert_eq!(learnt.collect::<Vec<_>>(), ids.iter().copied().chain(tokenizer.eos()).collect::<Vec<_>>(), "{key} {completion:?}");
        }
    }
}

#[test]
fn a_chat_in_pieces_has_the_ids_of_its_text() {
    let messages = vec![Message::new(Role::User, "the iron"), Message::new(Role::Assistant, "glows"), Message::new(Role::User, " 3?")];
    let conversation = Conversation { messages, tools: vec![] };
    let options = RenderOptions { generation_prompt: true, ..RenderOptions::default() };
    let configured = Tokenizer::from_dir(&fixture("")).unwrap();
    let template = Template::detect(&configured, None).unwrap();
    let text = template.render(&conversation, options).unwrap();
    assert_eq!(text, "<|user|>\nthe iron</s>\n<|assistant|>\nglows</s>\n<|user|>\n 3?</s>\n<|assistant|>\n");
    for tokenizer in [configured, metaspace("first", false), metaspace("always", false)] {
        let ids = encode_prompt(&conversation, &tokenizer, &template, options).unwrap();
        assert_eq!(ids, tokenizer.encode(&text, true).unwrap());
    }
}

/// As the files of the first Llama have them: for the library `</s>` is `▁</s>` then.
#[test]
fn special_tokens_that_are_normalised_stay_as_they_are_written() {
    let mut file = read("tokenizer.json");
    file["added_tokens"].as_array_mut().unwrap().iter_mut().for_each(|token| token["normalized"] = true.into());
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    std::fs::copy(fixture("tokenizer_config.json"), dir.path().join("tokenizer_config.json")).unwrap();
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    assert_eq!((tokenizer.token(2).as_deref(), tokenizer.is_special(2)), (Some("</s>"), true));
    assert_eq!([true, false].map(|skip| tokenizer.stream(skip).push(2)), ["", "</s>"]);
    assert!(!tokenizer.decode(&[262, 2], true).unwrap().contains("</s>"));
    let prompt = |tokenizer: &Tokenizer| {
        let conversation = Conversation { messages: vec![Message::new(Role::User, "the iron")], tools: vec![] };
        encode_prompt(&conversation, tokenizer, &Template::detect(tokenizer, None).unwrap(), RenderOptions::default()).unwrap()
    };
    assert_eq!(prompt(&tokenizer), prompt(&Tokenizer::from_dir(&fixture("")).unwrap()));
    tokenizer.save(dir.path()).unwrap();
    let back = Tokenizer::from_dir(dir.path()).unwrap();
    assert_eq!((back.bos(), back.eos(), back.pad()), (Some(1), Some(2), Some(2)));
}

#[test]
fn tokens_that_are_added_are_recognised_wherever_they_stand() {
    let mut tokenizer = Tokenizer::from_dir(&fixture("")).unwrap();
    assert_eq!(tokenizer.add(&["<ore>".into()]).unwrap(), 1);
    let id = tokenizer.id("<ore>").unwrap();
    for text in ["<ore>", "(<ore>)", "\n<ore>", "x<ore>y"] {
        for place in [Place::Start, Place::AfterSpecial, Place::Middle] {
            assert!(tokenizer.ids(text, false, place).unwrap().contains(&id), "{text:?} {place:?}");
        }
    }
    assert_eq!(tokenizer.stream(false).push(id), "<ore>");
}

#[test]
fn pairs_that_scores_cannot_keep_apart_are_told() {
    let mut file = read("tokenizer.json");
    file["model"]["merges"].as_array_mut().unwrap().retain(|pair| *pair != json!(["th", "e"]));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    let tokenizer = Tokenizer::from_file(&dir.path().join("tokenizer.json")).unwrap();
    let lines = tokenizer.vocabulary_differs(&tokenizer.vocabulary(480).unwrap()).unwrap();
    assert!(lines.len() == 1 && lines[0].contains("joins 1 pairs") && lines[0].contains("`th` and `e`"), "{lines:?}");
}

#[test]
fn damaged_vocabularies_are_refused() {
    let good = Tokenizer::from_dir(&fixture("")).unwrap().vocabulary(480).unwrap();
    let refused = |change: fn(&mut Vocabulary), part: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = Tokenizer::from_gguf_vocab(&bad).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(|v| v.scores.truncate(3), "480 tokens and 3 scores");
    refused(|v| v.unk = Some(480), "special id is 480");
    refused(|v| v.tokens[300] = "a".repeat(1 << 20), "1048576 characters long");
    let runs: Vec<String> = (1..=200).map(|n| "a".repeat(n)).collect();
    let many = Vocabulary { types: vec![TokenType::Normal; 200], scores: vec![0.0; 200], tokens: runs, ..good.clone() };
    assert!(Tokenizer::from_gguf_vocab(&many).unwrap_err().to_string().contains("over 64 merges each"));
    let odd = Vocabulary { scores: vec![f32::NAN; 480], ..good };
    assert!(Tokenizer::from_gguf_vocab(&odd).is_ok(), "no order at all is an order");
}
