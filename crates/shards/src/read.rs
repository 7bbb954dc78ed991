//! Samples read from shards, each compared with the index.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{ShardError, ShardFault};
use crate::index::{INDEX, Index, Member, Sample};
use crate::tar::{BLOCK, Header, Kind, parse};
use crate::walk::archives;

/// Files that are kept open: those that a window of samples reaches into.
const OPEN: usize = 8;

/// A folder of shards, whose samples are numbered over all of them.
#[derive(Debug)]
pub struct Shards {
    folder: PathBuf,
    index: Index,
    mark: u32,
    /// Of each shard whether it is there.
    there: Vec<bool>,
    faults: Vec<String>,
    /// The shards that were read last.
    open: Mutex<Vec<(u32, Arc<Mutex<File>>)>>,
}

impl Shards {
    /// Whether `folder` is one: whether it has an index, and archives beside it or none of anything else (a folder of images may hold a file of that name).
    pub fn is(folder: &Path) -> bool {
        let stray = || std::fs::read_dir(folder).is_ok_and(|mut all| all.any(|entry| entry.is_ok_and(|entry| entry.file_name() != INDEX)));
        folder.join(INDEX).is_file() && (archives(folder).is_ok_and(|names| !names.is_empty()) || !stray())
    }

    /// Whether `folder` has archives and no index.
    pub fn lacks_index(folder: &Path) -> bool {
        !Self::is(folder) && archives(folder).is_ok_and(|names| !names.is_empty())
    }

    /// Opens `folder`. Shards that are missing or of another length than they were are no error yet: [`faults`](Self::faults) names them.
    ///
    /// # Errors
    /// An index that is damaged, or does not name an archive that lies beside it.
    pub fn open(folder: &Path) -> Result<Self, ShardError> {
        let (index, mark) = Index::load(folder)?;
        if let Some(stray) = archives(folder)?.into_iter().find(|name| index.shards.iter().all(|shard| shard.file != *name)) {
            let what = format!("does not name {stray}, which lies beside it: write the index anew, or take that file away");
            return Err(ShardFault::Index(what).of(&folder.join(INDEX)));
        }
        let mut faults = Vec::new();
        let mut look = |shard: &crate::index::Shard| {
            let found = std::fs::metadata(folder.join(&shard.file)).ok().filter(std::fs::Metadata::is_file).map(|info| info.len());
            match found {
                None => faults.push(format!("shard {} is missing: its {} samples cannot be read", shard.file, shard.samples)),
                Some(bytes) if bytes < shard.bytes => {
                    faults.push(format!("shard {} is cut: it has {bytes} of {} bytes", shard.file, shard.bytes));
                }
                Some(_) => {}
            }
            found.is_some()
        };
        let there = index.shards.iter().map(&mut look).collect();
        Ok(Self { folder: folder.into(), index, mark, there, faults, open: Mutex::default() })
    }

    /// Samples of all shards.
    pub fn len(&self) -> usize {
        self.index.samples.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes with any byte of the data and with where it lies: the checksum of the index.
    pub fn mark(&self) -> u32 {
        self.mark
    }

    /// What is wrong with the shards at first sight, a line each.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// The files of the shards, in order.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.index.shards.iter().map(|shard| self.folder.join(&shard.file))
    }

    /// The shard of sample `i`.
    pub fn shard(&self, i: usize) -> usize {
        self.index.samples[i].shard as usize
    }

    /// What sample `i` is called: its key.
    pub fn key(&self, i: usize) -> &str {
        &self.index.samples[i].key
    }

    /// The kinds of its files.
    pub fn kinds(&self, i: usize) -> impl Iterator<Item = &str> {
        self.index.members(&self.index.samples[i]).iter().map(|member| self.index.kinds[member.kind as usize].as_str())
    }

    /// The CRC-32C of its file of a kind, if it has one.
    pub fn checksum(&self, i: usize, kind: &str) -> Option<u32> {
        self.member(&self.index.samples[i], kind).map(|member| member.crc)
    }

    fn member(&self, sample: &Sample, kind: &str) -> Option<Member> {
        self.index.members(sample).iter().copied().find(|member| self.index.kinds[member.kind as usize] == kind)
    }

    /// The file of a kind of sample `i`; none if it has none.
    ///
    /// # Errors
    /// A shard that is missing, cut or damaged, or holds something else than the index says.
    pub fn read(&self, i: usize, kind: &str) -> Result<Option<Vec<u8>>, ShardError> {
        let sample = &self.index.samples[i];
        let Some(member) = self.member(sample, kind) else { return Ok(None) };
        let path = self.folder.join(&self.index.shards[sample.shard as usize].file);
        let name = format!("{}.{kind}", sample.key);
        self.contents(sample.shard, &path, member, &name).map(Some).map_err(|fault| match fault {
            fault @ ShardFault::Missing => fault.of(&path),
            fault => fault.at(&path, member.at),
        })
    }

    fn contents(&self, shard: u32, path: &Path, member: Member, name: &str) -> Result<Vec<u8>, ShardFault> {
        if !self.there[shard as usize] {
            return Err(ShardFault::Missing);
        }
        let file = self.file(shard, path)?;
        let mut header = [0; BLOCK];
        let mut contents = vec![0; member.size as usize];
        {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(member.at))?;
            file.read_exact(&mut header).and_then(|()| file.read_exact(&mut contents)).map_err(cut)?;
        }
        match parse(&header)?.ok_or(ShardFault::Header)? {
            Header { name: found, size, kind: Kind::File } if found == name && size == u64::from(member.size) => {}
            Header { name: found, size, .. } => {
                return Err(ShardFault::Differs { found, size, expected: format!("`{name}` of {} there", member.size) });
            }
        }
        let found = crc32c::crc32c(&contents);
        if found != member.crc {
            return Err(ShardFault::Content { name: name.into(), found, expected: member.crc });
        }
        Ok(contents)
    }

    /// The file of a shard, opened if it is not among those that were read last.
    fn file(&self, shard: u32, path: &Path) -> io::Result<Arc<Mutex<File>>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match open.iter().position(|(number, _)| *number == shard) {
            Some(at) => open.remove(at).1,
            None => {
                let file = File::open(path)?;
                read_ahead(&file);
                Arc::new(Mutex::new(file))
            }
        };
        open.insert(0, (shard, file.clone()));
        open.truncate(OPEN);
        Ok(file)
    }
}

fn cut(error: io::Error) -> ShardFault {
    if error.kind() == ErrorKind::UnexpectedEof { ShardFault::Cut } else { error.into() }
}

/// Asks the system to read a shard from its beginning to its end, into memory that it can take back: samples are then asked for in an order of their own.
#[cfg(target_os = "linux")]
fn read_ahead(file: &File) {
    // Advice: what it is not taken for costs nothing.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::WillNeed);
}

#[cfg(not(target_os = "linux"))]
fn read_ahead(_: &File) {}
