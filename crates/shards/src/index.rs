//! `index.jsonl`: what a folder of shards holds. The first line names the shards, each line after it is a sample, `[key, [[kind, byte of its header, size, CRC-32C], ..]]`,
//! and the last has the CRC-32C of all before it.

use std::ops::Range;
use std::path::Path;

use bellows_runs::{read_bounded, write_atomic};
use serde::{Deserialize, Serialize};

use crate::error::{ShardError, ShardFault};
use crate::tar::BLOCK;

/// The name of the index in a folder of shards.
pub const INDEX: &str = "index.jsonl";

const FORMAT: &str = "bellows shards 1";
/// 40 million samples.
const MAX_BYTES: u64 = 4 << 30;

/// Shards, samples and their files.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) shards: Vec<Shard>,
    /// What files are called behind the key, each once.
    pub(crate) kinds: Vec<String>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) members: Vec<Member>,
}

/// An archive.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shard {
    pub(crate) file: String,
    pub(crate) bytes: u64,
    pub(crate) samples: usize,
}

/// What shares a key.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) key: Box<str>,
    pub(crate) shard: u32,
    pub(crate) members: Range<u32>,
}

/// A file of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) kind: u16,
    pub(crate) size: u32,
    pub(crate) crc: u32,
    /// The byte of the archive at which its header begins.
    pub(crate) at: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    format: String,
    shards: Vec<Shard>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tail {
    crc32c: u32,
}

