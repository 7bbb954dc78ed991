//! Which passes of the run's own shapes are proved, and of how many images or rows.
//!
//! Each pass of each shape is proved with few: one image, 64 rows. A run has more, by which our products take other blocks (`cube::Class`), and a block is a kernel of its own. So
//! a class that only the run's batches have is proved besides, with the fewest images or rows that it begins with: of convolutions once for each kind of kernel,
//! in the cheapest that has it, and of each map.

use crate::convolutions::Conv;
use crate::options::Shape;
use bellows_kernels::cube::Pass;

/// A pass of a shape, to be compared with the processor's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Proof {
    pub(crate) shape: Shape,
    pub(crate) pass: Pass,
    /// Images or rows.
    pub(crate) count: usize,
    /// It is there for its class, which only the batches of the run have.
    pub(crate) of_batch: bool,
}

impl Proof {
    fn new(shape: Shape, pass: Pass, count: usize, of_batch: bool) -> Self {
        // Gradients know nothing of a normalisation.
        let shape = match shape {
            Shape::Conv(conv) => Shape::Conv(Conv { normed: conv.normed && pass == Pass::Forward, ..conv }),
            other => other,
        };
        Self { shape, pass, count, of_batch }
    }

    /// Whether the two launch a kernel with the same blocks: maps have a matrix of their own each, convolutions are of one kind if taps, step, how many maps they
    /// read and what follows are.
    fn shares_a_kernel(&self, other: &Self) -> bool {
        let of_kind = |conv: Conv| Conv { maps: conv.maps.map(|channels| channels.min(1)), c_out: 0, input: [0; 2], images: 0, ..conv };
        let alike = match (self.shape, other.shape) {
            (Shape::Conv(a), Shape::Conv(b)) => of_kind(a) == of_kind(b),
            (a, b) => a == b,
        };
        alike && self.pass == other.pass && self.shape.classes(self.pass, self.count) == other.shape.classes(other.pass, other.count)
    }
}

