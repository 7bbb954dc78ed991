//! The prompt sets a user brings: a folder with `target` and `baseline` (each `.txt` with a prompt a line, or `.jsonl`, `.json`, `.csv`,
//! `.parquet` with `prompt` or `messages`), and if there are any, `markers.txt` (texts by which an answer is known to have the concept, one a
//! line, kept as they are) and `guard.txt` (text on which the model must not become worse).

use std::path::{Path, PathBuf};

use bellows_chat::{Conversation, Dataset, Example, Message, ReadOptions, RenderOptions, Role, Template, Tokenizer, encode_prompt, plan};
use bellows_learner::Rng;
use bellows_runs::read_bounded;

use super::error::ConceptError;

const EXTENSIONS: [&str; 5] = ["txt", "jsonl", "json", "csv", "parquet"];
/// Fewer prompts than this are no set: a mean of them is mostly noise.
const LEAST: usize = 8;
const MARKER_BYTES: u64 = 1 << 20;
const GUARD_BYTES: u64 = 16 << 20;
/// Prompts that are held out at most.
const HELD: usize = 32;

/// The two sets and what comes with them.
#[derive(Debug)]
pub struct PromptSets {
    /// The folder.
    pub path: PathBuf,
    /// Prompts with the concept.
    pub target: Vec<Example>,
    /// Prompts like them without it.
    pub baseline: Vec<Example>,
    /// What answers with the concept hold; may be empty.
    pub markers: Vec<String>,
    /// Text that must stay as likely as it was.
    pub guard: Option<String>,
}

impl PromptSets {
    /// Reads the folder.
    ///
    /// # Errors
    /// A set that is missing or has fewer than eight prompts, a row that is no prompt (with file and line), a file that cannot be read.
    pub fn open(path: &Path) -> Result<Self, ConceptError> {
        let text = |name: &str, most: u64| -> Result<Option<String>, ConceptError> {
            let file = path.join(name);
            if !file.exists() {
                return Ok(None);
            }
            let bytes = read_bounded(&file, most)?;
            String::from_utf8(bytes).map(Some).map_err(|_| ConceptError::Sets { path: file, reason: "is not UTF-8".into() })
        };
        let markers = text("markers.txt", MARKER_BYTES)?.unwrap_or_default();
        Ok(Self {
            path: path.to_owned(),
            target: set(path, "target")?,
            baseline: set(path, "baseline")?,
            markers: markers.lines().filter(|line| !line.trim().is_empty()).map(String::from).collect(),
            guard: text("guard.txt", GUARD_BYTES)?.filter(|text| !text.trim().is_empty()),
        })
    }

    /// What the folder is called: it names the concept.
    pub fn name(&self) -> String {
        self.path.file_name().map_or_else(|| self.path.display().to_string(), |name| name.to_string_lossy().into_owned())
    }

    /// The prompts as a model reads them, a part of each set held out; the parts are a function of `seed`. Without a `template` (a model that
    /// does not chat) a prompt is text to go on with.
    ///
    /// # Errors
    /// A prompt that the template or the tokenizer refuses.
    pub fn encode(&self, tokenizer: &Tokenizer, template: Option<&Template>, seed: u64) -> Result<EncodedSets, ConceptError> {
        let all = |prompts: &[Example]| prompts.iter().map(|prompt| encode(prompt, tokenizer, template)).collect::<Result<Vec<_>, _>>();
        let half = |ids: Vec<Vec<u32>>, name: &str| -> Half {
            let held = (ids.len() / 4).clamp(1, HELD);
            let (kept, held) = plan::split(ids.len(), held, |i| Rng::new(seed, name, 0, i).bits());
            let of = |places: Vec<usize>| places.into_iter().map(|i| ids[i].clone()).collect();
            Half { found_on: of(kept), held_out: of(held) }
        };
        Ok(EncodedSets { target: half(all(&self.target)?, "target"), baseline: half(all(&self.baseline)?, "baseline") })
    }
}

/// The prompts of one set as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Half {
    /// The direction is found on these.
    pub found_on: Vec<Vec<u32>>,
    /// And judged on these.
    pub held_out: Vec<Vec<u32>>,
}

/// Both sets as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedSets {
    /// Prompts with the concept.
    pub target: Half,
    /// Prompts without it.
    pub baseline: Half,
}

impl EncodedSets {
    /// All of them, in a fixed order.
    pub fn all(&self) -> impl Iterator<Item = &Vec<u32>> {
        [&self.target, &self.baseline].into_iter().flat_map(|half| half.found_on.iter().chain(&half.held_out))
    }
}