/// A sample as it is written.
type Line<'a> = (&'a str, Vec<(&'a str, u64, u32, u32)>);

impl Index {
    /// Begins a shard: samples that are added from here on are its.
    pub(crate) fn begin(&mut self, file: String) {
        self.shards.push(Shard { file, bytes: 0, samples: 0 });
    }

    /// Ends it.
    pub(crate) fn end(&mut self, bytes: u64) {
        if let Some(shard) = self.shards.last_mut() {
            shard.bytes = bytes;
        }
    }

    /// Whether files of these kinds can be added under a key, to the shard that was begun last or, `anew`, to the one that is begun next.
    ///
    /// # Errors
    /// A second file of a kind, a name that leads out of the shard.
    pub(crate) fn takes(&self, key: &str, kinds: &[&str], anew: bool) -> Result<(), ShardFault> {
        let there = self.begun(key).filter(|_| !anew).map(|sample| self.members(sample)).unwrap_or_default();
        let mut count = self.kinds.len();
        for (i, kind) in kinds.iter().enumerate() {
            if !stays_inside(key, kind) {
                return Err(unknown(format!("`{key}.{kind}` leads out of the archive")));
            }
            if kinds[..i].contains(kind) || there.iter().any(|member| self.kinds[member.kind as usize] == *kind) {
                return Err(unknown(format!("`{key}.{kind}` is there twice")));
            }
            count += usize::from(!self.kinds.iter().any(|known| known == kind));
        }
        if count > 1 << 16 {
            return Err(unknown("more than 65,536 kinds of files"));
        }
        if self.members.len() + kinds.len() > u32::MAX as usize {
            return Err(unknown("more than 4 billion files"));
        }
        Ok(())
    }

    /// The last sample of the shard that was begun last, if it has this key.
    fn begun(&self, key: &str) -> Option<&Sample> {
        let shard = self.shards.last().filter(|shard| shard.samples > 0);
        self.samples.last().filter(|last| shard.is_some() && *last.key == *key)
    }

    /// Adds a file, to the last sample if it has the same key, else to a new one.
    ///
    /// # Errors
    /// As [`takes`](Self::takes).
    pub(crate) fn add(&mut self, key: &str, kind: &str, member: Member) -> Result<(), ShardFault> {
        self.takes(key, &[kind], false)?;
        let (same, shards, members) = (self.begun(key).is_some(), self.shards.len() as u32, self.members.len() as u32);
        let Some(shard) = self.shards.last_mut() else { return Err(unknown("a file outside any shard")) };
        match self.samples.last_mut().filter(|_| same) {
            Some(last) => last.members.end += 1,
            None => {
                shard.samples += 1;
                self.samples.push(Sample { key: key.into(), shard: shards - 1, members: members..members + 1 });
            }
        }
        let kind_number = self.kinds.iter().position(|known| known == kind).unwrap_or(self.kinds.len());
        if kind_number == self.kinds.len() {
            self.kinds.push(kind.into());
        }
        self.members.push(Member { kind: kind_number as u16, ..member });
        Ok(())
    }

    /// The files of a sample.
    pub(crate) fn members(&self, sample: &Sample) -> &[Member] {
        &self.members[sample.members.start as usize..sample.members.end as usize]
    }

    /// Writes it into `folder`, whole or not at all.
    ///
    /// # Errors
    /// A disk that is full.
    pub(crate) fn save(self, folder: &Path) -> Result<(), ShardError> {
        let path = folder.join(INDEX);
        let text = self.text().map_err(|error| ShardFault::Index(format!("cannot be written: {error}")).of(&path))?;
        write_atomic(&path, text.as_bytes()).map_err(|error| ShardFault::from(error).of(&path))
    }

    fn text(self) -> serde_json::Result<String> {
        let Self { shards, kinds, samples, members } = self;
        let mut text = serde_json::to_string(&Head { format: FORMAT.into(), shards })? + "\n";
        for sample in &samples {
            let files = &members[sample.members.start as usize..sample.members.end as usize];
            let files = files.iter().map(|m| (kinds[m.kind as usize].as_str(), m.at, m.size, m.crc)).collect();
            let line: Line<'_> = (&sample.key, files);
            text.push_str(&serde_json::to_string(&line)?);
            text.push('\n');
        }
        let crc32c = crc32c::crc32c(text.as_bytes());
        Ok(text + &serde_json::to_string(&Tail { crc32c })? + "\n")
    }

    /// The index of `folder` and the CRC-32C of it.
    ///
    /// # Errors
    /// One that is absent, damaged, of another version, or says what cannot be.
    pub(crate) fn load(folder: &Path) -> Result<(Self, u32), ShardError> {
        let path = folder.join(INDEX);
        if !path.exists() {
            return Err(ShardFault::Index("is not there; `data index` writes it".into()).of(&path));
        }
        let bytes = read_bounded(&path, MAX_BYTES).map_err(|error| ShardFault::from(error).of(&path))?;
        Self::parse(&bytes).map_err(|what| ShardFault::Index(what).of(&path))
    }

    fn parse(bytes: &[u8]) -> Result<(Self, u32), String> {
        let damaged = || "is damaged: copy it again, or write it anew".to_string();
        let text = std::str::from_utf8(bytes).ok().and_then(|text| text.strip_suffix('\n')).ok_or_else(damaged)?;
        let (body, last) = text.rsplit_once('\n').ok_or_else(damaged)?;
        let tail: Tail = serde_json::from_str(last).map_err(|_| damaged())?;
        if crc32c::crc32c(&bytes[..=body.len()]) != tail.crc32c {
            return Err(damaged());
        }
        let mut lines = body.lines().zip(1_usize..);
        let head: Head =
            lines.next().and_then(|(line, _)| serde_json::from_str(line).ok()).ok_or_else(|| format!("is not of `{FORMAT}`"))?;
        if head.format != FORMAT {
            return Err(format!("is of `{}`; this program reads `{FORMAT}`", head.format));
        }
        let mut index = Self::default();
        for Shard { file, bytes, samples } in head.shards {
            if !is_plain(&file) {
                return Err(format!("names `{file}`, which is no name of a file beside it"));
            }
            index.begin(file);
            for _ in 0..samples {
                let (line, number) = lines.next().ok_or("has fewer samples than it says")?;
                index.line(line, number, bytes)?;
            }
            index.end(bytes);
        }
        if lines.next().is_some() {
            return Err("has more samples than it says".into());
        }
        Ok((index, tail.crc32c))
    }

    /// Adds the sample of a line, the one of that `number`, whose files end before `bytes`.
    fn line(&mut self, line: &str, number: usize, bytes: u64) -> Result<(), String> {
        let wrong = || format!("has a sample on line {number} that cannot be: {}", line.chars().take(200).collect::<String>());
        let (key, files): (String, Vec<(String, u64, u32, u32)>) = serde_json::from_str(line).map_err(|_| wrong())?;
        let before = self.samples.len();
        for (kind, at, size, crc) in files {
            let end = at.checked_add(BLOCK as u64 + u64::from(size)).ok_or_else(wrong)?;
            if end > bytes || kind.is_empty() || key.is_empty() {
                return Err(wrong());
            }
            self.add(&key, &kind, Member { kind: 0, size, crc, at }).map_err(|_| wrong())?;
        }
        if self.samples.len() == before + 1 { Ok(()) } else { Err(wrong()) }
    }
}

/// Whether a file's name is one below the shard it is in, on any system.
fn stays_inside(key: &str, kind: &str) -> bool {
    let outside = ['\\', ':', '\0'];
    !key.starts_with('/')
        && !key.contains(outside)
        && !kind.contains(outside)
        && !kind.contains('/')
        && key.split('/').all(|part| part != "..")
}

fn unknown(what: impl Into<String>) -> ShardFault {
    ShardFault::Unknown(what.into())
}

/// Whether a name leads nowhere else than into the folder it is looked for in.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}
