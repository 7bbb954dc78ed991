//! The index of shards that another program wrote: every archive of a folder is read from its beginning to its end.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use crate::error::{ShardError, ShardFault};
use crate::index::{Index, Member};
use crate::tar::{BLOCK, Header, Kind, padded, parse};

/// Extensions of headers are short.
const MAX_EXTENSION: u64 = 1 << 20;
const CHUNK: usize = 1 << 16;

/// Writes the index of the archives (`*.tar`) in `folder`, in the order of their names. `progress` gets (done, total) archives. Returns how many samples there are.
///
/// # Errors
/// No archive; one that is cut or damaged; names that are longer than ustar has room for; a sample with two files of a kind.
pub fn write_index(folder: &Path, progress: &mut dyn FnMut(usize, usize)) -> Result<usize, ShardError> {
    let names = archives(folder)?;
    if names.is_empty() {
        return Err(ShardFault::Index("has nothing to say: there is no .tar in this folder".into()).of(folder));
    }
    let mut index = Index::default();
    for (done, name) in names.iter().enumerate() {
        let path = folder.join(name);
        index.begin(name.clone());
        let bytes = walk(&path, &mut index)?;
        index.end(bytes);
        progress(done + 1, names.len());
    }
    let samples = index.samples.len();
    index.save(folder)?;
    Ok(samples)
}

/// The names of the archives in a folder, sorted.
///
/// # Errors
/// A folder that cannot be read.
pub(crate) fn archives(folder: &Path) -> Result<Vec<String>, ShardError> {
    let refused = |error: std::io::Error| ShardFault::from(error).of(folder);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(refused)? {
        let entry = entry.map_err(refused)?;
        names.extend(entry.file_name().into_string().ok().filter(|name| name.ends_with(".tar") && entry.path().is_file()));
    }
    names.sort_unstable();
    Ok(names)
}

/// Adds the samples of an archive; returns how many bytes the file has.
fn walk(path: &Path, index: &mut Index) -> Result<u64, ShardError> {
    let file = File::open(path).map_err(|error| ShardFault::from(error).of(path))?;
    let length = file.metadata().map_err(|error| ShardFault::from(error).of(path))?.len();
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut at = 0;
    loop {
        let wrong = |fault: ShardFault| fault.at(path, at);
        let mut block = [0; BLOCK];
        // An archive ends in zeros: one that ends without them is a part of one.
        read(&mut file, &mut block).map_err(wrong)?;
        let Some(header) = parse(&block).map_err(wrong)? else { return Ok(length) };
        match header.kind {
            Kind::File => member(&mut file, &header, at, index).map_err(wrong)?,
            Kind::Folder | Kind::Extension => extension(&mut file, &header).map_err(wrong)?,
            Kind::Other(kind) => return Err(wrong(ShardFault::Unknown(format!("`{}` is no file (type {kind})", header.name)))),
        }
        at += BLOCK as u64 + padded(header.size);
    }
}

fn member(file: &mut impl Read, header: &Header, at: u64, index: &mut Index) -> Result<(), ShardFault> {
    let size = u32::try_from(header.size).map_err(|_| ShardFault::Unknown(format!("`{}` has 4 GiB or more", header.name)))?;
    let (mut crc, mut left, mut chunk) = (0, header.size, vec![0; CHUNK]);
    while left > 0 {
        let part = &mut chunk[..left.min(CHUNK as u64) as usize];
        read(file, part)?;
        crc = crc32c::crc32c_append(crc, part);
        left -= part.len() as u64;
    }
    read(file, &mut chunk[..(padded(header.size) - header.size) as usize])?;
    match split(&header.name) {
        Some((key, kind)) => index.add(key, kind, Member { kind: 0, size, crc, at }),
        // A file without a kind is of no sample.
        None => Ok(()),
    }
}

/// Passes over what says more of a file than its header has room for, unless that is its name or its size.
fn extension(file: &mut impl Read, header: &Header) -> Result<(), ShardFault> {
    if header.size > MAX_EXTENSION {
        return Err(ShardFault::Unknown(format!("{} bytes about a file; at most {MAX_EXTENSION} are read", header.size)));
    }
    let mut bytes = vec![0; padded(header.size) as usize];
    read(file, &mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    match [" path=", " size="].into_iter().find(|key| text.contains(key)) {
        Some(key) => {
            Err(ShardFault::Unknown(format!("a{}that ustar has no room for; use shorter names and smaller files", key.replace('=', " "))))
        }
        None => Ok(()),
    }
}

fn read(file: &mut impl Read, bytes: &mut [u8]) -> Result<(), ShardFault> {
    file.read_exact(bytes).map_err(|error| if error.kind() == ErrorKind::UnexpectedEof { ShardFault::Cut } else { error.into() })
}

/// The key of a file and its kind, which begins behind the first dot of its name; none where a part of it is empty.
fn split(name: &str) -> Option<(&str, &str)> {
    let begin = name.rfind('/').map_or(0, |at| at + 1);
    let dot = begin + name[begin..].find('.')?;
    let (key, kind) = (&name[..dot], &name[dot + 1..]);
    (dot > begin && !kind.is_empty()).then_some((key, kind))
}