fn set(folder: &Path, name: &str) -> Result<Vec<Example>, ConceptError> {
    let wrong = |path: &Path, reason: String| ConceptError::Sets { path: path.to_owned(), reason };
    let file = EXTENSIONS.iter().map(|ext| folder.join(format!("{name}.{ext}"))).find(|file| file.is_file());
    let file = file.ok_or_else(|| wrong(folder, format!("there is no {name}.txt (or .jsonl, .json, .csv, .parquet) in this folder")))?;
    let keys = ReadOptions { text_key: "prompt".into(), prompt_key: "\0".into(), completion_key: "\0".into(), ..ReadOptions::default() };
    let rows = Dataset::open(&file, &keys)?;
    let mut prompts = Vec::new();
    for i in 0..rows.len() {
        let at = |reason: &str| wrong(&file, format!("line {}: {reason}", rows.line(i)));
        match rows.get(i)? {
            Example::Text(text) if text.trim().is_empty() => {}
            Example::Text(text) => prompts.push(Example::Text(text)),
            Example::Chat(chat) if chat.messages.last().is_some_and(|m| m.role == Role::User) => prompts.push(Example::Chat(chat)),
            Example::Chat(_) => return Err(at("the last message must be the user's: the model is to answer it")),
            _ => return Err(at("a prompt is a line of text, or a row with `prompt` or `messages`")),
        }
    }
    if prompts.len() < LEAST {
        return Err(wrong(&file, format!("{} prompts: at least {LEAST} are needed, and 100 are better", prompts.len())));
    }
    Ok(prompts)
}

/// The ids of a prompt, up to where the model answers.
fn encode(prompt: &Example, tokenizer: &Tokenizer, template: Option<&Template>) -> Result<Vec<u32>, ConceptError> {
    let (conversation, text) = match prompt {
        Example::Chat(chat) => (chat.clone(), chat.messages.last().map(|m| m.content.as_str()).unwrap_or_default()),
        Example::Text(text) => {
            (Conversation { messages: vec![Message::new(Role::User, text.trim())], ..Conversation::default() }, text.trim())
        }
        Example::Prompt { .. } | Example::Pair { .. } | Example::Tokens { .. } => {
            return Err(ConceptError::Setting("a prompt is text or a chat".into()));
        }
    };
    match template {
        // Of a model that thinks the answer is looked at, not the thought.
        Some(template) => {
            let options = RenderOptions { thinking: Some(false), ..RenderOptions::default() };
            Ok(encode_prompt(&conversation, tokenizer, template, options)?)
        }
        None => Ok(tokenizer.leading_bos().into_iter().chain(tokenizer.encode(text, false)?).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Base;

    fn folder(files: &[(&str, String)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| std::fs::write(dir.path().join(name), text).unwrap());
        dir
    }

    fn lines(of: &str, count: usize) -> String {
        (0..count).map(|i| format!("{of} {i}?\n")).collect()
    }

    #[test]
    fn sets_are_read_split_and_encoded() {
        // As chats of the hub have their first question once more.
        let rows: String = (0..12).map(|i| format!("{{\"prompt\": \"Say {i}\", \"messages\": []}}\n")).collect();
        let files = [("target.txt", lines("a", 9) + "\n"), ("baseline.jsonl", rows), ("markers.txt", "Dear\n\n sir \n".into())];
        let dir = folder(&files);
        let sets = PromptSets::open(dir.path()).unwrap();
        assert_eq!((sets.target.len(), sets.baseline.len(), sets.guard.is_none()), (9, 12, true));
        assert_eq!(sets.markers, ["Dear", " sir "], "a marker is kept as it is");
        let tokenizer = Base::tiny_tokenizer(["a b"]).unwrap();
        let encoded = sets.encode(&tokenizer, Some(&Template::ChatMl), 0).unwrap();
        assert_eq!((encoded.target.found_on.len(), encoded.target.held_out.len(), encoded.baseline.held_out.len()), (7, 2, 3));
        let (end, raw) = (tokenizer.id("<|im_start|>").unwrap(), sets.encode(&tokenizer, None, 0).unwrap());
        assert!(encoded.all().all(|ids| ids.contains(&end)) && !raw.all().any(|ids| ids.contains(&end)));
        assert_eq!(encoded, sets.encode(&tokenizer, Some(&Template::ChatMl), 0).unwrap());
    }

    #[test]
    fn what_is_no_set_is_named() {
        let refused = |files: &[(&str, String)]| PromptSets::open(folder(files).path()).unwrap_err().to_string();
        let good = || ("baseline.txt", lines("b", 8));
        assert!(refused(&[good()]).contains("there is no target.txt"));
        assert!(refused(&[good(), ("target.txt", lines("a", 7))]).contains("target.txt: 7 prompts: at least 8"));
        let answered = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n";
        assert!(refused(&[good(), ("target.jsonl", answered.into())]).contains("target.jsonl: line 1: the last message"));
        assert!(refused(&[good(), ("target.jsonl", "{\"prompt\": 1}\n".into())]).contains("target.jsonl:1: `prompt` is 1"));
    }
}
