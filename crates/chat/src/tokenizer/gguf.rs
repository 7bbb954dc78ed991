//! A tokenizer from the vocabulary of a GGUF file, and into one: a `.gguf` alone can be a base model, and an export carries its tokenizer.

use serde_json::{Value, json};

use super::vocabulary::{Pair, Rules, TokenType, Vocabulary};
use super::{Tokenizer, alphabet, spm};
use crate::Fault;

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The rules of the tokenizers named `pre`; None for a name we do not know.
fn rules(pre: &str) -> Option<Rules> {
    let byte_level =
        |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": use_regex});
    let sequence = |first: Value, use_regex| json!({"type": "Sequence", "pretokenizers": [first, byte_level(use_regex)]});
    let split =
        |regex: &str| sequence(json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false}), false);
    let (pre_tokenizer, normalizer) = match pre {
        "qwen2" | "deepseek-r1-qwen" => (split(QWEN2), json!({"type": "NFC"})),
        "llama-bpe" => (split(LLAMA3), Value::Null),
        "smollm" => (sequence(json!({"type": "Digits", "individual_digits": true}), true), Value::Null),
        "gpt-2" => (byte_level(true), Value::Null),
        _ => return None,
    };
    let decoder = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    Some(Rules { pre_tokenizer, normalizer, decoder, ignore_merges: pre == "llama-bpe", ..Rules::default() })
}

/// The rule that puts `bos` before every text, for those who load a saved tokenizer.
fn begin_with(bos: u32, token: &str) -> Value {
    let text = |id: &str, sequence: usize| {
        [("SpecialToken", token), ("Sequence", id)].map(|(kind, id)| json!({kind: {"id": id, "type_id": sequence}}))
    };
    let pair = [text("A", 0), text("B", 1)].concat();
    let special = json!({token: {"id": token, "ids": [bos], "tokens": [token]}});
    json!({"type": "TemplateProcessing", "single": text("A", 0), "pair": pair, "special_tokens": special})
}

/// The rule for cutting text without the flags that do not change ids.
fn essence(rule: &Value) -> Value {
    match rule {
        Value::Object(map) => map.iter().filter(|(key, _)| *key != "trim_offsets").map(|(key, v)| (key.clone(), essence(v))).collect(),
        Value::Array(list) => list.iter().map(essence).collect(),
        other => other.clone(),
    }
}

