//! Which block of C a workgroup of the matrix product gets: a table by the shape of C and the maker of the card, with the reason of each row.
//!
//! Nothing is timed here, so two runs on one card with the same remembered sizes agree bit for bit. What `--tune` found on a card stands above the table ([`set_tuned`]). A size never changes in what
//! order the terms of a sum are added; it may change into how many parts a long one is cut.

use std::sync::{PoisonError, RwLock};

/// Rows and columns of C in one workgroup, and in one thread.
pub type Size = [u32; 4];

/// Blocks that keep a GPU busy: a mid-range one holds some 36 compute units with four workgroups each.
const MANY_BLOCKS: usize = 144;

/// Blocks that keep a large one busy, to whose number long sums are cut: an RX 7900 XT and an H200 hold some 500. 63 of a weight's gradient were 3.5 to 8 ms on the latter,
/// for want of anybody to hide their loads.
pub(crate) const FILLING_BLOCKS: usize = 512;

/// The shapes of C that the table tells apart: how many rows a block can have without wasting more than a quarter, and whether blocks of 128 columns are
/// enough for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// 16 rows.
    Thin,
    /// 16 rows, in many blocks.
    ThinMany,
    /// 32 rows.
    Medium,
    /// 32 rows, in many blocks.
    MediumMany,
    /// 64 rows.
    Tall,
    /// 64 rows, in many blocks.
    TallMany,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 6] = [Self::Thin, Self::ThinMany, Self::Medium, Self::MediumMany, Self::Tall, Self::TallMany];

    /// What a remembered choice calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thin => "thin",
            Self::ThinMany => "thin-many",
            Self::Medium => "medium",
            Self::MediumMany => "medium-many",
            Self::Tall => "tall",
            Self::TallMany => "tall-many",
        }
    }

    /// The class of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// That of C with `m` rows and `n` columns in `batches`.
    pub fn of(m: usize, n: usize, batches: usize) -> Self {
        let padded = |rows: usize| m.div_ceil(rows) * rows;
        let wasteful = |rows: usize| padded(rows) * 4 > padded(16) * 5;
        let rows = [64, 32].into_iter().find(|&rows| !wasteful(rows)).unwrap_or(16);
        let many = m.div_ceil(rows) * n.div_ceil(128) * batches >= MANY_BLOCKS;
        match (rows, many) {
            (64, false) => Self::Tall,
            (64, true) => Self::TallMany,
            (32, false) => Self::Medium,
            (32, true) => Self::MediumMany,
            (_, false) => Self::Thin,
            (_, true) => Self::ThinMany,
        }
    }

    /// What the table says for the card of this process.
    pub fn of_table(self) -> Size {
        of_table(self, KNOWN.read().unwrap_or_else(PoisonError::into_inner).maker)
    }

    /// The sizes that `--tune` times. Every GPU has their 128 threads or fewer.
    pub fn sizes(self) -> &'static [Size] {
        match self {
            Self::Thin | Self::ThinMany => &[[16, 128, 4, 4], [16, 64, 4, 4], [16, 32, 4, 4]],
            Self::Medium | Self::MediumMany => &[[32, 128, 4, 8], [32, 64, 4, 4], [16, 128, 4, 4], [16, 64, 4, 4]],
            Self::Tall | Self::TallMany => &[[64, 128, 8, 8], [64, 64, 8, 4], [32, 128, 4, 8], [32, 64, 4, 4]],
        }
    }
}

/// Who made a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Maker {
    /// AMD.
    Amd,
    /// NVIDIA.
    Nvidia,
    /// Intel.
    Intel,
    /// Another one, a program, or nobody knows.
    #[default]
    Other,
}

impl Maker {
    /// By its number on the PCI bus.
    pub fn of_pci(vendor: u32) -> Self {
        match vendor {
            0x1002 => Self::Amd,
            0x10de => Self::Nvidia,
            0x8086 => Self::Intel,
            _ => Self::Other,
        }
    }
}

/// A row of the table: these classes, on cards of this maker (`None`: of all that no row before it names).
struct Row {
    class: Class,
    maker: Option<Maker>,
    size: Size,
}

const fn row(class: Class, maker: Option<Maker>, size: Size) -> Row {
    Row { class, maker, size }
}

