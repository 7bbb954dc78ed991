//! The bytes of a COCO file as JSON has them. Python's `json` writes `NaN`, `Infinity` and `-Infinity` for numbers that are none (a weather station that
//! was silent), and reads them; JSON knows no such words. Here each becomes an empty text, with spaces to its length, and so does a byte order mark become
//! spaces: nothing changes its place, so that the byte of a fault is that of the file.

use std::cell::Cell;
use std::io::{BufReader, Read, Result};

/// What no JSON has outside of texts.
const WORDS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// So many bytes wait for those after them, one less than the longest word has: so each word is looked at whole.
const WAITING: usize = 8;
/// Bytes that are looked at together.
const BLOCK: usize = 64;

/// Such a file, to be read byte by byte; `replaced` counts the words.
pub(super) fn tolerant<R: Read>(reader: R, replaced: &Cell<u64>) -> BufReader<Tolerant<'_, R>> {
    let tolerant =
        Tolerant { reader, buffer: vec![0; 1 << 20], from: 0, ready: 0, filled: 0, begun: false, in_text: false, escaped: false, replaced };
    BufReader::with_capacity(1 << 16, tolerant)
}

pub(super) struct Tolerant<'a, R> {
    reader: R,
    buffer: Vec<u8>,
    /// What is passed on next, up to where it has been looked at, up to where there is anything.
    from: usize,
    ready: usize,
    filled: usize,
    begun: bool,
    /// What stands at `ready` is within a text, and there behind a backslash.
    in_text: bool,
    escaped: bool,
    replaced: &'a Cell<u64>,
}

impl<R: Read> Read for Tolerant<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        let mut ended = false;
        while self.from == self.ready && !ended {
            self.buffer.copy_within(self.ready..self.filled, 0);
            self.filled -= self.ready;
            (self.from, self.ready) = (0, 0);
            let more = self.reader.read(&mut self.buffer[self.filled..])?;
            self.filled += more;
            ended = more == 0;
            self.ready = self.look(if ended { self.filled } else { self.filled.saturating_sub(WAITING) });
        }
        let passed = out.len().min(self.ready - self.from);
        out[..passed].copy_from_slice(&self.buffer[self.from..self.from + passed]);
        self.from += passed;
        Ok(passed)
    }
}

impl<R> Tolerant<'_, R> {
    /// Replaces the words that begin in the first `end` bytes; how many bytes are done with: `end`, or more where the last word goes on behind it.
    fn look(&mut self, end: usize) -> usize {
        let mut at = 0;
        if end > 0 && !std::mem::replace(&mut self.begun, true) && self.buffer[..self.filled].starts_with(BYTE_ORDER_MARK) {
            at = BYTE_ORDER_MARK.len();
            self.buffer[..at].fill(b' ');
        }
        while at < end {
            // Most of a file is numbers and short keys, with nothing to be seen but where texts begin and end: a gigabyte is passed over in a moment.
            let glanced = self.buffer[at..end].first_chunk::<BLOCK>().map(glance);
            if let Some((true, turns)) = glanced
                && !self.escaped
            {
                self.in_text ^= turns;
                at += BLOCK;
                continue;
            }
            let stop = end.min(at + BLOCK);
            while at < stop {
                at += self.step(at);
            }
        }
        at
    }

    /// Looks at the byte at `at`; how many bytes that was.
    fn step(&mut self, at: usize) -> usize {
        let byte = self.buffer[at];
        if self.in_text {
            self.in_text = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            return 1;
        }
        self.in_text = byte == b'"';
        if !matches!(byte, b'N' | b'I' | b'-') {
            return 1;
        }
        let here = &mut self.buffer[at..self.filled];
        let Some(word) = WORDS.into_iter().find(|word| here.starts_with(word)) else { return 1 };
        here[..word.len()].fill(b' ');
        here[..2].fill(b'"');
        self.replaced.set(self.replaced.get() + 1);
        word.len()
    }
}

/// Whether no word begins in a block and no quotation mark in it is part of a text; and whether there is an odd number of these.
fn glance(block: &[u8; BLOCK]) -> (bool, bool) {
    let (mut odd, mut marks) = (0_u8, 0_u8);
    for &byte in block {
        odd |= u8::from(byte == b'N') | u8::from(byte == b'I') | u8::from(byte == b'-') | u8::from(byte == b'\\');
        marks ^= u8::from(byte == b'"');
    }
    (odd == 0, marks == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out so many bytes at a time.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, out: &mut [u8]) -> Result<usize> {
            let (length, size) = (self.0.len(), self.1);
            self.0.read(&mut out[..size.min(length)])
        }
    }

    fn through(reader: impl Read) -> (String, u64) {
        let replaced = Cell::new(0);
        let mut text = String::new();
        tolerant(reader, &replaced).read_to_string(&mut text).unwrap();
        (text, replaced.get())
    }

    #[test]
    fn words_become_empty_texts_of_their_length_wherever_reads_end() {
        let filler = "\"frame\": [0, 1, 2, 3], ".repeat(9);
        let text = format!(
            "\u{feff}{{\"a\":NaN,{filler}\"NaN\\\"NaN\\\\\":[-Infinity, Infinity,-1,\"Infinity \\\\\"],{filler}\"Øre\": NaN, \"b\": -7, \"c\":-Infinity}}"
        );
        let expected = text
            .replace('\u{feff}', "   ")
            .replace("\"a\":NaN", "\"a\":\"\" ")
            .replace("[-Infinity, Infinity,", "[\"\"       , \"\"      ,")
            .replace("\"Øre\": NaN", "\"Øre\": \"\" ")
            .replace("\"c\":-Infinity", "\"c\":\"\"       ");
        assert_eq!(expected.len(), text.len());
        let bytes = text.as_bytes();
        assert_eq!(through(bytes), (expected.clone(), 5));
        for cut in 0..bytes.len() {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(through(first.chain(second)), (expected.clone(), 5), "two reads, cut at {cut}");
        }
        for size in 1..80 {
            assert_eq!(through(Pieces(bytes, size)), (expected.clone(), 5), "reads of {size}");
        }
    }

    #[test]
    fn what_is_no_such_word_stays() {
        for text in ["", "N", "-", "[Na", "[nan, Inf, -Infinit", "\"NaN", "\"\\", "[-1, N]", "{\"a\\\\\":\"NaN\"}"] {
            assert_eq!(through(text.as_bytes()), (text.to_string(), 0));
        }
    }
}
