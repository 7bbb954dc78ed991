//! The little-endian bytes of what is remembered in the user's cache folder: a writer, and a reader that answers `None` to anything unexpected.

/// Bytes being put together.
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn f32(&mut self, value: f32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.0.extend(text.as_bytes());
    }
}

/// Bytes being taken apart.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub(crate) fn f32(&mut self) -> Option<f32> {
        self.take().map(f32::from_le_bytes)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(head.to_vec()).ok()
    }

    /// A count, and room for as many things of at least `size` bytes as can still follow.
    pub(crate) fn list<T>(&mut self, size: usize) -> Option<(u32, Vec<T>)> {
        let count = self.u32()?;
        Some((count, Vec::with_capacity((count as usize).min(self.0.len() / size))))
    }
}
