//! A file seen as memory, so that a tensor is read from disk when it is asked for and never twice.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::error::Fault;

/// Maps a regular file.
pub(crate) fn map(path: &Path) -> Result<Mmap, Fault> {
    // Asked before opening: opening a named pipe would wait for its other end.
    if !std::fs::metadata(path)?.is_file() {
        return Err(Fault::NotAFile);
    }
    map_file(&File::open(path)?)
}

/// The map is shared with whoever writes the file. What we read of it is plain bytes, every one of which is checked or may
/// have any value, so a change shows as a wrong number or an error; only a file cut short while it is read ends the process
/// (SIGBUS), as it would for any reader that maps.
#[expect(unsafe_code, reason = "memory maps are unsafe by declaration; the comment above says why this one is sound enough")]
fn map_file(file: &File) -> Result<Mmap, Fault> {
    Ok(unsafe { Mmap::map(file)? })
}
