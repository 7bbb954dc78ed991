//! A small tokenizer of our own, for models made from nothing: the 256 bytes, a few merges learnt from the data, the tokens of ChatML.

use std::collections::BTreeMap;

use serde_json::json;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizer};

use super::{Tokenizer, alphabet, gguf};
use crate::{Fault, Template};

/// The added tokens of [`Tokenizer::byte_level`] in order of their ids, and whether they are special.
const ADDED: [(&str, bool); 9] = [
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<tool_response>", false),
    ("</tool_response>", false),
    ("<think>", false),
    ("</think>", false),
];

impl Tokenizer {
    /// The 256 bytes (ids 0..256), then at most `merges` merges learnt from `texts`, then the ChatML tokens. Text is cut as Qwen cuts it.
    /// The same texts give the same tokenizer.
    ///
    /// # Errors
    /// [`Fault::Tokenizer`], which would be a fault of this crate.
    pub fn byte_level<'a>(texts: impl IntoIterator<Item = &'a str>, merges: usize) -> Result<Self, Fault> {
        let bytes_only = build(&[])?;
        let mut words: BTreeMap<Vec<String>, u64> = BTreeMap::new();
        for text in texts {
            for word in bytes_only.words(text)? {
                *words.entry(word).or_default() += 1;
            }
        }
        build(&learn(words, merges))
    }

    /// The words that merges stay inside of, each as characters of the byte-level alphabet.
    fn words(&self, text: &str) -> Result<Vec<Vec<String>>, Fault> {
        let refused = |error: Box<dyn std::error::Error + Send + Sync>| Fault::tokenizer(error.to_string());
        let mut pieces = self.plain.extract_and_normalize(self.hf.get_normalizer(), text);
        if let Some(rule) = self.hf.get_pre_tokenizer() {
            rule.pre_tokenize(&mut pieces).map_err(refused)?;
        }
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
        Ok(splits.into_iter().filter(|(_, _, token)| token.is_none()).map(|(word, ..)| word.chars().map(String::from).collect()).collect())
    }
}

/// Byte-pair encoding (Sennrich, Haddow, Birch 2016): the most frequent pair becomes a token, again and again. Ties go to the pair that
/// sorts first; pairs seen once are left alone.
fn learn(words: BTreeMap<Vec<String>, u64>, merges: usize) -> Vec<(String, String)> {
    let mut words: Vec<(Vec<String>, u64)> = words.into_iter().collect();
    let mut learnt = Vec::new();
    while learnt.len() < merges {
        let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for (word, count) in &words {
            for pair in word.windows(2) {
                *counts.entry((&pair[0], &pair[1])).or_default() += count;
            }
        }
        let best = counts.into_iter().filter(|&(_, count)| count > 1).max_by(|a, b| a.1.cmp(&b.1).then_with(|| b.0.cmp(&a.0)));
        let Some(((left, right), _)) = best else { break };
        let (left, right) = (left.to_owned(), right.to_owned());
        for (word, _) in &mut words {
            merge(word, &left, &right);
        }
        learnt.push((left, right));
    }
    learnt
}

/// In one pass: to close each gap at once would move the rest of a word as often as it has pairs.
fn merge(word: &mut Vec<String>, left: &str, right: &str) {
    let (mut kept, mut at) = (0, 0);
    while at < word.len() {
        let joins = word[at] == left && word.get(at + 1).is_some_and(|next| next == right);
        word.swap(kept, at);
        if joins {
            word[kept].push_str(right);
        }
        kept += 1;
        at += 1 + usize::from(joins);
    }
    word.truncate(kept);
}

fn build(merges: &[(String, String)]) -> Result<Tokenizer, Fault> {
    let mut vocab = serde_json::Map::new();
    for token in (0..=255).map(|byte| alphabet::char_of(byte).to_string()).chain(merges.iter().map(|(a, b)| format!("{a}{b}"))) {
        // Two merges may spell the same token; it keeps its first id.
        let next = vocab.len();
        vocab.entry(token).or_insert(next.into());
    }
    let id = vocab.len();
    let added = ADDED.iter().zip(id..).map(|((token, special), id)| {
        json!({"id": id, "content": token, "special": special, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
    });
    let mut tokenizer = Tokenizer::from_json(&gguf::assemble(vocab, merges, added.collect(), gguf::qwen2_rules())?)?;
    tokenizer.eos = tokenizer.id("<|im_end|>");
    tokenizer.pad = tokenizer.id("<|endoftext|>");
    tokenizer.chat_template = Some(Template::ChatMl.source().to_owned());
    Ok(tokenizer)
}