/// What is proved of these shapes.
pub(crate) fn proofs(shapes: &[Shape]) -> Vec<Proof> {
    let each = || shapes.iter().flat_map(|shape| shape.passes().iter().map(move |pass| (*shape, *pass)));
    let mut all: Vec<Proof> = Vec::new();
    for (shape, pass) in each() {
        let [least, _] = shape.counts();
        let proof = Proof::new(shape, pass, least, false);
        if !all.contains(&proof) {
            all.push(proof);
        }
    }
    let of_batch = |(shape, pass): (Shape, Pass)| {
        let [least, of_run] = shape.counts();
        let classes = move |count| shape.classes(pass, count);
        // Gradients of maps side by side change their blocks one by one, and smaller batches have those between.
        let one_by_one = pass == Pass::Input && matches!(shape, Shape::Conv(conv) if conv.channels().len() > 1);
        let begins = move |&count: &usize| {
            if one_by_one { count > least && classes(count) != classes(count - 1) } else { classes(count) == classes(of_run) }
        };
        let most = if one_by_one { usize::MAX } else { 1 };
        (least..=of_run).filter(begins).take(most).map(move |count| Proof::new(shape, pass, count, true))
    };
    let mut more: Vec<Proof> = each().flat_map(of_batch).collect();
    more.sort_by_key(|proof| proof.shape.flops() * proof.count);
    for proof in more {
        if !all.iter().any(|known| known.shares_a_kernel(&proof)) {
            all.push(proof);
        }
    }
    all
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::convolutions::plain;
    use crate::heads::Heads;
    use crate::maps::{LinearMap, Storage};
    use bellows_kernels::cube::Class;

    /// Those of YOLOv8n for 4 classes at 640 pixels.
    pub(crate) fn of_a_detector(images: usize) -> Vec<Shape> {
        let normed = [
            (3, 16, 3, 2, 640),
            (16, 32, 3, 2, 320),
            (16, 16, 3, 1, 160),
            (32, 32, 1, 1, 160),
            (32, 64, 3, 2, 160),
            (32, 32, 3, 1, 80),
            (64, 64, 1, 1, 80),
            (64, 64, 3, 1, 80),
            (64, 64, 3, 2, 80),
            (64, 128, 3, 2, 80),
            (64, 64, 3, 1, 40),
            (128, 64, 3, 1, 40),
            (128, 128, 1, 1, 40),
            (128, 128, 3, 2, 40),
            (128, 256, 3, 2, 40),
            (64, 64, 3, 1, 20),
            (256, 64, 3, 1, 20),
            (128, 128, 3, 1, 20),
            (256, 128, 1, 1, 20),
            (256, 256, 1, 1, 20),
        ];
        // Of maps side by side.
        let joined = [
            ([32, 16, 0, 0, 0], 32, 160),
            ([64, 32, 32, 0, 0], 64, 80),
            ([128, 64, 0, 0, 0], 64, 80),
            ([64, 32, 0, 0, 0], 64, 80),
            ([128, 64, 0, 0, 0], 128, 40),
            ([64, 128, 0, 0, 0], 128, 40),
            ([128, 64, 64, 0, 0], 128, 40),
            ([256, 128, 0, 0, 0], 128, 40),
            ([256, 128, 0, 0, 0], 256, 20),
            ([128, 256, 0, 0, 0], 256, 20),
            ([128, 128, 128, 128, 0], 256, 20),
        ];
        let joined = joined.into_iter().map(|(maps, c_out, side)| Conv { maps, normed: true, ..plain(0, c_out, 1, 1, side) });
        let last = [80, 40, 20].into_iter().flat_map(|side| [plain(64, 64, 1, 1, side), plain(64, 4, 1, 1, side)]);
        let normed = normed.into_iter().map(|(c_in, c_out, k, stride, side)| Conv { normed: true, ..plain(c_in, c_out, k, stride, side) });
        normed.chain(joined).chain(last).map(|conv| Shape::Conv(conv.in_batch(images))).collect()
    }

    /// Taps, step, maps, pass, whether it is normalised, and the classes of the blocks.
    type Kernel = (usize, usize, usize, Pass, bool, Vec<Class>);

    fn kernel(conv: Conv, pass: Pass, images: usize) -> Kernel {
        (conv.kernel, conv.stride, conv.channels().len(), pass, conv.normed && pass == Pass::Forward, conv.classes(pass, images))
    }

    fn proved(all: &[Proof]) -> Vec<Kernel> {
        let of = |proof: &Proof| match proof.shape {
            Shape::Conv(conv) => Some(kernel(conv, proof.pass, proof.count)),
            _ => None,
        };
        all.iter().filter_map(of).collect()
    }

    /// The blocks of a run of 16 images, and of smaller batches, are among those that are proved; a proof with one image alone would lack twelve.
    #[test]
    fn every_block_of_a_runs_convolutions_is_proved() {
        let shapes = of_a_detector(16);
        let all = proofs(&shapes);
        let known = proved(&all);
        let of_run = |pass: Pass, images: usize| {
            let of = move |shape: &Shape| match shape {
                Shape::Conv(conv) => Some(kernel(*conv, pass, images)),
                _ => None,
            };
            shapes.iter().filter_map(of).collect::<Vec<Kernel>>()
        };
        // A weight's sums are cut by how many there are: of other batches they may be blocks of another class.
        let batches = [(Pass::Forward, 1..=16), (Pass::Input, 1..=16), (Pass::Weight, 1..=1), (Pass::Weight, 16..=16)];
        for (pass, images) in batches.into_iter().flat_map(|(pass, batches)| batches.map(move |images| (pass, images))) {
            let missing = of_run(pass, images).into_iter().find(|kernel| !known.contains(kernel));
            assert_eq!(missing, None, "{images} images");
        }
        // What a run launches for its largest convolutions, by hand: 64 rows and 16 x 6,400 columns.
        let wide = Class::of(64, 16 * 6400, 1);
        assert!(wide == Class::TallMany && known.contains(&(3, 1, 1, Pass::Forward, true, vec![wide])));
        assert!(known.contains(&(3, 1, 1, Pass::Input, false, vec![wide])));

        let besides: Vec<&Proof> = all.iter().filter(|proof| proof.of_batch).collect();
        // The gradients of a 1x1 with and without a normalisation are the same.
        assert_eq!((all.len() - besides.len(), besides.len()), (3 * shapes.len() - 2, 32));
        assert!(proofs(&of_a_detector(1)).iter().all(|proof| !proof.of_batch));
        // All of them together are no more than a step of one image or two.
        let flops: usize = besides.iter().map(|proof| proof.shape.flops() * proof.count).sum();
        assert!(flops < 48_000_000_000, "{flops}");
    }

    /// A map is computed with 64 rows, and each pass with the fewest rows that have the block of the run's.
    #[test]
    fn every_block_of_a_runs_maps_is_proved() {
        let map = |sizes, storage| LinearMap { sizes, storage, rank: 16, rows: 0 }.in_batch(2048);
        let maps = [[4864, 896], [128, 896]].map(|sizes| map(sizes, Some(Storage::Words)));
        let heads = Shape::Attention(Heads::few(14, 2, 64));
        let all = proofs(&[Shape::Map(maps[0]), Shape::Map(maps[1]), heads]);
        let counts = |shape: Shape| {
            let of_shape = all.iter().filter(|proof| proof.shape == shape);
            of_shape.map(|proof| (proof.pass, proof.count)).collect::<Vec<_>>()
        };
        let (forward, input) = (Pass::Forward, Pass::Input);
        let mut first = counts(Shape::Map(maps[0]));
        first.sort();
        // 4 blocks of rows begin at 193, 21 at 1,281.
        assert_eq!(first, [(forward, 64), (forward, 193), (input, 64), (input, 1281)]);
        assert_eq!(counts(Shape::Map(maps[1])), [(forward, 64), (input, 64), (input, 1281)]);
        assert_eq!(counts(heads), [(forward, 1), (input, 1)]);
        for (map, pass) in maps.into_iter().flat_map(|map| [(map, forward), (map, input)]) {
            let of_run = map.class(pass, 2048);
            assert!(all.iter().any(|proof| proof.shape == Shape::Map(map) && proof.pass == pass && map.class(pass, proof.count) == of_run));
        }
    }
}
