//! Protobuf's bytes as fields, without allocating: a number of the message's definition, and a number or a slice of the file.
//!
//! What a field is, its definition says; here only lengths are checked, against the message they stand in. Groups, which protobuf gave up
//! long ago, are refused. Encoding: <https://protobuf.dev/programming-guides/encoding/>.

use crate::error::Fault;

/// A part of a file, which knows where it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) bytes: &'a [u8],
    /// Where it begins in the file.
    pub(super) at: usize,
}

/// The value of a field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    /// A varint.
    Number(u64),
    /// Four or eight bytes, or as many as a length says: text, bytes, packed numbers or a message.
    Bytes(Part<'a>),
}

impl<'a> Part<'a> {
    pub(super) fn wrong(&self, what: impl Into<String>) -> Fault {
        Fault::Onnx { at: self.at, what: what.into() }
    }

    /// Cuts the next field off: its number and its value.
    pub(super) fn field(&mut self) -> Result<Option<(u64, Value<'a>)>, Fault> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let start = *self;
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Bytes(self.take(8)?),
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Bytes(self.take(4)?),
            kind => return Err(start.wrong(format!("a field of kind {kind}, which ONNX has none of"))),
        };
        Ok(Some((key >> 3, value)))
    }

    /// Seven bits a byte, the lowest first; the last byte's top bit is clear.
    pub(super) fn varint(&mut self) -> Result<u64, Fault> {
        let start = *self;
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?.bytes.first().copied().unwrap_or_default();
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(start.wrong("a number of over ten bytes"))
    }

    fn take(&mut self, count: u64) -> Result<Part<'a>, Fault> {
        let parts = usize::try_from(count).ok().and_then(|count| self.bytes.split_at_checked(count));
        let (bytes, rest) = parts.ok_or_else(|| self.wrong(format!("{count} bytes wanted, {} left", self.bytes.len())))?;
        let taken = Part { bytes, at: self.at };
        *self = Part { bytes: rest, at: self.at + bytes.len() };
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &[u8]) -> Result<Vec<(u64, Value<'_>)>, String> {
        let mut part = Part { bytes, at: 100 };
        std::iter::from_fn(|| part.field().transpose()).collect::<Result<_, _>>().map_err(|e| e.to_string())
    }

    #[test]
    fn a_message_falls_into_its_fields() {
        let found = fields(b"\x08\xac\x02\x12\x03abc\x1d\x00\x00\x80\x3f").unwrap();
        let [(1, Value::Number(300)), (2, Value::Bytes(text)), (3, Value::Bytes(float))] = found[..] else { panic!("{found:?}") };
        assert_eq!((text.bytes, text.at, float.bytes), (&b"abc"[..], 105, &1f32.to_le_bytes()[..]));
        let most = fields(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").unwrap();
        assert!(matches!(most[..], [(1, Value::Number(u64::MAX))]), "{most:?}");
    }

    #[test]
    fn lengths_the_message_does_not_have_are_refused() {
        for (bytes, what) in [
            (&b"\x12\x80\xc8\xaf\xa0\x25abc"[..], "ONNX byte 106: 10000000000 bytes wanted, 3 left"),
            (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "18446744073709551615 bytes wanted, 0 left"),
            (b"\x08", "ONNX byte 101: 1 bytes wanted, 0 left"),
            (b"\x08\xff", "1 bytes wanted, 0 left"),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "over ten bytes"),
            (b"\x0b", "a field of kind 3"),
            (b"\x0d\x00\x00\x00", "4 bytes wanted, 3 left"),
            (b"\x09\x00", "8 bytes wanted, 1 left"),
        ] {
            let error = fields(bytes).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }
}
