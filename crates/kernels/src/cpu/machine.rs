//! What a core has: the sizes of its caches, from which the sizes of blocks and strips follow.
//!
//! They follow by formula and never by timing, since what cuts a sum decides its last bits: a run ends in the same ones whatever else the
//! machine does. Below them stand the sizes that are the same on every processor, each with its reason.

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

// Sizes of tasks.

/// Values of a task that does little with each: splitting further costs more than it brings. Constant because it orders sums: the class loss and the norm
/// of the gradients are made of tasks' sums.
pub const TASK: usize = 16 * 1024;
/// Values that a task copies or adds, at most: enough to be worth its start, few enough for one image to keep many threads busy.
pub const PIECE: usize = 8 * 1024;
/// Things (rows, planes, channels) of so many values that are worth a task where no sum depends on it: a quarter of [`TASK`], so that YOLOv8n's smallest layer (64
/// channels of 20 x 20, four images) and the keys of a 0.5B model at 512 tokens are work for 16 threads. Rayon cuts so far only while threads are idle.
pub fn worth_a_task(values: usize) -> usize {
    (TASK / 4).div_ceil(values.max(1))
}
/// Columns of a task of dot products.
pub const DOTS: usize = 32;
/// Fewest rows of a matrix product's task that packs columns of its own.
pub const FEWEST_ROWS: usize = 64;
/// Most tiles of columns of a matrix product's task, and where pairs are multiplied, by which a panel's rows are soon over.
pub const MOST_TILES: [usize; 2] = [16, 64];
/// Positives of a task of a detector's loss: some ten microseconds.
pub const POSITIVES: usize = 8;
/// Weights that are packed, or gradients of weights that are added up, by one thread: below some 100 KB waking another costs more than it saves.
pub const WAKING: usize = 1 << 15;
/// Fewer of Winograd's tiles than this per thread are shared among the threads.
pub const FEW_TILES: usize = 128;
/// The same of the gradient of the weights, whose channels are divided then and not its sums. Constant because it orders them.
pub const FEW_TILES_OF_WEIGHTS: usize = 64;

// Lengths of blocks of sums, each constant because it orders sums.

/// Rows of an implicit product's right-hand side: with AVX2's tiles, whose loads are the more frequent, a tile's (24 KB) stay in the first-level cache
/// while all panels pass over them. AVX-512 gains nothing from shorter ones.
pub const BLOCK: usize = 256;
/// The same where the right-hand side is read in groups, by a unit that waits for memory more than for its sums.
pub const GROUPED_BLOCK: usize = 512;
/// Pixels that the gradient of the weights sums: 24 KB of the transposed gradient at 32 channels.
pub const PIXEL_BLOCK: usize = 192;
/// Cells of a matrix product: blocks of a long sum lose less than one chain, and a packed tile of so many (48 KB with 512-bit vectors) stays close to the core.
pub const PRODUCT_BLOCK: usize = 256;
/// Vectors that are summed in f32 (or, in logits, multiplied) before the f64 total takes over: softmax, the maps of a decoder, softplus.
pub const RUN: usize = 64;
/// The same of normalisation, in values of a plane.
pub const RUN_OF_PLANE: usize = 2048;
/// Channels (or tiles, for the gradient of the weights) of Winograd's products.
pub const SEGMENT: usize = 32;
/// Beyond this many multiply-adds of vectors saved per vector packed, a plane for each shift of the columns pays: 10 % at 128 -> 256 channels, 20 wide, on a
/// Zen 4. It is here because the pixels that the gradient of the weights sums are then others, without junk between rows.
pub const EXPAND_GAIN: f64 = 6.0;
/// Keys (or, seen from a key, queries) that a block of attention's rows meets at a time: whole tiles of every instruction set.
pub const ACROSS: usize = 96;
/// Queries of a head that a task of attention has at most, where as many heads share their keys: those of a group share what is packed of them, and few queries
/// waste less on keys that only the last of them see.
pub fn most_queries(group: usize) -> usize {
    (384 / group / 16 * 16).clamp(64, 128)
}
/// Keys of a task of attention's backward pass, at most: the blocks of queries begin where those of so many keys do, also in a task that has fewer.
pub const KEYS: usize = 64;

// What times are estimated with, where each was measured in brackets. They choose tasks and no order of a sum, so elsewhere a wrong one costs time and no bit.

/// Steps of the sum that storing a tile of a convolution is worth (Zen 4).
pub const TILE_COST: f64 = 4.0;
/// Vector operations that starting a task of a convolution is worth (about a microsecond; Zen 4).
pub const TASK_COST: f64 = 4000.0;
/// Multiply-adds of vectors that a vector of a packed strip is worth (Zen 4).
pub const PACKING_COST: f64 = 4.0;
/// The same of a matrix product's columns, and of its rows, whatever the set of instructions: of AVX-512's 8 rows and 48 columns a tile is 1.6 products and a panel
/// a third of one (Zen 5), of AVX2's 4 and 24 twice that (Zen 3).
pub const PACKING_COSTS: [f64; 2] = [12.8, 16.0];
/// Multiply-adds of vectors that a unit for matrices does in the time of one, in convolutions (a Xeon with AMX).
pub const UNIT_RATE: f64 = 8.0;
/// The same in matrix products, measured against packing, which is no faster there.
pub const PRODUCT_UNIT_RATE: f64 = 4.0;
/// Products that a packed tile of columns, and a panel of rows, are worth beside a unit, before its rate.
pub const UNIT_PACKING_COSTS: [f64; 2] = [1.6, 0.33];

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
