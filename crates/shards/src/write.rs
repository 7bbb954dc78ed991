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
        Self { folder: folder.into(), name: name.into(), most: most.max(1), index: Index::default(), open: None }
    }

    /// Adds a sample: the kind and the contents of each of its files.
    ///
    /// # Errors
    /// A key with a dot, a name of more than 100 bytes, a file of 4 GiB or more, two of a kind, a disk that is full.
    pub fn push(&mut self, key: &str, files: &[(&str, &[u8])]) -> Result<(), ShardError> {
        let mut archive = match self.open.take() {
            Some(open) if open.samples < self.most => open,
            full => self.next(full)?,
        };
        for (kind, contents) in files {
            let Archive { path, file, bytes, .. } = &mut archive;
            let refused = |fault: ShardFault| fault.at(path, *bytes);
            if key.is_empty() || key.contains('.') {
                return Err(refused(ShardFault::Unknown(format!("`{key}` is no key: keys end where the first dot is"))));
            }
            let name = format!("{key}.{kind}");
            let size = u32::try_from(contents.len()).map_err(|_| refused(ShardFault::Unknown(format!("`{name}` has 4 GiB or more"))))?;
            let header = header(&name, size).map_err(refused)?;
            self.index.add(key, kind, Member { kind: 0, size, crc: crc32c::crc32c(contents), at: *bytes }).map_err(refused)?;
            let padding = padded(u64::from(size)) - u64::from(size);
            let written = [&header[..], contents, &[0; BLOCK][..padding as usize]].into_iter().try_for_each(|part| file.write_all(part));
            written.map_err(|error| failed(path, error))?;
            *bytes += BLOCK as u64 + padded(u64::from(size));
        }
        archive.samples += 1;
        self.open = Some(archive);
        Ok(())
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
    /// A disk that is full.
    pub fn finish(mut self) -> Result<usize, ShardError> {
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
