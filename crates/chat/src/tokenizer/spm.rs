//! SentencePiece's BPE, as `tokenizers` runs it and as GGUF files hold it (`tokenizer.ggml.model` "llama").
//!
//! SentencePiece and llama.cpp join the two neighbours whose joint token has the highest score, again and again; `tokenizers` takes the
//! pair that stands first in a list of merges. Each follows from the other: the list holds every way to cut a token into two tokens,
//! the tokens by falling score.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::vocabulary::{Pair, Rules, TokenType, Vocabulary};
use crate::Fault;

/// A token of more characters is damage: the longest in use are some dozens of spaces.
const MAX_TOKEN_CHARS: usize = 256;
/// So many merges a token are damage: published models have two.
const MAX_MERGES: usize = 64;

/// A space becomes ▁, and with `prefix` every text begins with one.
fn spaces(prefix: bool) -> Value {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    if prefix { json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}) } else { replace }
}

/// What a `tokenizer.json` says beside its vocabulary.
pub(super) fn rules(prefix: bool, unk: Option<&String>) -> Rules {
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let decoder = json!({"type": "Sequence", "decoders": decoders});
    Rules { normalizer: spaces(prefix), decoder, unk: unk.cloned(), byte_fallback: true, ..Rules::default() }
}

/// Whether a text begins with a space of the tokenizer's own; None for a `tokenizer.json` that writes spaces in another way.
pub(super) fn space_prefix(json: &Value) -> Option<bool> {
    let (normalizer, pre_tokenizer) = (&json["normalizer"], &json["pre_tokenizer"]);
    if pre_tokenizer.is_null() {
        return [true, false].into_iter().find(|&prefix| *normalizer == spaces(prefix));
    }
    let metaspace = pre_tokenizer["type"] == "Metaspace" && pre_tokenizer["replacement"] == "▁" && pre_tokenizer["split"] == false;
    (metaspace && normalizer.is_null()).then(|| pre_tokenizer["prepend_scheme"] != "never")
}

/// How llama.cpp, which puts a space before every text whatever it begins with, differs from the `tokenizer.json`, in a sentence.
pub(super) fn spaces_differ(json: &Value) -> Option<String> {
    let texts = match json["pre_tokenizer"]["prepend_scheme"].as_str()? {
        "first" => "after a special token and before one that a text begins with",
        "always" => "before one that a text begins with",
        _ => return None,
    };
    Some(format!("llama.cpp also puts a space {texts}, where this tokenizer puts none: such texts get other ids there"))
}

/// The scores by which the tokens are made in the order of `merges`: 0 for the first, one less for each after it, then what no merge
/// makes. SentencePiece scores its own in this way; what it does not make of text has 0.
pub(super) fn scores(tokens: &[String], types: &[TokenType], merges: &[Pair]) -> Vec<f32> {
    let mut ranks = HashMap::new();
    for (left, right) in merges {
        let next = ranks.len();
        ranks.entry(format!("{left}{right}")).or_insert(next);
    }
    let mut last = ranks.len();
    let mut after = || {
        last += 1;
        last - 1
    };
    let rank = |(token, kind): (&String, &TokenType)| match (ranks.get(token), kind) {
        (Some(&rank), _) => rank,
        (None, TokenType::Normal | TokenType::Unused) => after(),
        (None, _) => 0,
    };
    tokens.iter().zip(types).map(rank).map(|rank| -(rank as f32)).collect()
}

/// The merges that scores stand for. Cuts of one token come in the order of their ids, as in the files of Llama 2, TinyLlama and Mistral.
///
/// # Errors
/// [`Fault::Tokenizer`] for a token that is too long to be one, and for more merges than tokens can mean.
pub(super) fn merges(Vocabulary { tokens, types, scores, .. }: &Vocabulary) -> Result<Vec<Pair>, Fault> {
    // Tokens with a meaning of their own, and names of bytes, are never made of text.
    let of_text = |id: &usize| matches!(types[*id], TokenType::Normal | TokenType::UserDefined);
    let mut order: Vec<usize> = (0..tokens.len()).filter(of_text).collect();
    let ids: HashMap<&str, usize> = order.iter().map(|&id| (tokens[id].as_str(), id)).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut merges = Vec::new();
    for token in order.into_iter().map(|id| &tokens[id]) {
        let length = token.chars().count();
        if length > MAX_TOKEN_CHARS {
            return Err(Fault::tokenizer(format!("a token is {length} characters long, over the limit of {MAX_TOKEN_CHARS}")));
        }
        let halves = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let mut cuts: Vec<_> = halves.filter_map(|(left, right)| Some((ids.get(left)?, ids.get(right)?))).collect();
        cuts.sort_unstable();
        merges.extend(cuts.into_iter().map(|(&left, &right)| (tokens[left].clone(), tokens[right].clone())));
        if merges.len() > MAX_MERGES * tokens.len() {
            return Err(Fault::tokenizer(format!("{} tokens stand for over {MAX_MERGES} merges each", tokens.len())));
        }
    }
    Ok(merges)
}

/// What llama.cpp joins and this tokenizer does not, in a sentence.
pub(super) fn surplus(vocabulary: &Vocabulary, merges: &[Pair]) -> Result<Option<String>, Fault> {
    let own: HashSet<&Pair> = merges.iter().collect();
    let all = self::merges(vocabulary)?;
    let surplus: Vec<&Pair> = all.iter().filter(|pair| !own.contains(pair)).collect();
    Ok(surplus.first().map(|(left, right)| {
        format!(
            "llama.cpp joins {} pairs of tokens that are no merges of this tokenizer (`{left}` and `{right}`, ..): some texts get other ids there",
            surplus.len()
        )
    }))
}
