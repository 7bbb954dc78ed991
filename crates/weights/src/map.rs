//! A file seen as memory, so that a tensor is read from disk when it is asked for and never twice.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;

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

/// Gives a part's pages back to the system, so that a model that was read tensor by tensor does not stay in memory beside what was made of it.
/// They are the file's: whoever asks for them again has them read again.
#[cfg(unix)]
#[expect(unsafe_code, reason = "unchecked because other kinds of maps would lose what was written to them; nothing is written to this one")]
pub(crate) fn give_back(map: &Mmap, part: &Range<usize>) {
    // A page that stays costs memory and nothing else.
    let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, part.start, part.len()) };
}

#[cfg(not(unix))]
pub(crate) fn give_back(_: &Mmap, _: &Range<usize>) {}
