//! The pickle byte stream as opcodes: the subset of protocol 2 that Python's pickler emits for `torch.save`.
//!
//! Anything else is refused, among it every opcode of protocols 3 to 5 (`STACK_GLOBAL` builds the name of a
//! global at run time) and of protocols 0 and 1. `torch.save` writes protocol 2 unless told otherwise.
//! Source: the opcode table in CPython's `pickletools`.

use crate::error::Fault;

/// One instruction with its argument.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Op<'a> {
    Proto(u8),
    Global {
        module: &'a str,
        name: &'a str,
    },
    Mark,
    /// The values above the mark as a tuple.
    Tuple,
    /// The top n values as a tuple.
    TupleOf(usize),
    EmptyList,
    Append,
    Appends,
    EmptyDict,
    SetItem,
    SetItems,
    Str(&'a str),
    Int(i64),
    Float(f64),
    Bool(bool),
    None,
    Reduce,
    NewObj,
    Build,
    Put(u32),
    Get(u32),
    PersId,
    Stop,
}

/// Cursor over the bytes of `data.pkl`.
pub(super) struct Ops<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Ops<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Ops { bytes, at: 0 }
    }

    /// The next instruction and its position.
    pub(super) fn next(&mut self) -> Result<(usize, Op<'a>), Fault> {
        let at = self.at;
        let op = self.decode().map_err(|what| Fault::Pickle { at, what })?;
        Ok((at, op))
    }

    fn decode(&mut self) -> Result<Op<'a>, String> {
        let [opcode] = self.fixed()?;
        Ok(match opcode {
            0x80 => Op::Proto(u8::from_le_bytes(self.fixed()?)),
            b'c' => Op::Global { module: self.line()?, name: self.line()? },
            b'(' => Op::Mark,
            b')' => Op::TupleOf(0),
            0x85 => Op::TupleOf(1),
            0x86 => Op::TupleOf(2),
            0x87 => Op::TupleOf(3),
            b't' => Op::Tuple,
            b']' => Op::EmptyList,
            b'a' => Op::Append,
            b'e' => Op::Appends,
            b'}' => Op::EmptyDict,
            b's' => Op::SetItem,
            b'u' => Op::SetItems,
            b'X' => Op::Str(self.text()?),
            b'K' => Op::Int(u8::from_le_bytes(self.fixed()?).into()),
            b'M' => Op::Int(u16::from_le_bytes(self.fixed()?).into()),
            b'J' => Op::Int(i32::from_le_bytes(self.fixed()?).into()),
            0x8a => self.long()?,
            b'G' => Op::Float(f64::from_be_bytes(self.fixed()?)),
            0x88 => Op::Bool(true),
            0x89 => Op::Bool(false),
            b'N' => Op::None,
            b'R' => Op::Reduce,
            0x81 => Op::NewObj,
            b'b' => Op::Build,
            b'q' => Op::Put(u8::from_le_bytes(self.fixed()?).into()),
            b'r' => Op::Put(u32::from_le_bytes(self.fixed()?)),
            b'h' => Op::Get(u8::from_le_bytes(self.fixed()?).into()),
            b'j' => Op::Get(u32::from_le_bytes(self.fixed()?)),
            b'Q' => Op::PersId,
            b'.' => Op::Stop,
            other => return Err(format!("opcode 0x{other:02x} is not one that torch.save writes")),
        })
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..count).ok_or_else(|| format!("{count} bytes wanted, {} left", rest.len()))?;
        self.at += count;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    /// BINUNICODE: four bytes of length, then UTF-8.
    fn text(&mut self) -> Result<&'a str, String> {
        let length = u32::from_le_bytes(self.fixed()?) as usize;
        std::str::from_utf8(self.take(length)?).map_err(|_| "text is not UTF-8".to_owned())
    }

    /// The rest of the line, without its end.
    fn line(&mut self) -> Result<&'a str, String> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|&byte| byte == b'\n').ok_or("a name without an end")?;
        let line = self.take(length)?;
        self.take(1)?;
        std::str::from_utf8(line).map_err(|_| "a name is not UTF-8".to_owned())
    }

    /// LONG1: one byte of length, then two's complement, little endian.
    /// Integers over 64 bits (random generator states) are read as the nearest float: nothing here needs them exactly.
    fn long(&mut self) -> Result<Op<'a>, String> {
        let [length] = self.fixed()?;
        let bytes = self.take(length.into())?;
        let fill = if bytes.last().is_some_and(|top| top & 0x80 != 0) { 0xff } else { 0 };
        if bytes.len() <= 8 {
            let mut wide = [fill; 8];
            wide[..bytes.len()].copy_from_slice(bytes);
            return Ok(Op::Int(i64::from_le_bytes(wide)));
        }
        let magnitude = bytes.iter().rev().fold(0.0, |sum, byte| sum * 256.0 + f64::from(byte ^ fill));
        Ok(Op::Float(if fill == 0 { magnitude } else { -magnitude - 1.0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(bytes: &[u8]) -> Result<Op<'_>, Fault> {
        Ops::new(bytes).next().map(|(_, op)| op)
    }

    #[test]
    fn integers_of_every_width() {
        assert_eq!(only(b"K\xff").unwrap(), Op::Int(255));
        assert_eq!(only(b"M\x00\x01").unwrap(), Op::Int(256));
        assert_eq!(only(b"J\xfe\xff\xff\xff").unwrap(), Op::Int(-2));
        assert_eq!(only(b"\x8a\x00").unwrap(), Op::Int(0));
        assert_eq!(only(b"\x8a\x01\xff").unwrap(), Op::Int(-1));
        assert_eq!(only(b"\x8a\x05\x00\x00\x00\x80\x00").unwrap(), Op::Int(1 << 31));
        assert_eq!(only(b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01").unwrap(), Op::Float(2f64.powi(64)));
        assert_eq!(only(b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xff").unwrap(), Op::Float(-2f64.powi(64)));
    }

    #[test]
    fn text_floats_and_globals() {
        assert_eq!(only(b"X\x02\x00\x00\x00hi").unwrap(), Op::Str("hi"));
        assert_eq!(only(b"G\x3f\xf8\x00\x00\x00\x00\x00\x00").unwrap(), Op::Float(1.5));
        assert_eq!(only(b"cos\nsystem\n").unwrap(), Op::Global { module: "os", name: "system" });
    }

    #[test]
    fn damage_is_refused_with_its_position() {
        let mut ops = Ops::new(b"NX\xff\xff\xff\xffhi");
        assert_eq!(ops.next().unwrap(), (0, Op::None));
        assert_eq!(ops.next().unwrap_err().to_string(), "data.pkl byte 1: 4294967295 bytes wanted, 2 left");
        assert_eq!(only(b"\x93").unwrap_err().to_string(), "data.pkl byte 0: opcode 0x93 is not one that torch.save writes");
        assert!(only(b"cos").unwrap_err().to_string().contains("without an end"));
        assert!(only(b"X\x01\x00\x00\x00\xff").unwrap_err().to_string().contains("UTF-8"));
        assert!(only(b"").unwrap_err().to_string().contains("1 bytes wanted, 0 left"));
    }
}
