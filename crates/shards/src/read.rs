//! Samples read from shards, each compared with the index.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{ShardError, ShardFault};
use crate::index::{INDEX, Index, Member, Sample};
use crate::tar::{BLOCK, Header, Kind, parse};
use crate::walk::archives;

/// Files that are kept open: those that a window of samples reaches into.
const OPEN: usize = 8;

/// How often a shard is read, as long as it is kept open, before all of it is asked for: in a random order over many shards it is seldom read twice.
const OFTEN: usize = 16;

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
    open: Mutex<Vec<(u32, Arc<Open>)>>,
}

/// A shard that is kept open.
#[derive(Debug)]
struct Open {
    file: File,
    /// Held by whoever moves the place in the file and reads there.
    place: Mutex<()>,
    reads: AtomicUsize,
}

impl Open {
    /// Fills these with what lies at `at`.
    fn read(&self, at: u64, parts: [&mut [u8]; 2]) -> io::Result<()> {
        if self.is_read_often() {
            read_ahead(&self.file);
        }
        let _place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = &self.file;
        file.seek(SeekFrom::Start(at))?;
        parts.into_iter().try_for_each(|part| file.read_exact(part))
    }

    /// Whether it is from this read on.
    fn is_read_often(&self) -> bool {
        self.reads.fetch_add(1, Ordering::Relaxed) + 1 == OFTEN
    }
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

    /// What the index has of its file of a kind, if it has one: the byte of its header, size, CRC-32C.
    pub fn indexed(&self, i: usize, kind: &str) -> Option<[u64; 3]> {
        self.member(&self.index.samples[i], kind).map(|member| [member.at, member.size.into(), member.crc.into()])
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
        file.read(member.at, [&mut header, &mut contents]).map_err(cut)?;
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
    fn file(&self, shard: u32, path: &Path) -> io::Result<Arc<Open>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match open.iter().position(|(number, _)| *number == shard) {
            Some(at) => open.remove(at).1,
            None => Arc::new(Open { file: File::open(path)?, place: Mutex::default(), reads: AtomicUsize::new(0) }),
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::Writer;

    /// A whole shard is asked for when it is read from one end to the other, once, and not where every sample is in another shard.
    #[test]
    fn shards_that_are_read_once_are_not_read_ahead() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path(), "x", 20);
        (0..20 * (OPEN + 1)).for_each(|i| writer.push(&i.to_string(), &[("jpg", &[7; 9])]).unwrap());
        writer.finish().unwrap();
        let shards = Shards::open(dir.path()).unwrap();
        let most = || shards.open.lock().unwrap().iter().map(|(_, open)| open.reads.load(Ordering::Relaxed)).max().unwrap();
        for round in 0..20 {
            (0..=OPEN).for_each(|shard| assert!(shards.read(20 * shard + round, "jpg").unwrap().is_some()));
            assert_eq!(most(), 1);
        }
        (0..20).for_each(|i| assert!(shards.read(i, "jpg").unwrap().is_some()));
        assert_eq!(most(), 20);
        let file = shards.file(0, &dir.path().join("x-000000.tar")).unwrap();
        file.reads.store(0, Ordering::Relaxed);
        assert_eq!((1..=40).filter(|_| file.is_read_often()).count(), 1);
    }
}
