//! A position in the bytes of a file, moved on by what is read; never past the end.

use crate::error::Fault;

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// Bytes from the start of the file.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn fault(&self, what: impl Into<String>) -> Fault {
        Fault::Gguf { at: self.at as u64, what: what.into() }
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], Fault> {
        if count > self.left() {
            return Err(self.fault(format!("{count} bytes wanted, {} left in the file", self.left())));
        }
        let start = self.at;
        self.at += count as usize;
        Ok(&self.bytes[start..self.at])
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count of things that take at least `min_bytes` each, and so is bounded by what is left of the file.
    pub(super) fn count(&mut self, what: &str, min_bytes: u64) -> Result<u64, Fault> {
        let at = self.at as u64;
        let count = self.u64()?;
        if count > self.left() / min_bytes {
            let what = format!("{count} {what} are announced, {} bytes are left in the file", self.left());
            return Err(Fault::Gguf { at, what });
        }
        Ok(count)
    }

    /// A u64 length, then UTF-8.
    pub(super) fn text(&mut self) -> Result<&'a str, Fault> {
        let length = self.count("bytes of text", 1)?;
        let at = self.at as u64;
        let bytes = self.take(length)?;
        str::from_utf8(bytes).map_err(|e| Fault::Gguf { at: at + e.valid_up_to() as u64, what: "the text is not UTF-8".into() })
    }
}
