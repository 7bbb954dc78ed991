//! What a GGUF file and a `tokenizer.json` say of the same tokenizer, each in its own terms.

use serde_json::Value;

/// The kinds of token of `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum TokenType {
    /// Text: in the byte-level alphabet, or with ▁ for spaces.
    Normal = 1,
    /// What SentencePiece puts for characters without a token: `<unk>`.
    Unknown = 2,
    /// An added token marked special: `<|im_end|>`.
    Control = 3,
    /// An added token that is not: `<think>`.
    UserDefined = 4,
    /// A row of the embedding without a token.
    Unused = 5,
    /// A byte by its name, of SentencePiece: `<0x0A>`.
    Byte = 6,
}

impl TokenType {
    /// The kind a GGUF file writes as `number`.
    pub fn from_number(number: i32) -> Option<Self> {
        use TokenType::{Byte, Control, Normal, Unknown, Unused, UserDefined};
        [Normal, Unknown, Control, UserDefined, Unused, Byte].into_iter().find(|&kind| kind as i32 == number)
    }
}

/// The `tokenizer.ggml.*` values of a GGUF file, of byte-level BPE (`tokenizer.ggml.model` "gpt2") or SentencePiece's ("llama").
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vocabulary {
    /// `tokenizer.ggml.pre`: how byte-level BPE cuts text before merging: "qwen2", "smollm", "llama-bpe", "gpt-2".
    pub pre: String,
    /// The tokens by id: added ones as they are written, others in the byte-level alphabet or with ▁ for spaces.
    pub tokens: Vec<String>,
    /// Their kinds.
    pub types: Vec<TokenType>,
    /// The merges of byte-level BPE, first to last: `Ġ t`.
    pub merges: Vec<String>,
    /// The scores of SentencePiece's tokens, by id: neighbours whose joint token has the highest are joined first. Empty for byte-level BPE.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.add_space_prefix`, of SentencePiece: whether every text begins with a space.
    pub space_prefix: bool,
    /// What SentencePiece puts for a character without a token.
    pub unk: Option<u32>,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The token that ends a text.
    pub eos: Option<u32>,
    /// The token that fills rows.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`: whether `bos` goes before every text.
    pub add_bos: bool,
    /// The chat template.
    pub chat_template: Option<String>,
}

impl Vocabulary {
    /// `tokenizer.ggml.model`.
    pub fn model(&self) -> &'static str {
        if self.scores.is_empty() { "gpt2" } else { "llama" }
    }
}

/// A merge: two tokens that become one.
pub(super) type Pair = (String, String);

/// What a `tokenizer.json` says beside its vocabulary.
#[derive(Default)]
pub(super) struct Rules {
    /// How text is cut before merging.
    pub(super) pre_tokenizer: Value,
    pub(super) normalizer: Value,
    pub(super) decoder: Value,
    /// What is put before every text.
    pub(super) post_processor: Value,
    /// Whether a word that is a token is taken whole, reachable by merges or not.
    pub(super) ignore_merges: bool,
    /// Whether a character without a token becomes tokens of its bytes.
    pub(super) byte_fallback: bool,
    /// The token for what is not even that.
    pub(super) unk: Option<String>,
}
