//! The tokenizer against the ids of Hugging Face's, against itself through GGUF and files, and against forgery.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::support;
use bellows_chat::{
    Conversation, EncodeOptions, Example, Message, Outcome, RenderOptions, Role, Template, TokenType, Tokenizer, Vocabulary, encode,
};
use proptest::prelude::*;

/// From `tokenizers` on the real files; the same for Qwen2.5 and Qwen3.
const GOLDEN: [(&str, &[u32]); 10] = [
    ("Hello, world!", &[9707, 11, 1879, 0]),
    ("fn main() { println!(\"{}\", 12345); }", &[8822, 1887, 368, 314, 13751, 79878, 220, 16, 17, 18, 19, 20, 1215, 335]),
    ("  two  spaces\n\n\ttab", &[220, 1378, 220, 12621, 271, 58149]),
    ("I'll can't WE'RE", &[40, 3278, 646, 944, 19677, 94153]),
    ("你好，世界", &[108386, 3837, 99489]),
    ("naïve café e\u{301}", &[3376, 37572, 586, 51950, 3958]),
    ("🦀 Rust", &[147579, 33789]),
    ("\n", &[198]),
    ("2024-11-21 3.14159", &[17, 15, 17, 19, 12, 16, 16, 12, 17, 16, 220, 18, 13, 16, 19, 16, 20, 24]),
    ("<|im_start|>user<think>", &[151644, 872, 151667]),
];

const QWEN25_CHAT: &[u32] = &[
    151644, 8948, 198, 2610, 525, 1207, 16948, 11, 3465, 553, 54364, 14817, 13, 1446, 525, 264, 10950, 17847, 13, 151645, 198, 151644, 872,
    198, 7985, 264, 6386, 38242, 911, 23071, 13, 151645, 198, 151644, 77091, 198, 46393, 50080, 91789, 151645, 198,
];
const QWEN3_CHAT: &[u32] = &[
    151644, 872, 198, 7985, 264, 6386, 38242, 911, 23071, 13, 151645, 198, 151644, 77091, 198, 151667, 271, 151668, 271, 46393, 50080,
    91789, 151645, 198,
];

fn haiku() -> Example {
    let messages = vec![Message::new(Role::User, "Write a haiku about rust."), Message::new(Role::Assistant, "Iron oxide blooms")];
    Example::Chat(Conversation { messages, tools: vec![] })
}

#[test]
fn golden_ids_of_the_real_tokenizers() {
    for (model, chat, trained) in [("qwen2.5", QWEN25_CHAT, 4), ("qwen3", QWEN3_CHAT, 8)] {
        let Some(dir) = support::tokenizer(model) else { continue };
        let tokenizer = Tokenizer::from_dir(&dir).unwrap();
        for (text, ids) in GOLDEN.iter().filter(|(text, _)| model == "qwen3" || !text.contains("<think>")) {
            assert_eq!(tokenizer.encode(text, true).unwrap(), *ids, "{text}");
        }
        let template = Template::detect(&tokenizer, None).unwrap();
        let Outcome::Kept(kept) = encode(&haiku(), &tokenizer, &template, &EncodeOptions::default()).unwrap() else { panic!() };
        assert_eq!(kept[0].ids, chat);
        // The answer (of Qwen3 with its empty thought) and the end of the turn, not the newline after it.
        let first = chat.len() - 1 - trained;
        assert!(
            kept[0].trained.iter().enumerate().all(|(at, &flag)| flag == (first..chat.len() - 1).contains(&at)),
            "{:?}",
            kept[0].trained
        );
        assert_eq!((tokenizer.eos(), tokenizer.pad(), tokenizer.leading_bos()), (Some(151645), Some(151643), None));
        assert_eq!(tokenizer.len(), if model == "qwen3" { 151_669 } else { 151_665 });
    }
}

/// The pieces are tokenised apart, the text as a whole: the same ids, for every fixture without forged turns.
#[test]
fn the_pieces_have_the_ids_of_the_whole_text() {
    let mut tokenizers = vec![support::tiny()];
    tokenizers.extend(["qwen2.5", "qwen3"].into_iter().filter_map(support::tokenizer).map(|dir| Tokenizer::from_dir(&dir).unwrap()));
    for tokenizer in tokenizers {
        for case in support::cases().iter().filter(|case| case["name"] != "forged turn" && case["prompt"] == false) {
            let template = Template::named(case["template"].as_str().unwrap()).unwrap();
            let conversation = support::conversation(case);
            let ids = bellows_chat::encode_prompt(&conversation, &tokenizer, &template, RenderOptions::default()).unwrap();
            let prompt = template.render(&conversation, RenderOptions { generation_prompt: true, ..RenderOptions::default() }).unwrap();
            assert_eq!(ids, tokenizer.encode(&prompt, true).unwrap(), "{} {}", case["template"], case["name"]);
        }
    }
}

