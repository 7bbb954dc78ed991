//! Products that go to the device together: each is a small grid with operands, a result and a block of its own.

#![allow(clippy::too_many_arguments, reason = "a kernel has no struct of borrowed tensors to take them in")]
#![allow(clippy::needless_range_loop, reason = "a loop that is unrolled is over numbers")]

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::args::{Args, Image, Part};
use super::block::Block;
use super::direct::direct_sums;
use super::geometry::MAX_GRID;
use super::launch::address_type;
use super::matmul::Product;
use super::packing::Packing;
use super::product::{Room, no_sums, part_at, room, shared_sums, write};
use super::trace::{note, note_room};

/// A product, what it is of, and the block in which it is computed.
#[derive(Clone, Copy)]
pub(crate) struct Member<'a> {
    pub(crate) product: Product,
    pub(crate) block: Block,
    pub(crate) a: &'a CubeTensor,
    pub(crate) b: &'a CubeTensor,
    pub(crate) c: &'a CubeTensor,
}

/// Which of a launch's factors one is: its number among those of the first type that are read as it is, or among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Factor {
    other: bool,
    number: usize,
}

/// Which of a launch's tensors are a member's, and its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    a: Factor,
    b: Factor,
    c: usize,
    block: Block,
}

/// The sums of one product. There are neither scales nor a bias: what is bound in their place is not read.
#[cube]
fn add_up<A: Float, AN: Size, B: Float, BN: Size>(
    a: &Tensor<Vector<A, AN>>,
    b: &Tensor<Vector<B, BN>>,
    room: &mut Room,
    sums: &mut Array<f32>,
    args: &Args,
    image: &Image,
    part: &Part,
    #[comptime] block: Block,
) {
    if comptime!(block.shared) {
        shared_sums::<A, AN, B, BN, A, Vector<A, AN>>(a, b, a, room, sums, args, image, part, block);
    } else {
        direct_sums::<A, AN, B, BN, A, Vector<A, AN>>(a, b, a, sums, args, image, part, block);
    }
}

/// Each product as [`matmul_kernel`](super::product::matmul_kernel) computes it, without bias, of factors of one type and number at once, or two. Grid: the blocks of one product after
/// the other, by their number, and perhaps a few more; then batches times splits, of which all have as many.
///
/// # Safety
/// No index is checked: the tensors must hold all that each product's [`Args`] and [`Image`] reach.
#[cube(launch_unchecked, address_type = "dynamic")]
fn matmul_group_kernel<E: Float, EN: Size, O: Float, ON: Size, C: Float>(
    factors: &Sequence<OwnedTensor<Vector<E, EN>>>,
    others: &Sequence<OwnedTensor<Vector<O, ON>>>,
    results: &mut Sequence<OwnedTensor<C>>,
    args: &Sequence<Args>,
    images: &Sequence<Image>,
    #[comptime] places: Vec<Place>,
    #[comptime] shared: [usize; 2],
    #[define(E, O, C)] _types: [ElemType; 3],
    #[define(EN, ON)] _sizes: [usize; 2],
) {
    let mut room = room(comptime!(shared[0]), comptime!(shared[1]));
    let count = comptime!(places.len());
    let number = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    let mut end = 0u32;
    #[unroll]
    for p in 0..count {
        let place = comptime!(places[p]);
        let block = comptime!(place.block);
        let args = args.index(p);
        let image = images.index(p);
        let across = args.n.div_ceil(block.cols);
        let first = end;
        end += across * args.m.div_ceil(block.rows);
        // A whole workgroup is in this product or in none.
        if number >= first && number < end {
            let (a, b) = comptime!((place.a, place.b));
            let (z, split) = (CUBE_POS_Z / args.splits, CUBE_POS_Z % args.splits);
            let part = part_at((number - first) / across, (number - first) % across, z, split, args, block);
            let mut sums = no_sums(block);
            if comptime!(a.other && b.other) {
                let (a, b) = (others.index(comptime!(a.number)), others.index(comptime!(b.number)));
                add_up::<O, ON, O, ON>(a, b, &mut room, &mut sums, args, image, &part, block);
            } else if comptime!(a.other) {
                let (a, b) = (others.index(comptime!(a.number)), factors.index(comptime!(b.number)));
                add_up::<O, ON, E, EN>(a, b, &mut room, &mut sums, args, image, &part, block);
            } else if comptime!(b.other) {
                let (a, b) = (factors.index(comptime!(a.number)), others.index(comptime!(b.number)));
                add_up::<E, EN, O, ON>(a, b, &mut room, &mut sums, args, image, &part, block);
            } else {
                let (a, b) = (factors.index(comptime!(a.number)), factors.index(comptime!(b.number)));
                add_up::<E, EN, E, EN>(a, b, &mut room, &mut sums, args, image, &part, block);
            }
            let beside = factors.index(comptime!(0));
            write::<C, Vector<E, EN>>(&sums, beside, results.index_mut(comptime!(place.c)), z, split, args, image, &part, block);
        }
    }
}