/// The first row that fits counts.
const TABLE: [Row; 7] = [
    // A hardware thread of Intel's has 128 registers of 32 bytes (its guide to Gen9 and later graphics), 4 KB for 16 lanes: 8x8 sums of f32 are all of them.
    row(Class::TallMany, Some(Maker::Intel), [64, 64, 8, 4]),
    // 16 numbers of shared memory to 64 multiply-adds, in four reads. 64 sums, 16 factors and the places of loads are some 120 registers: AMD's and NVIDIA's lanes have up to
    // 256, and with half of them taken two to eight waves a scheduler are left to hide memory. Software devices have no such registers and take this size all
    // the same, because what is tested there is to be what cards run.
    row(Class::TallMany, None, [64, 128, 8, 8]),
    // Twice the workgroups where there are few: a GPU that is half idle loses more than 12 numbers to 32 multiply-adds do.
    row(Class::Tall, None, [64, 64, 8, 4]),
    // 32 and 48 channels are most of YOLOv8n's large maps: wide blocks share their weights among 128 pixels.
    row(Class::MediumMany, None, [32, 128, 4, 8]),
    row(Class::Medium, None, [32, 64, 4, 4]),
    // 16 channels: pixels are all there is to share out, and 4x4 a thread keeps 128 threads busy.
    row(Class::ThinMany, None, [16, 128, 4, 4]),
    row(Class::Thin, None, [16, 64, 4, 4]),
];

/// What a device without room for the threads of these gets, as CubeCL's on the processor: the first that fits.
const SMALL: [Size; 3] = [[16, 64, 4, 4], [16, 32, 4, 4], [16, 16, 4, 4]];

/// What is known of the card of this process.
struct Known {
    maker: Maker,
    tuned: [Option<Size>; 6],
}

static KNOWN: RwLock<Known> = RwLock::new(Known { maker: Maker::Other, tuned: [None; 6] });

/// Whose card this process computes on.
pub fn set_maker(maker: Maker) {
    KNOWN.write().unwrap_or_else(PoisonError::into_inner).maker = maker;
}

/// From now on these classes get these sizes, and all others the table's. A size that is none of its class is left out: it was remembered by another program.
pub fn set_tuned(choices: impl IntoIterator<Item = (Class, Size)>) {
    let mut tuned = [None; 6];
    for (class, size) in choices.into_iter().filter(|(class, size)| class.sizes().contains(size)) {
        tuned[class as usize] = Some(size);
    }
    KNOWN.write().unwrap_or_else(PoisonError::into_inner).tuned = tuned;
}

/// The size for C of `m` rows and `n` columns in `batches`, of at most `units` threads.
pub(crate) fn size(m: usize, n: usize, batches: usize, units: u32) -> Size {
    let class = Class::of(m, n, batches);
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    within(known.tuned[class as usize].unwrap_or_else(|| of_table(class, known.maker)), units)
}

fn of_table(class: Class, maker: Maker) -> Size {
    let fits = |row: &&Row| row.class == class && row.maker.is_none_or(|of| of == maker);
    TABLE.iter().find(fits).map_or(SMALL[0], |row| row.size)
}

/// `size`, or the largest small one, if that is more than `units` threads.
fn within(size: Size, units: u32) -> Size {
    let fits = |&[rows, cols, tall, wide]: &Size| rows * cols <= units * tall * wide;
    [size].into_iter().chain(SMALL).find(fits).unwrap_or(SMALL[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_a_row_for_everybody_and_a_size_that_it_may_have() {
        for class in Class::ALL {
            assert_eq!(Class::named(class.name()), Some(class));
            assert!(TABLE.iter().any(|row| row.class == class && row.maker.is_none()), "{class:?}");
            for maker in [Maker::Amd, Maker::Nvidia, Maker::Intel, Maker::Other] {
                assert!(class.sizes().contains(&of_table(class, maker)), "{class:?} {maker:?}");
            }
            for &[rows, cols, tall, wide] in class.sizes() {
                assert!(rows * cols <= 128 * tall * wide && rows % tall == 0 && cols % wide == 0, "{class:?}");
            }
        }
        assert_eq!(of_table(Class::TallMany, Maker::of_pci(0x8086)), [64, 64, 8, 4]);
        assert_eq!(of_table(Class::TallMany, Maker::of_pci(0x1002)), [64, 128, 8, 8]);
    }

    #[test]
    fn a_class_follows_from_the_shape() {
        let of = |m, n| Class::of(m, n, 1);
        assert_eq!([of(64, 102_400), of(64, 400), of(256, 1600)], [Class::TallMany, Class::Tall, Class::Tall]);
        assert_eq!([of(32, 102_400), of(130, 400)], [Class::MediumMany, Class::Medium]);
        assert_eq!([of(1, 102_400), of(16, 102_400), of(16, 400)], [Class::ThinMany, Class::ThinMany, Class::Thin]);
        // 18,432 columns are 144 blocks, and 9 of 16 matrices as many.
        assert_eq!([of(64, 18_432), of(64, 18_431 - 127)], [Class::TallMany, Class::Tall]);
        assert_eq!(Class::of(64, 9 * 128, 16), Class::TallMany);
    }

    #[test]
    fn a_device_of_few_threads_gets_a_small_block() {
        let large = [64, 128, 8, 8];
        assert_eq!([128, 64, 32, 16, 1].map(|units| within(large, units)), [large, SMALL[0], SMALL[1], SMALL[2], SMALL[2]]);
    }
}
