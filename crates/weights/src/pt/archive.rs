//! The zip container of a `.pt`: `<root>/data.pkl`, `<root>/data/<key>`, `<root>/byteorder`, all stored, not compressed.
//!
//! Refused: compressed or encrypted entries (so nothing can unpack to more than the file holds), repeated or
//! overlapping entries, several roots, big-endian files. Entry names are compared, never used as paths. Every entry that
//! is read is read whole and its CRC checked.

use std::io::{Read, Seek};

use zip::{CompressionMethod, ZipArchive};

use crate::error::Fault;
use crate::limits;

pub(super) struct Archive<R> {
    zip: ZipArchive<R>,
    /// The one directory everything is in, with its slash: `best/`.
    root: String,
}

impl<R: Read + Seek> Archive<R> {
    /// Opens a container of `size` bytes.
    pub(super) fn open(file: R, size: u64) -> Result<Self, Fault> {
        let mut zip = ZipArchive::new(file).map_err(|error| fault("cannot be opened", &error))?;
        if zip.has_duplicate_names() {
            return Err(Fault::Zip { what: "two entries have the same name".into() });
        }
        for index in 0..zip.len() {
            let entry = zip.by_index_data(index).map_err(|error| fault("cannot be listed", &error))?;
            let refuse = |what: String| {
                let name = String::from_utf8_lossy(entry.name_raw());
                Err(Fault::Zip { what: format!("entry `{}` {what}", name.escape_debug()) })
            };
            if entry.encrypted() {
                return refuse("is encrypted".into());
            }
            if entry.compression() != CompressionMethod::Stored || entry.compressed_size() != entry.size() {
                return refuse("is compressed; torch.save stores entries as they are".into());
            }
            if entry.size() > size {
                return refuse(format!("has {} bytes, the whole file {size}", entry.size()));
            }
        }
        if zip.has_overlapping_entries().map_err(|error| fault("cannot be listed", &error))? {
            return Err(Fault::Zip { what: "entries overlap".into() });
        }
        let root = find_root(&zip)?;
        let mut archive = Archive { zip, root };
        archive.check_byte_order()?;
        Ok(archive)
    }

    /// The pickle.
    pub(super) fn pickle(&mut self) -> Result<Vec<u8>, Fault> {
        self.entry("data.pkl", limits::PICKLE_BYTES)
    }

    /// A storage, which must have this many bytes.
    pub(super) fn storage(&mut self, key: &str, bytes: usize) -> Result<Vec<u8>, Fault> {
        let name = format!("data/{key}");
        let data = self.entry(&name, bytes as u64)?;
        if data.len() != bytes {
            return Err(Fault::Zip { what: format!("entry `{name}` has {} bytes, the pickle says {bytes}", data.len()) });
        }
        Ok(data)
    }

    fn check_byte_order(&mut self) -> Result<(), Fault> {
        if self.zip.index_for_name(&format!("{}byteorder", self.root)).is_none() {
            return Ok(());
        }
        match self.entry("byteorder", 16)?.as_slice() {
            b"little" => Ok(()),
            other => Err(Fault::Zip { what: format!("byte order is `{}`, only little is read", other.escape_ascii()) }),
        }
    }

    fn entry(&mut self, name: &str, limit: u64) -> Result<Vec<u8>, Fault> {
        let what = format!("entry `{}`", name.escape_debug());
        let mut entry = self.zip.by_name(&format!("{}{name}", self.root)).map_err(|error| fault(&what, &error))?;
        limits::at_most(format!("bytes of {what}"), entry.size(), limit)?;
        let mut bytes = Vec::with_capacity(entry.size() as usize);
        entry.read_to_end(&mut bytes).map_err(|error| fault(&what, &error))?;
        Ok(bytes)
    }
}

/// The directory that holds the only `data.pkl`.
fn find_root<R>(zip: &ZipArchive<R>) -> Result<String, Fault>
where
    R: Read + Seek,
{
    let names = zip.file_names_raw().filter_map(|name| std::str::from_utf8(name).ok());
    let roots = names.filter_map(|name| name.strip_suffix("data.pkl"));
    let mut roots = roots.filter(|root| root.split_once('/').is_some_and(|(_, rest)| rest.is_empty()));
    match (roots.next(), roots.next()) {
        (Some(root), None) => Ok(root.to_owned()),
        (None, _) => Err(Fault::Zip { what: "there is no <name>/data.pkl; it was not written by torch.save".into() }),
        (Some(_), Some(_)) => Err(Fault::Zip { what: "several directories have a data.pkl".into() }),
    }
}

fn fault(what: &str, error: &dyn std::fmt::Display) -> Fault {
    Fault::Zip { what: format!("{what}: {error}") }
}