#[test]
fn through_gguf_and_back_the_ids_stay() {
    let mut tokenizers = vec![(support::tiny(), 512)];
    tokenizers
        .extend(["qwen2.5", "qwen3"].into_iter().filter_map(support::tokenizer).map(|dir| (Tokenizer::from_dir(&dir).unwrap(), 151_936)));
    for (tokenizer, rows) in tokenizers {
        let vocabulary = tokenizer.vocabulary(rows).unwrap();
        assert_eq!((vocabulary.pre.as_str(), vocabulary.tokens.len()), ("qwen2", rows));
        assert_eq!(vocabulary.tokens[rows - 1], format!("[PAD{}]", rows - 1));
        let end = tokenizer.id("<|im_end|>").unwrap() as usize;
        assert_eq!(
            vocabulary.types[end - 1..=end + 1].iter().filter(|&&kind| kind == TokenType::Control).count(),
            if rows == 512 { 2 } else { 3 }
        );
        let back = Tokenizer::from_gguf_vocab(&vocabulary).unwrap();
        for (text, _) in GOLDEN {
            assert_eq!(back.encode(text, true).unwrap(), tokenizer.encode(text, true).unwrap(), "{text}");
            assert_eq!(back.encode(text, false).unwrap(), tokenizer.encode(text, false).unwrap(), "{text}");
        }
        assert_eq!((back.eos(), back.pad(), back.chat_template()), (tokenizer.eos(), tokenizer.pad(), tokenizer.chat_template()));
        assert_eq!(back.vocabulary(rows).unwrap(), vocabulary);
        assert!(tokenizer.vocabulary(100).unwrap_err().to_string().contains("100 rows"));
    }
}

#[test]
fn a_gguf_says_whether_texts_begin_with_a_token() {
    for add_bos in [true, false] {
        let vocabulary = Vocabulary { bos: Some(256), add_bos, ..support::tiny().vocabulary(512).unwrap() };
        let tokenizer = Tokenizer::from_gguf_vocab(&vocabulary).unwrap();
        assert_eq!(tokenizer.leading_bos(), add_bos.then_some(256));
        assert_eq!(tokenizer.vocabulary(512).unwrap(), vocabulary);
        let dir = tempfile::tempdir().unwrap();
        tokenizer.save(dir.path()).unwrap();
        assert_eq!(Tokenizer::from_dir(dir.path()).unwrap().leading_bos(), tokenizer.leading_bos());
    }
}

#[test]
fn damaged_vocabularies_are_refused() {
    let good = support::tiny().vocabulary(512).unwrap();
    let refused = |change: fn(&mut Vocabulary), part: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = Tokenizer::from_gguf_vocab(&bad).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(|v| v.pre = "viking".into(), "viking");
    refused(|v| v.types.truncate(3), "512 tokens and 3 token types");
    refused(|v| v.tokens[5] = "a".into(), "there twice");
    refused(|v| v.eos = Some(512), "special id is 512");
    refused(|v| v.merges.push("ab".into()), "a merge is not two tokens");
    refused(|v| v.merges.push("q zz".into()), "zz");
}

/// A download that broke off, at any byte: one sentence with the file and the place. Other damage is refused too, or reads; nothing panics.
#[test]
fn a_damaged_tokenizer_file_is_refused_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    support::tiny().save(dir.path()).unwrap();
    let path = dir.path().join("tokenizer.json");
    let spm = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/spm/tokenizer.json");
    for (whole, step) in [(std::fs::read(&path).unwrap(), 3), (std::fs::read(spm).unwrap(), 997)] {
        for end in (0..whole.trim_ascii_end().len()).step_by(step) {
            std::fs::write(&path, &whole[..end]).unwrap();
            let error = Tokenizer::from_dir(dir.path()).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with(&format!("{}: broken JSON: ", path.display())) && text.lines().count() == 1, "{end}: {text}");
            assert!(text.contains(" at line 1 column ") && text.ends_with(&format!("breaks off after {end} bytes")), "{end}: {text}");
        }
        for at in (0..whole.len()).step_by(7 * step) {
            for byte in [b'"', b'}', b'9', 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                std::fs::write(&path, damaged).unwrap();
                if let Err(error) = Tokenizer::from_dir(dir.path()) {
                    let text = error.to_string();
                    // Of a token that `tokenizer_config.json` names, that file tells.
                    assert!(text.starts_with(&dir.path().display().to_string()) && text.lines().count() == 1, "{at} {byte}: {text}");
                }
            }
        }
    }
}