/// The tensors, each once.
fn distinct<'a>(of: impl Iterator<Item = &'a CubeTensor>) -> Vec<&'a CubeTensor> {
    let mut all: Vec<&CubeTensor> = Vec::new();
    for tensor in of {
        if number(&all, tensor).is_none() {
            all.push(tensor);
        }
    }
    all
}

/// Which of them one is.
fn number(all: &[&CubeTensor], tensor: &CubeTensor) -> Option<usize> {
    all.iter().position(|known| std::ptr::eq(*known, tensor))
}

impl<'a> Member<'a> {
    /// In the block that the product has by itself.
    pub(crate) fn new(product: Product, a: &'a CubeTensor, b: &'a CubeTensor, c: &'a CubeTensor) -> Self {
        Self { block: product.block_of(c), product, a, b, c }
    }

    /// In a block as large as another's.
    pub(crate) fn sized_as(self, other: &Self) -> Self {
        Self { block: self.product.block_as(&other.block, self.c), ..self }
    }

    /// With operands that are read by fours, where they can be.
    fn by_fours(&self) -> Self {
        Self { block: self.block.by_fours(self.product.fours(self.a, self.b)), ..*self }
    }

    /// A and B, and how many numbers of each are read at once.
    fn factors(&self) -> [(&'a CubeTensor, usize); 2] {
        let [of_a, of_b] = self.block.at_once();
        [(self.a, of_a), (self.b, of_b)]
    }

    /// Alone.
    pub(crate) fn run(&self) {
        self.product.run(self.a, self.b, None, self.c);
    }

    /// Workgroups to a batch and part.
    fn workgroups(&self) -> usize {
        self.product.n.div_ceil(self.block.cols as usize) * self.product.m.div_ceil(self.block.rows as usize)
    }

    /// Batches and parts.
    fn depth(&self) -> usize {
        self.product.batches * self.product.splits.count()
    }
}

/// Computes products with as many batches and parts, their results of one type, in one launch; or each alone where their factors are of more than two kinds, or their
/// tensors or their shared memory together more than the device takes. Where their blocks have not all as many threads, all take one as large as the first.
pub(crate) fn run_group(name: &'static str, members: &[Member<'_>]) {
    let [first, ..] = members else { return };
    let alike = members.iter().all(|member| member.block.units() == first.block.units());
    let members: Vec<Member<'_>> = members.iter().map(|member| if alike { *member } else { member.sized_as(first) }).collect();
    let by_fours: Vec<Member<'_>> = members.iter().map(Member::by_fours).collect();
    if !together(name, &by_fours) && !together(name, &members) {
        members.iter().for_each(Member::run);
    }
}

