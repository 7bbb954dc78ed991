//! What a core has: the sizes of its caches, from which the sizes of blocks and strips follow.
//!
//! They follow by formula and never by timing, since what cuts a sum decides its last bits: a run ends in the same ones whatever else the
//! machine does.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// One cache of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Its size; of one that several cores share, a core's part.
    pub bytes: usize,
    /// Lines that can be held of those with the same place in it.
    pub ways: usize,
}

/// The caches that a core has to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// First level, data.
    pub first: Cache,
    /// Second level.
    pub second: Cache,
}

/// What is assumed where nothing is known.
const USUAL: Machine = Machine { first: Cache { bytes: 32 << 10, ways: 8 }, second: Cache { bytes: 1 << 20, ways: 16 } };

/// This machine.
pub fn machine() -> Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    *MACHINE.get_or_init(|| Machine::read(Path::new("/sys/devices/system/cpu/cpu0/cache")).unwrap_or(USUAL))
}

impl Machine {
    /// As Linux describes the first processor's caches in this folder.
    fn read(folder: &Path) -> Option<Self> {
        let mut levels = [None; 2];
        for index in 0..8 {
            let value = |name: &str| fs::read_to_string(folder.join(format!("index{index}")).join(name)).ok();
            let Some(kind) = value("type") else { break };
            let level: usize = value("level")?.trim().parse().ok()?;
            if let (Some(found), "Data" | "Unified") = (levels.get_mut(level.wrapping_sub(1)), kind.trim()) {
                let sharing = processors(&value("shared_cpu_list")?)?;
                let kilobytes: usize = value("size")?.trim().strip_suffix('K')?.parse().ok()?;
                // Two threads of a core count as one; what more processors share, they divide.
                let bytes = (kilobytes << 10) / sharing.div_ceil(2).max(1);
                *found = Some(Cache { bytes, ways: value("ways_of_associativity")?.trim().parse().ok().filter(|&ways| ways > 0)? });
            }
        }
        Some(Self { first: levels[0]?, second: levels[1]? }).filter(|m| m.first.bytes >= 8 << 10 && m.second.bytes >= 64 << 10)
    }

    /// Cells of a packed strip: 600 KB of a cache of 1 MB. (More is no better, 400 KB lose 2 %.)
    pub fn strip_cells(self) -> usize {
        self.second.bytes / 1024 * 150_000 / 1024
    }

    /// Bytes of transformed data that a group of Winograd's tiles may have, 450 of 1024 KB.
    pub fn group_bytes(self) -> usize {
        self.second.bytes / 1024 * 450
    }

    /// Bytes of Winograd's sums that one task may have, 1300 for 1024 KB: each is touched once for a group.
    pub fn sum_bytes(self) -> usize {
        self.second.bytes / 1024 * 1300
    }
}

/// The number of processors in a list like `0-3,8`.
fn processors(list: &str) -> Option<usize> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last] = [first, last].map(|n| n.trim().parse::<usize>().ok());
        last?.checked_sub(first?).map(|n| n + 1)
    };
    list.trim().split(',').map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_on_a_megabyte() {
        assert_eq!((USUAL.strip_cells(), USUAL.group_bytes(), USUAL.sum_bytes()), (150_000, 450 << 10, 1300 << 10));
        let twice = Machine { second: Cache { bytes: 2 << 20, ways: 16 }, ..USUAL };
        assert_eq!((twice.strip_cells(), twice.group_bytes()), (300_000, 900 << 10));
    }

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn what_linux_says() {
        let folder = std::env::temp_dir().join(format!("bellows-caches-{}", std::process::id()));
        let cache = |index: usize, values: [&str; 5]| {
            let folder = folder.join(format!("index{index}"));
            fs::create_dir_all(&folder).unwrap();
            for (name, value) in ["level", "type", "size", "ways_of_associativity", "shared_cpu_list"].into_iter().zip(values) {
                fs::write(folder.join(name), format!("{value}\n")).unwrap();
            }
        };
        cache(0, ["1", "Data", "48K", "12", "0,64"]);
        cache(1, ["1", "Instruction", "32K", "8", "0,64"]);
        assert_eq!(Machine::read(&folder), None, "no second level");
        cache(2, ["2", "Unified", "4096K", "16", "0-3"]);
        cache(3, ["3", "Unified", "32768K", "16", "0-63"]);
        let read = Machine::read(&folder);
        fs::remove_dir_all(&folder).unwrap();
        let expected = Machine { first: Cache { bytes: 48 << 10, ways: 12 }, second: Cache { bytes: 2 << 20, ways: 16 } };
        assert_eq!(read, Some(expected));
        assert_eq!(["3", "0-3,8", "0-1,4-5", "x", "3-1"].map(processors), [Some(1), Some(5), Some(4), None, None]);
    }
}
