//! A tokenizer from the files of a model's folder, and into them.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bellows_runs::{StoreError, read_bounded, write_atomic};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer as Hf;

use super::{Place, Tokenizer, damaged};
use crate::{ChatError, Fault};

/// No tokenizer in use is larger than an eighth of this.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Any JSON: all of it is looked at, and none kept. The library panics where a file breaks off in some of its parts, and of others it does not say
/// at which byte.
struct Json;

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Json)
    }
}

impl<'de> Visitor<'de> for Json {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(Self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<Self, Self>()?.is_some() {}
        Ok(Self)
    }
}

/// That these bytes are JSON to their end.
fn whole(bytes: &[u8]) -> Result<(), Fault> {
    let what = match serde_json::from_slice::<Json>(bytes) {
        Ok(Json) => return Ok(()),
        Err(error) if error.is_eof() => format!("{error}: the file breaks off after {} bytes", bytes.len()),
        Err(error) => error.to_string(),
    };
    Err(Fault::Json { what })
}

/// That the maps of SentencePiece's normalisers have the room that they say they take: the library believes it before it looks.
fn charsmaps_are_whole(bytes: &[u8]) -> Result<(), Fault> {
    const KEY: &str = "precompiled_charsmap";
    #[derive(Deserialize)]
    struct Parts {
        #[serde(default)]
        normalizer: Value,
    }
    if !bytes.windows(KEY.len()).any(|window| window == KEY.as_bytes()) {
        return Ok(());
    }
    // One that is no object is the library's to refuse.
    let Ok(Parts { normalizer }) = serde_json::from_slice(bytes) else { return Ok(()) };
    let mut parts = vec![&normalizer];
    while let Some(part) = parts.pop() {
        parts.extend(part.get("normalizers").and_then(Value::as_array).into_iter().flatten());
        let Some(map) = part.get(KEY).and_then(Value::as_str) else { continue };
        let map = STANDARD.decode(map).map_err(|error| Fault::tokenizer(format!("`{KEY}`: {error}")))?;
        // Bytes of a trie of u32, and behind it what its leaves point to.
        let trie = map.split_first_chunk::<4>().map(|(len, rest)| (u32::from_le_bytes(*len) as usize, rest.len()));
        if !trie.is_some_and(|(len, rest)| len > 0 && len.is_multiple_of(4) && len <= rest) {
            return Err(Fault::tokenizer(format!("`{KEY}` is no table of {} bytes: the file is damaged", map.len())));
        }
    }
    Ok(())
}

/// Whether this is the one to take of chat templates with names.
fn is_default(template: &Value) -> bool {
    template.get("name").and_then(Value::as_str) == Some("default")
}

impl Tokenizer {
    /// A tokenizer from the text of a `tokenizer.json`.
    pub(super) fn from_json(bytes: &[u8]) -> Result<Self, Fault> {
        whole(bytes)?;
        charsmaps_are_whole(bytes)?;
        Fault::guarded(damaged, || {
            let mut hf = Hf::from_bytes(bytes).map_err(|error| Fault::tokenizer(error.to_string()))?;
            // Rows are cut and filled by `encode` and `Batch`, which keep count of it.
            hf.with_truncation(None).map_err(|error| Fault::tokenizer(error.to_string()))?.with_padding(None);
            let tokenizer = Tokenizer::new(hf);
            // A part that no text can go through is found here, and not in the middle of a run; whether it has a token for this is another question.
            drop(tokenizer.cut_unguarded(tokenizer.hf.get_added_vocabulary(), "an example: 2 × é 🙂", Place::Start));
            Ok(tokenizer)
        })
    }

    /// Reads a `tokenizer.json` alone: no end of text, no template.
    ///
    /// # Errors
    /// [`Fault::Open`] and [`Fault::Tokenizer`], with the path.
    pub fn from_file(path: &Path) -> Result<Self, ChatError> {
        let bytes = read_bounded(path, MAX_TOKENIZER_BYTES).map_err(Fault::Open)?;
        Tokenizer::from_json(&bytes).map_err(|fault| fault.in_file(path))
    }

