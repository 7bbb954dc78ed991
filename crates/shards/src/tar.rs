//! Headers of tar archives in the form of POSIX (ustar): 512 bytes before each file, with a sum of their own.

use crate::error::ShardFault;

/// Archives are made of blocks of so many bytes.
pub(crate) const BLOCK: usize = 512;
/// What an archive ends with.
pub(crate) const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

const NAME: std::ops::Range<usize> = 0..100;
const SIZE: std::ops::Range<usize> = 124..136;
const SUM: std::ops::Range<usize> = 148..156;
const KIND: usize = 156;
const PREFIX: std::ops::Range<usize> = 345..500;

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) kind: Kind,
}

/// What follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Folder,
    /// More about the file that follows, or about all.
    Extension,
    Other(u8),
}

/// The header of a file. Owner and time are nobody's and none, so that the same samples are the same archive.
///
/// # Errors
/// A name of more than 100 bytes, or without any.
pub(crate) fn header(name: &str, size: u32) -> Result<[u8; BLOCK], ShardFault> {
    if name.is_empty() || name.len() > NAME.len() {
        return Err(ShardFault::Unknown(format!("`{name}` has {} bytes; names in shards have 1 to {}", name.len(), NAME.len())));
    }
    let mut block = [0; BLOCK];
    block[..name.len()].copy_from_slice(name.as_bytes());
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    put(SIZE.start, &format!("{size:011o}"));
    put(136, "00000000000");
    put(KIND, "0");
    put(257, "ustar\x0000");
    let sum = format!("{:06o}\0 ", sum(&block));
    block[SUM].copy_from_slice(sum.as_bytes());
    Ok(block)
}

/// What a header says, or `None` for the zeros at the end of an archive.
///
/// # Errors
/// Bytes with another sum than they say; a size or a name that is not in ustar's form.
pub(crate) fn parse(block: &[u8; BLOCK]) -> Result<Option<Header>, ShardFault> {
    if block.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    if octal(&block[SUM]) != Some(sum(block)) {
        return Err(ShardFault::Header);
    }
    let size = octal(&block[SIZE]).ok_or_else(|| ShardFault::Unknown("a size that is not written in ustar's form".into()))?;
    let text = |field: &[u8]| field.split(|&byte| byte == 0).next().map(|text| String::from_utf8(text.to_vec()));
    let (Some(Ok(name)), Some(Ok(prefix))) = (text(&block[NAME]), text(&block[PREFIX])) else {
        return Err(ShardFault::Unknown("a name that is not UTF-8".into()));
    };
    // Old GNU archives have times where ustar has the prefix.
    let posix = &block[257..263] == b"ustar\0";
    let name = if posix && !prefix.is_empty() { format!("{prefix}/{name}") } else { name };
    let kind = match block[KIND] {
        0 | b'0' => Kind::File,
        b'5' => Kind::Folder,
        b'x' | b'g' => Kind::Extension,
        other => Kind::Other(other),
    };
    Ok(Some(Header { name, size, kind }))
}

/// How many bytes follow the header of a file of this size: whole blocks.
pub(crate) fn padded(size: u64) -> u64 {
    size.next_multiple_of(BLOCK as u64)
}

/// The sum of a header's bytes, those of the sum itself counted as spaces.
fn sum(block: &[u8; BLOCK]) -> u64 {
    let own: u64 = block[SUM].iter().map(|&byte| u64::from(byte)).sum();
    block.iter().map(|&byte| u64::from(byte)).sum::<u64>() - own + SUM.len() as u64 * u64::from(b' ')
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    u64::from_str_radix(text, 8).ok()
}