/// JSON that is whole, with a part that the library panics or asks for gigabytes over.
#[test]
fn a_part_that_nothing_can_be_computed_with_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    support::tiny().save(dir.path()).unwrap();
    let path = dir.path().join("tokenizer.json");
    let whole: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let charsmap = |map: &str| serde_json::json!({ "type": "Precompiled", "precompiled_charsmap": map });
    let replace = |pattern: serde_json::Value| serde_json::json!({ "type": "Replace", "pattern": pattern, "content": "yy" });
    let parts = [
        ("normalizer", charsmap("")),
        ("normalizer", charsmap("AAAAAA==")),
        ("normalizer", charsmap("/////w==")),
        ("normalizer", charsmap("BAAAAP////94")),
        ("normalizer", serde_json::json!({ "type": "Sequence", "normalizers": [charsmap("/////w==")] })),
        ("normalizer", replace(serde_json::json!({ "String": "" }))),
        ("normalizer", serde_json::json!({ "type": "Prepend", "prepend": "" })),
        ("pre_tokenizer", serde_json::json!({ "type": "FixedLength", "length": 0 })),
    ];
    for (key, part) in parts {
        let mut damaged = whole.clone();
        damaged[key] = part.clone();
        std::fs::write(&path, damaged.to_string()).unwrap();
        let error = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()) && error.contains("damaged"), "{part}: {error}");
    }
    let mut damaged = whole;
    damaged["model"]["continuing_subword_prefix"] = "##########".into();
    std::fs::write(&path, damaged.to_string()).unwrap();
    assert!(Tokenizer::from_dir(dir.path()).unwrap_err().to_string().contains("damaged"));
}

/// By the error, and not by the library's panic as well.
#[test]
fn a_part_that_the_library_panics_over_is_told_once() {
    const CHILD: &str = "BELLOWS_CHAT_CHILD";
    if let Some(path) = std::env::var_os(CHILD) {
        return eprintln!("{}", Tokenizer::from_file(path.as_ref()).unwrap_err());
    }
    let dir = tempfile::tempdir().unwrap();
    support::tiny().save(dir.path()).unwrap();
    let path = dir.path().join("tokenizer.json");
    let mut damaged: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    damaged["normalizer"] = serde_json::json!({ "type": "Prepend", "prepend": "" });
    std::fs::write(&path, damaged.to_string()).unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["tokenizer::a_part_that_the_library_panics_over_is_told_once", "--exact", "--nocapture"]).env(CHILD, &path);
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.contains("the file is damaged") && !said.contains("panicked"), "{said}");
}

#[test]
fn a_saved_tokenizer_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = support::tiny();
    tokenizer.save(dir.path()).unwrap();
    let back = Tokenizer::from_dir(dir.path()).unwrap();
    assert_eq!((back.eos(), back.pad(), back.chat_template()), (tokenizer.eos(), tokenizer.pad(), Some(Template::ChatMl.source())));
    let text = "iron glows orange <|im_start|> 🔥<think>";
    for special in [true, false] {
        assert_eq!(back.encode(text, special).unwrap(), tokenizer.encode(text, special).unwrap());
        assert_eq!(back.decode(&back.encode(text, special).unwrap(), false).unwrap(), text);
    }
    std::fs::write(dir.path().join("tokenizer_config.json"), r#"{"eos_token": {"content": "<eos>"}}"#).unwrap();
    let error = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json") && error.contains("`eos_token` is `<eos>`"), "{error}");
    std::fs::write(dir.path().join("tokenizer.json"), "{").unwrap();
    let error = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json: ") && error.contains("the file breaks off after 1 bytes"), "{error}");
}

#[test]
fn a_saved_tokenizer_keeps_nothing_of_an_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    support::tiny().save(dir.path()).unwrap();
    assert_eq!(Tokenizer::from_dir(dir.path()).unwrap().chat_template(), Some(Template::ChatMl.source()));
}