    /// Reads `tokenizer.json` of a model's folder, and `tokenizer_config.json` and `chat_template.jinja` where they exist.
    ///
    /// # Errors
    /// Those of [`Tokenizer::from_file`]; [`Fault::Json`], and [`Fault::Tokenizer`] if the configuration names a token that does not exist.
    pub fn from_dir(dir: &Path) -> Result<Self, ChatError> {
        let mut tokenizer = Tokenizer::from_file(&dir.join("tokenizer.json"))?;
        let path = dir.join("tokenizer_config.json");
        if path.exists() {
            let bytes = read_bounded(&path, MAX_CONFIG_BYTES).map_err(Fault::Open)?;
            let config = serde_json::from_slice(&bytes).map_err(|error| Fault::Json { what: error.to_string() }.in_file(&path))?;
            tokenizer.configure(config).map_err(|fault| fault.in_file(&path))?;
        }
        let path = dir.join("chat_template.jinja");
        if path.exists() {
            let bytes = read_bounded(&path, MAX_CONFIG_BYTES).map_err(Fault::Open)?;
            let text = String::from_utf8(bytes).map_err(|_| Fault::template("it is not UTF-8").in_file(&path))?;
            tokenizer.chat_template = Some(text);
        }
        Ok(tokenizer)
    }

    fn configure(&mut self, config: Map<String, Value>) -> Result<(), Fault> {
        let named = |key| {
            // Written as text, or as an object whose `content` is the text.
            let Some(token) = config.get(key).and_then(|v| v.as_str().or_else(|| v.get("content")?.as_str())) else { return Ok(None) };
            match self.id(token) {
                Some(id) => Ok(Some(id)),
                None => Err(Fault::tokenizer(format!("`{key}` is `{token}`, which is not in the vocabulary"))),
            }
        };
        (self.bos, self.eos, self.pad) = (named("bos_token")?, named("eos_token")?, named("pad_token")?);
        self.chat_template = match config.get("chat_template") {
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Array(list)) => {
                list.iter().find(|entry| is_default(entry)).and_then(|entry| entry.get("template")?.as_str()).map(str::to_owned)
            }
            _ => None,
        };
        self.config = config;
        Ok(())
    }

    /// Writes `tokenizer.json` and `tokenizer_config.json` (with the chat template in it) into `dir`, as `transformers` and
    /// `tokenizers` load them. A `chat_template.jinja` of another tokenizer is removed: readers prefer it.
    ///
    /// # Errors
    /// [`Fault::Save`] with the path.
    pub fn save(&self, dir: &Path) -> Result<(), ChatError> {
        let json = self.hf.to_string(false).map_err(|error| Fault::tokenizer(error.to_string()))?;
        let mut config = self.config.clone();
        for (key, id) in [("bos_token", self.bos), ("eos_token", self.eos), ("pad_token", self.pad())] {
            config.insert(key.into(), id.and_then(|id| self.token(id)).map_or(Value::Null, Value::String));
        }
        if let Some(template) = &self.chat_template {
            match config.entry("chat_template").or_insert(Value::Null) {
                // The others (for calls, for citing) are kept as they came.
                Value::Array(list) => match list.iter_mut().find(|entry| is_default(entry)) {
                    Some(entry) => entry["template"] = template.clone().into(),
                    None => list.push(json!({"name": "default", "template": template})),
                },
                own => *own = template.clone().into(),
            }
        }
        let config = serde_json::to_string_pretty(&config).map_err(|error| Fault::tokenizer(error.to_string()))?;
        for (name, text) in [("tokenizer.json", json), ("tokenizer_config.json", config + "\n")] {
            let path = dir.join(name);
            write_atomic(&path, text.as_bytes()).map_err(|error| Fault::Save(error).in_file(&path))?;
        }
        let path = dir.join("chat_template.jinja");
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Fault::Save(StoreError::new("remove", &path, error)).in_file(&path)),
            _ => Ok(()),
        }
    }
}