/// Launches them together if that can be.
#[expect(unsafe_code, reason = "see SAFETY")]
fn together(name: &'static str, members: &[Member<'_>]) -> bool {
    let [first, ..] = members else { return true };
    let client = &first.c.client;
    let hardware = &client.properties().hardware;
    let kind_of = |(tensor, at_once): (&CubeTensor, usize)| (tensor.dtype, at_once);
    let of_both = || members.iter().flat_map(Member::factors);
    let kind = kind_of(first.factors()[0]);
    let other = of_both().map(kind_of).find(|other| *other != kind).unwrap_or(kind);
    let of_kind = |wanted: (DType, usize)| distinct(of_both().filter(|&factor| kind_of(factor) == wanted).map(|(tensor, _)| tensor));
    let factors = of_kind(kind);
    let others = if other == kind { Vec::new() } else { of_kind(other) };
    let results = distinct(members.iter().map(|member| member.c));
    let factor = |factor: (&CubeTensor, usize)| {
        let all = if kind_of(factor) == kind { Some(&factors) } else { Some(&others).filter(|_| kind_of(factor) == other) };
        Some(Factor { other: kind_of(factor) != kind, number: number(all?, factor.0)? })
    };
    let place = |member: &Member<'_>| {
        let [a, b] = member.factors();
        Some(Place { a: factor(a)?, b: factor(b)?, c: number(&results, member.c)?, block: member.block })
    };
    let Some(places) = members.iter().map(place).collect::<Option<Vec<Place>>>() else { return false };
    let most = |of: fn(&Block) -> usize| members.iter().map(|member| of(&member.block)).max().unwrap_or_default();
    let shared = members.iter().any(|member| member.block.shared);
    let room = if shared { [most(|block| block.left().size()), most(|block| block.right().size())] } else { [1, 1] };
    let bytes = room.iter().sum::<usize>() * size_of::<f32>();
    // The launch's numbers are bound too.
    let bound = factors.len() + others.len() + results.len() + 1;
    if bytes > hardware.max_shared_memory_size || bound > hardware.max_bindings as usize || first.depth() > MAX_GRID {
        return false;
    }
    for member in members {
        member.product.check(member.a, member.b, None, member.c);
        let plain = member.product.b.packing == Packing::Plain && !member.block.bias;
        assert!(
            plain && member.c.dtype == first.c.dtype && member.depth() == first.depth(),
            "{name}: {:?} beside {:?}",
            member.product,
            first.product
        );
    }
    let all = || factors.iter().chain(&others).chain(&results).copied();
    let onto = results.iter().copied().filter(|&c| members.iter().any(|member| member.block.onto && std::ptr::eq(member.c, c)));
    note(name, all().chain(onto), members.iter().map(|m| m.product.flops(m.product.n, m.product.batches, m.block)).sum());
    note_room(name, if shared { bytes } else { 0 }, most(Block::registers));
    let workgroups: usize = members.iter().map(Member::workgroups).sum();
    let wide = workgroups.min(MAX_GRID);
    // SAFETY: `check` has found the last number of each tensor that each product's steps reach.
    unsafe {
        matmul_group_kernel::launch_unchecked(
            client,
            CubeCount::Static(wide as u32, workgroups.div_ceil(wide) as u32, first.depth() as u32),
            CubeDim::new_1d(first.block.units()),
            all().map(|tensor| address_type([tensor])).max().unwrap_or_default(),
            factors.iter().map(|&tensor| tensor.clone().into_tensor_arg()).collect(),
            others.iter().map(|&tensor| tensor.clone().into_tensor_arg()).collect(),
            results.iter().map(|&tensor| tensor.clone().into_tensor_arg()).collect(),
            members.iter().map(|member| member.product.args(0, 0, member.product.n)).collect(),
            members.iter().map(|member| member.product.image(0)).collect(),
            places,
            room,
            [kind.0, other.0, first.c.dtype].map(dtype_to_storage_type),
            [kind.1, other.1],
        );
    }
    true
}