impl Tokenizer {
    /// The tokenizer of a GGUF file.
    ///
    /// # Errors
    /// [`Fault::Tokenizer`] for an unknown `pre`, lists of different lengths, a token written twice, ids out of range, or merges of tokens
    /// that do not exist.
    pub fn from_gguf_vocab(vocabulary: &Vocabulary) -> Result<Self, Fault> {
        let Vocabulary { pre, tokens, types, merges, scores, .. } = vocabulary;
        if tokens.len() != types.len() {
            return Err(Fault::tokenizer(format!("{} tokens and {} token types", tokens.len(), types.len())));
        }
        for id in [vocabulary.bos, vocabulary.eos, vocabulary.pad, vocabulary.unk].into_iter().flatten() {
            if id as usize >= tokens.len() {
                return Err(Fault::tokenizer(format!("a special id is {id}; there are {} tokens", tokens.len())));
            }
        }
        let (mut rules, merges) = if scores.is_empty() {
            let unknown = || Fault::tokenizer(format!("`tokenizer.ggml.pre` is \"{pre}\"; expected qwen2, smollm, llama-bpe or gpt-2"));
            (rules(pre).ok_or_else(unknown)?, pairs(merges)?)
        } else if scores.len() == tokens.len() {
            let unk = vocabulary.unk.and_then(|id| tokens.get(id as usize));
            (spm::rules(vocabulary.space_prefix, unk), spm::merges(vocabulary)?)
        } else {
            return Err(Fault::tokenizer(format!("{} tokens and {} scores", tokens.len(), scores.len())));
        };
        if let Some(bos) = vocabulary.bos.filter(|_| vocabulary.add_bos) {
            rules.post_processor = begin_with(bos, &tokens[bos as usize]);
        }
        let mut vocab = serde_json::Map::new();
        let mut added = Vec::new();
        for (id, (token, kind)) in tokens.iter().zip(types).enumerate() {
            if *kind == TokenType::Unused {
                continue;
            }
            if vocab.insert(token.clone(), id.into()).is_some() {
                return Err(Fault::tokenizer(format!("the token `{token}` is there twice, the second time with id {id}")));
            }
            if !matches!(kind, TokenType::Normal | TokenType::Byte) {
                let special = *kind != TokenType::UserDefined;
                added.push(json!({"id": id, "content": token, "special": special,
                    "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}));
            }
        }
        let mut tokenizer = Tokenizer::from_json(&assemble(vocab, &merges, added, rules)?)?;
        (tokenizer.bos, tokenizer.eos, tokenizer.pad) = (vocabulary.bos, vocabulary.eos, vocabulary.pad);
        tokenizer.config.insert("add_bos_token".into(), vocabulary.add_bos.into());
        tokenizer.chat_template.clone_from(&vocabulary.chat_template);
        Ok(tokenizer)
    }

    /// What a GGUF file says about this tokenizer, for an embedding of `rows` rows: ids without a token are named `[PAD{id}]`.
    ///
    /// # Errors
    /// [`Fault::Tokenizer`] if it is not BPE of bytes or of SentencePiece, if text is cut in a way that no `tokenizer.ggml.pre` names, or if
    /// there are more tokens than rows.
    pub fn vocabulary(&self, rows: usize) -> Result<Vocabulary, Fault> {
        let json = self.json()?;
        if self.len() > rows {
            return Err(Fault::tokenizer(format!("{} tokens do not fit an embedding of {rows} rows", self.len())));
        }
        let merges = own_merges(&json)?;
        let mut tokens: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
        let mut types = vec![TokenType::Unused; rows];
        for (token, id) in self.hf.get_vocab(false) {
            (tokens[id as usize], types[id as usize]) = (token, TokenType::Normal);
        }
        for (&id, token) in self.hf.get_added_vocabulary().get_added_tokens_decoder() {
            let kind = if token.special { TokenType::Control } else { TokenType::UserDefined };
            (tokens[id as usize], types[id as usize]) = (token.content.clone(), kind);
        }
        let common = Vocabulary {
            bos: self.bos,
            eos: self.eos,
            pad: self.pad(),
            add_bos: self.leading_bos().is_some(),
            chat_template: self.chat_template.clone(),
            ..Vocabulary::default()
        };
        if json["model"]["byte_fallback"] == true {
            let refused = || format!("no GGUF writes spaces as {} with {} does", json["normalizer"], json["pre_tokenizer"]);
            let space_prefix = spm::space_prefix(&json).ok_or_else(|| Fault::tokenizer(refused()))?;
            let unk = json["model"]["unk_token"].as_str().and_then(|token| self.id(token));
            unk.into_iter().for_each(|id| types[id as usize] = TokenType::Unknown);
            let bytes = (0..=255).filter_map(|byte: u8| self.id(&format!("<0x{byte:02X}>")));
            bytes.for_each(|id| types[id as usize] = TokenType::Byte);
            let scores = spm::scores(&tokens, &types, &merges);
            return Ok(Vocabulary { pre: "default".into(), tokens, types, scores, space_prefix, unk, ..common });
        }
        let known = ["qwen2", "smollm", "llama-bpe", "gpt-2"];
        let same = |pre: &&str| rules(pre).is_some_and(|rules| essence(&rules.pre_tokenizer) == essence(&json["pre_tokenizer"]));
        let unknown = || Fault::tokenizer(format!("no `tokenizer.ggml.pre` is known for the pre-tokenizer {}", json["pre_tokenizer"]));
        let pre = known.into_iter().find(same).ok_or_else(unknown)?.to_owned();
        Ok(Vocabulary { pre, tokens, types, merges: merges.iter().map(|(a, b)| format!("{a} {b}")).collect(), ..common })
    }

    /// Where llama.cpp reads texts otherwise, a sentence each: what the values of SentencePiece's BPE cannot say.
    ///
    /// # Errors
    /// Those of [`Tokenizer::vocabulary`].
    pub fn vocabulary_differs(&self, vocabulary: &Vocabulary) -> Result<Vec<String>, Fault> {
        if vocabulary.scores.is_empty() {
            return Ok(Vec::new());
        }
        let json = self.json()?;
        Ok(spm::surplus(vocabulary, &own_merges(&json)?)?.into_iter().chain(spm::spaces_differ(&json)).collect())
    }

    fn json(&self) -> Result<Value, Fault> {
        serde_json::to_value(&self.hf).map_err(|error| Fault::tokenizer(error.to_string()))
    }

    /// The bytes that `id` stands for; none for an id without a token.
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        match self.added(id) {
            Some(token) => Some(token.content.clone().into_bytes()),
            None => {
                let token = self.token(id)?;
                if self.hf.token_to_id("<0x0A>").is_some() {
                    return Some(piece(&token));
                }
                Some(token.chars().map(alphabet::byte_of).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.into_bytes()))
            }
        }
    }
}

/// A token of SentencePiece: `<0x0A>` is a byte, ▁ a space, everything else itself.
fn piece(token: &str) -> Vec<u8> {
    let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')).and_then(|hex| u8::from_str_radix(hex, 16).ok());
    byte.map_or_else(|| token.replace('▁', " ").into_bytes(), |byte| vec![byte])
}

/// The merges of a `tokenizer.json`, each a text with one space in it or a list of two.
fn own_merges(json: &Value) -> Result<Vec<Pair>, Fault> {
    let pair = |pair: &Value| match pair {
        Value::String(text) => text.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())),
        pair => Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned())),
    };
    let merges = json["model"]["merges"].as_array().and_then(|merges| merges.iter().map(pair).collect());
    merges.ok_or_else(|| Fault::tokenizer("it has no merges: not BPE"))
}

/// Merges written with one space between the two tokens.
fn pairs(merges: &[String]) -> Result<Vec<Pair>, Fault> {
    let pairs = merges.iter().map(|merge| merge.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()))).collect::<Option<_>>();
    pairs.ok_or_else(|| Fault::tokenizer("a merge is not two tokens with a space between them"))
}

/// The text of a `tokenizer.json` for BPE.
pub(super) fn assemble(vocab: serde_json::Map<String, Value>, merges: &[Pair], added: Vec<Value>, rules: Rules) -> Result<Vec<u8>, Fault> {
    let Rules { pre_tokenizer, normalizer, decoder, post_processor, ignore_merges, byte_fallback, unk } = rules;
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor, "decoder": decoder,
        "model": {"type": "BPE", "dropout": null, "unk_token": unk, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": byte_fallback, "byte_fallback": byte_fallback, "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges},
    });
    serde_json::to_vec(&file).map_err(|error| Fault::tokenizer(error.to_string()))
}

/// The rules of Qwen, which the small tokenizer shares, so that an export of it can be named.
pub(super) fn qwen2_rules() -> Rules {
    rules("qwen2").unwrap_or_default()
}
