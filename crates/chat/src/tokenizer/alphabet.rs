//! The byte-level alphabet of GPT-2: each of the 256 bytes as one printable character, so that a vocabulary can be written as text.

/// The character that stands for `byte`: itself where Latin-1 has a printable one, else U+0100 and on in the order of the bytes.
pub(super) fn char_of(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        char::from(byte)
    } else {
        let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
        char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
    }
}

/// The byte that `c` stands for.
pub(super) fn byte_of(c: char) -> Option<u8> {
    static BYTES: std::sync::LazyLock<std::collections::HashMap<char, u8>> =
        std::sync::LazyLock::new(|| (0..=255).map(|byte| (char_of(byte), byte)).collect());
    BYTES.get(&c).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_alphabet_of_the_library() {
        let ours: std::collections::BTreeSet<char> = (0..=255).map(char_of).collect();
        let theirs = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
        assert_eq!(ours, theirs);
        assert_eq!([char_of(b' '), char_of(b'\n'), char_of(b'a'), char_of(0)], ['Ġ', 'Ċ', 'a', 'Ā']);
        assert!((0..=255).all(|byte| byte_of(char_of(byte)) == Some(byte)));
    }
}
