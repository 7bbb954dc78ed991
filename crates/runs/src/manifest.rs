//! `manifest.json`: what a checkpoint holds, sealed so that a flipped bit anywhere in it shows.
//!
//! The last field, `sha256`, is the digest of every byte before it and is checked before anything else is believed. The seal is
//! the same in every format version; only below it may versions differ. So a damaged version number is damage, and an intact
//! higher one is a newer program's checkpoint. Refused: duplicate members, member names that are not plain file names.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The checkpoint format this program writes, and the highest it reads. 2 holds the rows of `results.csv`, and may hold numbers of other types
/// than f32; 1 did not.
pub const FORMAT: u32 = 2;
/// Name of the manifest inside a checkpoint directory.
pub const MANIFEST: &str = "manifest.json";
/// No manifest is read past this many bytes.
pub(crate) const MANIFEST_LIMIT: u64 = 16 << 20;

/// One file of a checkpoint: a plain file name and its whole contents.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    /// ASCII letters, digits, `.`, `_`, `-`; no leading dot; at most 100 bytes; not `manifest.json`; unique ignoring case.
    pub name: &'a str,
    /// The contents.
    pub bytes: &'a [u8],
}

/// A member name that cannot be a file name on every system, or is used twice.
#[derive(Debug, thiserror::Error)]
#[error("checkpoint member {name:?}: {reason}")]
pub struct MemberNameError {
    /// The name in question.
    pub name: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// The manifest without its seal.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    pub(crate) step: u64,
    pub(crate) members: Vec<MemberEntry>,
    pub(crate) info: Map<String, Value>,
}

/// Name, length in bytes and SHA-256 (lower-case hex) of a member.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemberEntry {
    pub(crate) name: String,
    pub(crate) len: u64,
    pub(crate) sha256: String,
}

/// Why manifest bytes were not accepted.
#[derive(Debug, PartialEq)]
pub(crate) enum ManifestError {
    /// The bytes are not what was written.
    Damaged(String),
    /// Intact, and of this higher format.
    Newer(u32),
}

impl Manifest {
    pub(crate) fn new(step: u64, members: &[Member<'_>], info: &Map<String, Value>) -> Result<Self, MemberNameError> {
        check_names(members.iter().map(|m| m.name))?;
        let entry = |m: &Member<'_>| MemberEntry { name: m.name.into(), len: m.bytes.len() as u64, sha256: sha256_hex(m.bytes) };
        Ok(Self { format: FORMAT, step, members: members.iter().map(entry).collect(), info: info.clone() })
    }

    /// The sealed text. Equal manifests give equal text.
    pub(crate) fn to_sealed(&self) -> serde_json::Result<String> {
        let json = serde_json::to_string_pretty(self)?;
        let body = json.strip_suffix('}').unwrap_or(&json).trim_end();
        Ok(format!("{body}{}", seal(body)))
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let damaged = |why: String| ManifestError::Damaged(why);
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not UTF-8 text".into()))?;
        let json = unseal(text).ok_or_else(|| damaged("its own checksum does not match".into()))?;

        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let version: Version = serde_json::from_str(&json).map_err(|e| damaged(e.to_string()))?;
        if version.format > FORMAT {
            return Err(ManifestError::Newer(version.format));
        }
        let manifest: Self = serde_json::from_str(&json).map_err(|e| damaged(e.to_string()))?;
        if manifest.format == 0 {
            return Err(damaged("there is no format 0".into()));
        }
        check_names(manifest.members.iter().map(|m| m.name.as_str())).map_err(|e| damaged(e.to_string()))?;
        Ok(manifest)
    }
}

/// The end of a manifest whose text so far is `body` (a JSON object without its closing brace).
fn seal(body: &str) -> String {
    format!(",\n  \"sha256\": \"{}\"\n}}\n", sha256_hex(body.as_bytes()))
}

/// The JSON object before it was sealed, if the seal is the one its bytes ask for.
fn unseal(text: &str) -> Option<String> {
    let at = text.rfind(",\n  \"sha256\": ")?;
    let (body, end) = text.split_at(at);
    (seal(body) == end).then(|| format!("{body}\n}}"))
}

fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), MemberNameError> {
    let mut seen = BTreeSet::new();
    for name in names {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let reason = if name.is_empty() || name.starts_with('.') || name.len() > 100 || !name.chars().all(plain) {
            "not a plain file name"
        } else if name.eq_ignore_ascii_case(MANIFEST) {
            "the name of the manifest"
        } else if !seen.insert(name.to_ascii_lowercase()) {
            "listed twice"
        } else {
            continue;
        };
        return Err(MemberNameError { name: name.into(), reason });
    }
    Ok(())
}

