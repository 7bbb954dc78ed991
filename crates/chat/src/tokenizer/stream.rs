//! Decoding while generating: a character is several tokens at times, and half a character is no text.

use super::Tokenizer;

/// Decodes token by token, holding back the bytes of an unfinished character.
#[derive(Debug)]
pub struct DecodeStream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    held: Vec<u8>,
}

impl Tokenizer {
    /// Decodes one token after the other, as they are generated.
    pub fn stream(&self, skip_special: bool) -> DecodeStream<'_> {
        DecodeStream { tokenizer: self, skip_special, held: Vec::new() }
    }
}

impl DecodeStream<'_> {
    /// The text that `id` completes, which may be empty.
    pub fn push(&mut self, id: u32) -> String {
        if !(self.skip_special && self.tokenizer.is_special(id)) {
            self.held.extend(self.tokenizer.bytes(id).unwrap_or_default());
        }
        self.take_complete()
    }

    /// What was held back, at the end of the generation: U+FFFD if a character was never finished.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }

    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.held) {
                Ok(rest) => {
                    text.push_str(rest);
                    self.held.clear();
                    return text;
                }
                Err(error) => {
                    let (valid, rest) = self.held.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    // Without a length the character may still be completed; with one it never can.
                    let Some(bad) = error.error_len() else {
                        self.held = rest.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.held = rest.get(bad..).unwrap_or_default().to_vec();
                }
            }
        }
    }
}