#[test]
fn a_saved_tokenizer_keeps_the_templates_beside_the_default_one() {
    let dir = tempfile::tempdir().unwrap();
    support::tiny().save(dir.path()).unwrap();
    let path = dir.path().join("tokenizer_config.json");
    let named = |name: &str, text: &str| serde_json::json!({"name": name, "template": text});
    for (default, read) in [(vec![named("default", "old")], Some("old")), (vec![], None)] {
        let templates = [vec![named("tool_use", "calls")], default].concat();
        std::fs::write(&path, serde_json::json!({"chat_template": templates}).to_string()).unwrap();
        let mut tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
        assert_eq!(tokenizer.chat_template(), read);
        tokenizer.set_chat_template("new".into());
        tokenizer.save(dir.path()).unwrap();
        let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(saved["chat_template"], serde_json::json!([named("tool_use", "calls"), named("default", "new")]));
    }
}

#[test]
fn the_small_tokenizer_learns_merges_and_is_repeatable() {
    let (a, b) = (support::tiny(), support::tiny());
    assert_eq!(a.vocabulary(400).unwrap(), b.vocabulary(400).unwrap());
    assert_eq!(a.token(a.encode(" orange", false).unwrap()[0]).unwrap(), "Ġorange");
    let bytes = Tokenizer::byte_level([], 10).unwrap();
    assert_eq!(bytes.encode("né", false).unwrap(), [b'n'.into(), 0xc3, 0xa9]);
    assert_eq!((bytes.len(), bytes.id("<|endoftext|>")), (265, Some(256)));
}

#[test]
fn a_long_word_is_learnt_as_a_short_one() {
    let word = "a".repeat(200_000);
    let tokenizer = Tokenizer::byte_level([word.as_str()], 8).unwrap();
    assert_eq!(tokenizer.encode(&word[..3 << 7], false).unwrap().len(), 2, "256 letters and 128");
    // First `aa`, from the left, then `ab`, then both.
    let odd = Tokenizer::byte_level(["abaaab abaaab"], 3).unwrap();
    let tokens = odd.encode("abaaab", false).unwrap();
    assert_eq!(tokens.iter().filter_map(|&id| odd.token(id)).collect::<Vec<_>>(), ["ab", "aaab"]);
}

#[test]
fn streams_hold_back_half_characters() {
    let tokenizer = Tokenizer::byte_level([], 0).unwrap();
    let mut stream = tokenizer.stream(true);
    let parts: Vec<String> = tokenizer.encode("a🔥b<|im_end|>", true).unwrap().into_iter().map(|id| stream.push(id)).collect();
    assert_eq!(parts, ["a", "", "", "", "🔥", "b", ""]);
    assert_eq!(stream.finish(), "");
    let mut stream = tokenizer.stream(false);
    assert_eq!([stream.push(0xf0), stream.push(0x9f), stream.push(u32::from(b'x'))].concat(), "\u{fffd}x");
    assert_eq!(stream.push(0xf0), "");
    assert_eq!(stream.finish(), "\u{fffd}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(7), ..ProptestConfig::with_cases(200) })]

    #[test]
    fn text_comes_back_and_streams_agree(text in "(\\PC|\n|<\\|im_end\\|>|<think>){0,40}") {
        let tokenizer = support::tiny();
        let nfc = tokenizer.decode(&tokenizer.encode(&text, false).unwrap(), false).unwrap();
        let ids = tokenizer.encode(&nfc, false).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids, false).unwrap(), nfc.clone());
        prop_assert!(ids.iter().all(|&id| !tokenizer.is_special(id)));
        let mut stream = tokenizer.stream(false);
        let mut out: String = ids.iter().map(|&id| stream.push(id)).collect();
        out.push_str(&stream.finish());
        prop_assert_eq!(out, nfc);
    }
}

/// The layout of Llama 2 and TinyLlama: ▁ is a space, and a character without a token is bytes by name.
#[test]
fn pieces_of_sentencepiece_are_text_while_they_stream() {
    let names = ["<unk>", "<s>", "</s>", "▁the", "▁caf", "é", "<0xE2>", "<0x82>", "<0xAC>", "<0x0A>", "s"];
    let vocab: serde_json::Map<String, serde_json::Value> =
        names.iter().enumerate().map(|(id, name)| ((*name).to_string(), id.into())).collect();
    let file = serde_json::json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": []},
    });
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    let mut stream = tokenizer.stream(true);
    let said: String = [3, 10, 4, 5, 6, 7, 8, 9].into_iter().map(|id| stream.push(id)).collect();
    assert_eq!(said, " thes café€\n");
}
