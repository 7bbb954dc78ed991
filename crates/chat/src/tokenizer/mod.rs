//! Text to token ids and back: BPE of bytes or of SentencePiece as the `tokenizers` library runs it, with the special tokens, the end of
//! text and the padding of a model.

mod alphabet;
mod files;
mod gguf;
mod place;
mod spm;
mod stream;
mod tiny;
mod vocabulary;

use tokenizers::{AddedToken, AddedVocabulary, Model, OffsetType, PreTokenizer, Tokenizer as Hf};

use crate::Fault;
use place::Prefixes;

pub use place::Place;
pub use stream::DecodeStream;
pub use vocabulary::{TokenType, Vocabulary};

/// A token and the bytes of the text it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// First byte in the text.
    pub start: usize,
    /// One past the last byte. Tokens that share one character all carry the whole character.
    pub end: usize,
}

/// The tokenizer of a model.
#[derive(Clone)]
pub struct Tokenizer {
    hf: Hf,
    /// The added tokens once more, with those marked special not recognised in text.
    plain: AddedVocabulary,
    /// How text is cut that does not begin one: SentencePiece puts spaces of its own before some.
    prefixes: Prefixes,
    len: usize,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    chat_template: Option<String>,
    /// `tokenizer_config.json` as it was read, so that what this crate does not know survives saving.
    config: serde_json::Map<String, serde_json::Value>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("len", &self.len()).field("eos", &self.eos).field("pad", &self.pad).finish_non_exhaustive()
    }
}

/// One past the largest id.
fn ids(hf: &Hf) -> usize {
    hf.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1)
}

/// Of a tokenizer that its library panics over.
fn damaged() -> Fault {
    Fault::tokenizer("the library cannot compute with a part of it (normalizer, pre_tokenizer, model or decoder): the file is damaged")
}

impl Tokenizer {
    fn new(hf: Hf) -> Self {
        let mut plain = hf.get_added_vocabulary().clone();
        plain.set_encode_special_tokens(true);
        let prefixes = Prefixes::of(&hf);
        let len = ids(&hf);
        // What `transformers` asks for where no `tokenizer_config.json` was read.
        let config = [("tokenizer_class", "PreTrainedTokenizerFast".into()), ("clean_up_tokenization_spaces", false.into())];
        let config = config.map(|(key, value): (_, serde_json::Value)| (key.to_owned(), value)).into_iter().collect();
        Tokenizer { hf, plain, prefixes, len, bos: None, eos: None, pad: None, chat_template: None, config }
    }

    /// The ids of `text`, nothing put before or after.
    ///
    /// With `allow_special`, text such as `<|im_end|>` becomes that token; without, it is spelled out like any other text, and nobody can
    /// forge a turn by writing it. Added tokens that are not marked special (`<think>`, `<tool_call>`) are recognised either way.
    ///
    /// # Errors
    /// [`Fault::Tokenizer`] if the model of the tokenizer refuses the text.
    pub fn encode(&self, text: &str, allow_special: bool) -> Result<Vec<u32>, Fault> {
        self.ids(text, allow_special, Place::Start)
    }

    /// As [`Tokenizer::encode`], of text that stands in a `place` of its own.
    ///
    /// # Errors
    /// [`Fault::Tokenizer`] if the model of the tokenizer refuses the text.
    pub fn ids(&self, text: &str, allow_special: bool, place: Place) -> Result<Vec<u32>, Fault> {
        Ok(self.tokens(text, allow_special, place)?.into_iter().map(|token| token.id).collect())
    }

    /// As [`Tokenizer::ids`], with the bytes of `text` that each token covers.
    ///
    /// # Errors
    /// [`Fault::Tokenizer`] if the model of the tokenizer refuses the text.
    pub fn tokens(&self, text: &str, allow_special: bool, place: Place) -> Result<Vec<Token>, Fault> {
        let added = if allow_special { self.hf.get_added_vocabulary() } else { &self.plain };
        if place == Place::Middle && self.prefixes.middle_differs() {
            // What follows an added token is in the middle of nothing any more.
            let end = place::before_added(added, text);
            let mut tokens = self.cut(added, &text[..end], Place::Middle)?;
            let rest = self.cut(added, &text[end..], Place::AfterSpecial)?;
            tokens.extend(rest.into_iter().map(|token| Token { start: token.start + end, end: token.end + end, ..token }));
            return Ok(tokens);
        }
        self.cut(added, text, place)
    }

    fn cut(&self, added: &AddedVocabulary, text: &str, place: Place) -> Result<Vec<Token>, Fault> {
        Fault::guarded(damaged, || self.cut_unguarded(added, text, place))
    }

