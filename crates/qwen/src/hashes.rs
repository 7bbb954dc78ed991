//! Hashes: FNV-1a of what need not resist anybody, and digests in hexadecimal digits.

/// What FNV-1a begins with.
pub(crate) const FNV: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a of bytes or longer words, going on from `hash`.
pub(crate) fn fnv<W: Into<u64>>(hash: u64, words: impl Iterator<Item = W>) -> u64 {
    words.fold(hash, |hash, word| (hash ^ word.into()).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Two digits a byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of FNV's own table; checkpoints remember such hashes.
    #[test]
    fn hashes_are_fnv_1a() {
        assert_eq!(fnv(FNV, "".bytes()), FNV);
        assert_eq!(fnv(FNV, "foobar".bytes()), 0x8594_4171_f739_67e8);
        assert_eq!(fnv(fnv(FNV, "foo".bytes()), "bar".bytes()), 0x8594_4171_f739_67e8);
        assert_eq!(hex(&[0, 0x0a, 0xff]), "000aff");
    }
}