/// SHA-256 as lower-case hex.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        let members = [Member { name: "weights.bin", bytes: b"abc" }, Member { name: "state.json", bytes: b"" }];
        let info = serde_json::json!({"epoch": 3, "mAP50": 0.123456789012345, "nested": {"a": [1, "}"]}});
        Manifest::new(7, &members, info.as_object().unwrap()).unwrap()
    }

    fn sealed(json: &str) -> String {
        let body = json.strip_suffix('}').unwrap().trim_end();
        format!("{body}{}", seal(body))
    }

    #[test]
    fn sha256_of_the_standard_example() {
        // FIPS 180-4, one-block message "abc".
        assert_eq!(sha256_hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn round_trip_and_still_plain_json() {
        let text = sample().to_sealed().unwrap();
        assert_eq!(Manifest::parse(text.as_bytes()).unwrap(), sample());
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["members"][0]["name"], "weights.bin");
        assert_eq!(json["sha256"].as_str().unwrap().len(), 64);
        let empty = Manifest::new(0, &[], &Map::new()).unwrap();
        assert_eq!(Manifest::parse(empty.to_sealed().unwrap().as_bytes()).unwrap(), empty);
    }

    #[test]
    fn every_single_bit_and_every_truncation_is_noticed() {
        let text = sample().to_sealed().unwrap().into_bytes();
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Manifest::parse(&flipped), Err(ManifestError::Damaged(_))), "bit {bit} of {}", text.len() * 8);
        }
        for len in 0..text.len() {
            assert!(matches!(Manifest::parse(&text[..len]), Err(ManifestError::Damaged(_))), "cut to {len}");
        }
    }

    #[test]
    fn an_intact_newer_version_is_told_apart_from_damage() {
        let newer = sealed(r#"{"format": 3, "shape": "unknown to us"}"#);
        assert_eq!(Manifest::parse(newer.as_bytes()), Err(ManifestError::Newer(3)));
        let zero = sealed(r#"{"format": 0, "step": 1, "members": [], "info": {}}"#);
        assert!(matches!(Manifest::parse(zero.as_bytes()), Err(ManifestError::Damaged(_))));
    }

    #[test]
    fn duplicates_unknown_keys_and_paths_are_refused() {
        let entry = |name: &str| format!(r#"{{"name": "{name}", "len": 0, "sha256": "00"}}"#);
        let with = |members: String| sealed(&format!(r#"{{"format": 1, "step": 1, "members": [{members}], "info": {{}}}}"#));
        assert!(Manifest::parse(with(entry("a")).as_bytes()).is_ok());
        for members in [
            format!("{}, {}", entry("a"), entry("A")),
            r#"{"name": "a", "name": "b", "len": 0, "sha256": "00"}"#.into(),
            r#"{"name": "a", "len": 0, "sha256": "00", "mode": 7}"#.into(),
            entry("../a"),
            entry("/etc/passwd"),
            entry(".."),
            entry(""),
            entry("manifest.json"),
            entry("a\\\\b"),
        ] {
            let text = with(members);
            assert!(matches!(Manifest::parse(text.as_bytes()), Err(ManifestError::Damaged(_))), "{text}");
        }
        let deep =
            sealed(&format!(r#"{{"format": 1, "step": 1, "members": [], "info": {{"a": {}1{}}}}}"#, "[".repeat(5000), "]".repeat(5000)));
        assert!(matches!(Manifest::parse(deep.as_bytes()), Err(ManifestError::Damaged(_))));
    }
}