    fn cut_unguarded(&self, added: &AddedVocabulary, text: &str, place: Place) -> Result<Vec<Token>, Fault> {
        let refused = |error: Box<dyn std::error::Error + Send + Sync>| Fault::tokenizer(error.to_string());
        // The steps of `tokenizers::Tokenizer::encode`, with the choice of added tokens and without what post-processors add.
        let (normalizer, rule) = self.prefixes.rules(&self.hf, place);
        let mut pieces = added.extract_and_normalize(normalizer, text);
        if let Some(rule) = rule {
            rule.pre_tokenize(&mut pieces).map_err(refused)?;
        }
        pieces.tokenize(|piece| self.hf.get_model().tokenize(piece.get())).map_err(refused)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::Byte).map_err(refused)?;
        let spans = encoding.get_ids().iter().zip(encoding.get_offsets());
        Ok(spans.map(|(&id, &(start, end))| Token { id, start, end }).collect())
    }

    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids outside the vocabulary, nothing.
    ///
    /// # Errors
    /// [`Fault::Tokenizer`] if the decoder of the tokenizer refuses a token.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Fault> {
        let ids: Vec<u32> = ids.iter().copied().filter(|&id| !(skip_special && self.is_special(id))).collect();
        Fault::guarded(damaged, || self.hf.decode(&ids, false).map_err(|error| Fault::tokenizer(error.to_string())))
    }

    /// The id of the token written `token`: `<|im_end|>`.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.hf.token_to_id(token)
    }

    /// How `id` is written: an added token as it is, any other in the byte-level alphabet (`Ġtwo`).
    pub fn token(&self, id: u32) -> Option<String> {
        self.added(id).map(|token| token.content.clone()).or_else(|| self.hf.id_to_token(id))
    }

    /// The added token that `id` is. Look-ups of the library have one that is normalised as normalisation leaves it: `▁</s>`, which is the
    /// name of no token.
    fn added(&self, id: u32) -> Option<&AddedToken> {
        self.hf.get_added_vocabulary().get_added_tokens_decoder().get(&id)
    }

    /// Whether `id` is a token marked special, such as `<|im_end|>`.
    pub fn is_special(&self, id: u32) -> bool {
        self.added(id).is_some_and(|token| token.special)
    }

    /// Whether `id` is an added token that takes white space before it, and behind it, into itself.
    pub(crate) fn strips(&self, id: u32) -> (bool, bool) {
        self.added(id).map_or((false, false), |token| (token.lstrip, token.rstrip))
    }

    /// The tokens marked special, by id.
    pub fn specials(&self) -> Vec<(u32, String)> {
        let added = self.hf.get_added_vocabulary().get_added_tokens_decoder();
        let mut specials: Vec<_> = added.iter().filter(|(_, t)| t.special).map(|(&id, t)| (id, t.content.clone())).collect();
        specials.sort_unstable();
        specials
    }

    /// One past the largest id. The model's embedding may have more rows: the others are padding.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The token that begins a text, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that begins a text, if the model was trained with it before every text: `add_bos_token` of its configuration, or what
    /// the post-processor of its `tokenizer.json` adds.
    pub fn leading_bos(&self) -> Option<u32> {
        let configured = self.config.get("add_bos_token").and_then(serde_json::Value::as_bool);
        self.bos.filter(|bos| configured.unwrap_or_else(|| self.hf.encode("", true).is_ok_and(|e| e.get_ids().first() == Some(bos))))
    }

    /// The token that ends a text or a turn: `<|im_end|>` of chat models, `<|endoftext|>` of base models.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The token to fill rows with: the one the configuration names, else the end of text. Which positions are padding is never read off
    /// it: a real token may be the same.
    pub fn pad(&self) -> Option<u32> {
        self.pad.or_else(|| self.id("<|endoftext|>")).or(self.eos)
    }

    /// The chat template (Jinja) that came with the tokenizer.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Makes `template` the chat template that [`Tokenizer::save`] writes.
    pub fn set_chat_template(&mut self, template: String) {
        self.chat_template = Some(template);
    }

    /// Adds tokens that are recognised wherever they stand in a text, unless there are tokens of that name. Returns how many are new.
    ///
    /// # Errors
    /// [`Fault::Tokenizer`] for an empty one.
    pub fn add(&mut self, tokens: &[String]) -> Result<usize, Fault> {
        if tokens.iter().any(String::is_empty) {
            return Err(Fault::tokenizer("a token to add is empty"));
        }
        // One that is normalised is recognised where SentencePiece puts a space before it, and nowhere else.
        let added = |token: &String| AddedToken::from(token.as_str(), false).normalized(false);
        let fresh: Vec<AddedToken> = tokens.iter().filter(|token| self.id(token).is_none()).map(added).collect();
        let before = self.len;
        self.hf.add_tokens(fresh).map_err(|error| Fault::tokenizer(error.to_string()))?;
        self.plain = self.hf.get_added_vocabulary().clone();
        self.plain.set_encode_special_tokens(true);
        self.len = ids(&self.hf);
        Ok(self.len - before)
    }

    /// Makes the token written `token` the end of text: `<|im_end|>` after tuning a base model on chats, or generation never stops.
    ///
    /// # Errors
    /// [`Fault::Tokenizer`] if there is no such token.
    pub fn set_eos(&mut self, token: &str) -> Result<(), Fault> {
        self.eos = Some(self.id(token).ok_or_else(|| Fault::tokenizer(format!("there is no token `{token}`")))?);
        Ok(())
    }
}
