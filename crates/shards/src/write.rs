//! Shards written one after the other, and their index last.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use bellows_runs::StoreError;

use crate::error::{ShardError, ShardFault};
use crate::index::{Index, Member};
use crate::tar::{BLOCK, END, header, padded};

/// Writes samples into shards of a folder.
pub struct Writer {
    folder: PathBuf,
    name: String,
    /// Samples of a shard.
    most: usize,
    index: Index,
    open: Option<Archive>,
    /// Something could not be written: what the index says is not what lies on the disk.
    broken: bool,
}

struct Archive {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
    samples: usize,
}

impl Writer {
    /// Into `folder`, which must be there, as `NAME-000000.tar` and so on, `most` samples each.
    pub fn new(folder: &Path, name: &str, most: usize) -> Self {
        Self { folder: folder.into(), name: name.into(), most: most.max(1), index: Index::default(), open: None, broken: false }
    }

    /// Adds a sample: the kind and the contents of each of its files. One that is refused changes nothing.
    ///
    /// # Errors
    /// A key with a dot, a file without a kind, a name of more than 100 bytes or one that leads out of the shard, a file of 4 GiB or more, two of a kind. A disk
    /// that is full, after which nothing can be added any more.
    pub fn push(&mut self, key: &str, files: &[(&str, &[u8])]) -> Result<(), ShardError> {
        self.whole()?;
        let full = self.open.as_ref().is_none_or(|open| open.samples >= self.most);
        let headers = self.headers(key, files, full).map_err(|fault| fault.of(&self.folder))?;
        // Until all of it is written.
        self.broken = true;
        let mut archive = match self.open.take() {
            Some(open) if !full => open,
            open => self.next(open)?,
        };
        for ((kind, contents), (size, header)) in files.iter().zip(headers) {
            let Archive { path, file, bytes, .. } = &mut archive;
            let member = Member { kind: 0, size, crc: crc32c::crc32c(contents), at: *bytes };
            self.index.add(key, kind, member).map_err(|fault| fault.at(path, *bytes))?;
            let padding = padded(u64::from(size)) - u64::from(size);
            let written = [&header[..], contents, &[0; BLOCK][..padding as usize]].into_iter().try_for_each(|part| file.write_all(part));
            written.map_err(|error| failed(path, error))?;
            *bytes += BLOCK as u64 + padded(u64::from(size));
        }
        archive.samples += 1;
        self.open = Some(archive);
        self.broken = false;
        Ok(())
    }

    /// Sizes and headers of a sample's files, if it can be written, into another shard if the one before is `full`.
    fn headers(&self, key: &str, files: &[(&str, &[u8])], full: bool) -> Result<Vec<(u32, [u8; BLOCK])>, ShardFault> {
        if key.is_empty() || key.contains('.') {
            return Err(ShardFault::Unknown(format!("`{key}` is no key: keys end where the first dot is")));
        }
        let kinds: Vec<&str> = files.iter().map(|(kind, _)| *kind).collect();
        if kinds.contains(&"") {
            return Err(ShardFault::Unknown(format!("`{key}.` is of no kind: nothing is behind the dot")));
        }
        self.index.takes(key, &kinds, full)?;
        let mut headers = Vec::with_capacity(files.len());
        for (kind, contents) in files {
            let name = format!("{key}.{kind}");
            let size = u32::try_from(contents.len()).map_err(|_| ShardFault::Unknown(format!("`{name}` has 4 GiB or more")))?;
            headers.push((size, header(&name, size)?));
        }
        Ok(headers)
    }

    /// Refuses to go on where a sample could not be written.
    fn whole(&self) -> Result<(), ShardError> {
        let error = || failed(&self.folder, std::io::Error::other("a sample before could not be written, so nothing more is"));
        if self.broken { Err(error()) } else { Ok(()) }
    }

    /// Ends `full`, and begins the next shard.
    fn next(&mut self, full: Option<Archive>) -> Result<Archive, ShardError> {
        self.end(full)?;
        let name = format!("{}-{:06}.tar", self.name, self.index.shards.len());
        let path = self.folder.join(&name);
        let file = File::create_new(&path).map_err(|error| failed(&path, error))?;
        self.index.begin(name);
        Ok(Archive { path, file: BufWriter::with_capacity(1 << 20, file), bytes: 0, samples: 0 })
    }

    fn end(&mut self, archive: Option<Archive>) -> Result<(), ShardError> {
        let Some(Archive { path, mut file, bytes, .. }) = archive else { return Ok(()) };
        file.write_all(&END).and_then(|()| file.flush()).and_then(|()| file.get_ref().sync_all()).map_err(|error| failed(&path, error))?;
        self.index.end(bytes + END.len() as u64);
        Ok(())
    }

    /// Ends the last shard and writes the index; returns how many shards there are.
    ///
    /// # Errors
    /// A disk that is full, or was when a sample was added: there is no index then.
    pub fn finish(mut self) -> Result<usize, ShardError> {
        self.whole()?;
        let last = self.open.take();
        self.end(last)?;
        let shards = self.index.shards.len();
        self.index.save(&self.folder)?;
        Ok(shards)
    }
}

fn failed(path: &Path, error: std::io::Error) -> ShardError {
    ShardFault::from(StoreError::new("write", path, error)).of(path)
}
