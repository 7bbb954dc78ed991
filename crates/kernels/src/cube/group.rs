//! Products that go to the device together: each is a small grid with operands, a result and a block of its own.

#![allow(clippy::too_many_arguments, reason = "a kernel has no struct of borrowed tensors to take them in")]
#![allow(clippy::needless_range_loop, reason = "a loop that is unrolled is over numbers")]

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::args::{Args, Image};
use super::block::Block;
use super::direct::direct_sums;
use super::geometry::MAX_GRID;
use super::launch::address_type;
use super::matmul::Product;
use super::packing::Packing;
use super::product::{no_sums, part_at, room, shared_sums, write};
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

/// Which of a launch's tensors are a member's, and its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    a: usize,
    b: usize,
    c: usize,
    block: Block,
}

/// Each product as [`matmul_kernel`](super::product::matmul_kernel) computes it, without bias. Grid: the blocks of one product after the other, by their number, and
/// perhaps a few more; then batches times splits, of which all have as many.
///
/// # Safety
/// No index is checked: the tensors must hold all that each product's [`Args`] and [`Image`] reach.
#[cube(launch_unchecked, address_type = "dynamic")]
fn matmul_group_kernel<A: Float, B: Float, C: Float>(
    lefts: &Sequence<OwnedTensor<A>>,
    rights: &Sequence<OwnedTensor<B>>,
    results: &mut Sequence<OwnedTensor<C>>,
    args: &Sequence<Args>,
    images: &Sequence<Image>,
    #[comptime] places: Vec<Place>,
    #[comptime] shared: [usize; 2],
    #[define(A, B, C)] _types: [ElemType; 3],
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
            let left = lefts.index(comptime!(place.a));
            let right = rights.index(comptime!(place.b));
            let (z, split) = (CUBE_POS_Z / args.splits, CUBE_POS_Z % args.splits);
            let part = part_at((number - first) / across, (number - first) % across, z, split, args, block);
            let mut sums = no_sums(block);
            // There are neither scales nor a bias: what is bound in their place is not read.
            if comptime!(block.shared) {
                shared_sums::<A, B, A, A>(left, right, left, &mut room, &mut sums, args, image, &part, block);
            } else {
                direct_sums::<A, B, A, A>(left, right, left, &mut sums, args, image, &part, block);
            }
            write::<C, A>(&sums, left, results.index_mut(comptime!(place.c)), z, split, args, image, &part, block);
        }
    }
}

/// The tensors, each once, and which of them they are.
fn distinct<'a>(of: impl Iterator<Item = &'a CubeTensor>) -> (Vec<&'a CubeTensor>, Vec<usize>) {
    let (mut all, mut places): (Vec<&CubeTensor>, Vec<usize>) = (Vec::new(), Vec::new());
    for tensor in of {
        places.push(all.iter().position(|known| std::ptr::eq(*known, tensor)).unwrap_or(all.len()));
        if places.last() == Some(&all.len()) {
            all.push(tensor);
        }
    }
    (all, places)
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

    fn types(&self) -> [DType; 3] {
        [self.a, self.b, self.c].map(|tensor| tensor.dtype)
    }
}

/// Computes products with as many batches and parts, of tensors of the same types, in one launch; or each alone where their tensors or their shared memory
/// together are more than the device takes. Where their blocks have not all as many threads, all take one as large as the first.
pub(crate) fn run_group(name: &'static str, members: &[Member<'_>]) {
    let [first, ..] = members else { return };
    let alike = members.iter().all(|member| member.block.units() == first.block.units());
    let members: Vec<Member<'_>> = members.iter().map(|member| if alike { *member } else { member.sized_as(first) }).collect();
    if !together(name, &members) {
        members.iter().for_each(Member::run);
    }
}

/// Launches them together if that can be.
#[expect(unsafe_code, reason = "see SAFETY")]
fn together(name: &'static str, members: &[Member<'_>]) -> bool {
    let [first, ..] = members else { return true };
    let client = &first.c.client;
    let hardware = &client.properties().hardware;
    let (lefts, of_a) = distinct(members.iter().map(|member| member.a));
    let (rights, of_b) = distinct(members.iter().map(|member| member.b));
    let (results, of_c) = distinct(members.iter().map(|member| member.c));
    let most = |of: fn(&Block) -> usize| members.iter().map(|member| of(&member.block)).max().unwrap_or_default();
    let shared = members.iter().any(|member| member.block.shared);
    let room = if shared { [most(|block| block.left().size()), most(|block| block.right().size())] } else { [1, 1] };
    let bytes = room.iter().sum::<usize>() * size_of::<f32>();
    // The launch's numbers are bound too.
    let bound = lefts.len() + rights.len() + results.len() + 1;
    if bytes > hardware.max_shared_memory_size || bound > hardware.max_bindings as usize || first.depth() > MAX_GRID {
        return false;
    }
    for member in members {
        member.product.check(member.a, member.b, None, member.c);
        let plain = member.product.b.packing == Packing::Plain && !member.block.bias;
        assert!(
            plain && member.types() == first.types() && member.depth() == first.depth(),
            "{name}: {:?} beside {:?}",
            member.product,
            first.product
        );
    }
    let all = || lefts.iter().chain(&rights).chain(&results).copied();
    let onto = results.iter().copied().filter(|&c| members.iter().any(|member| member.block.onto && std::ptr::eq(member.c, c)));
    note(name, all().chain(onto), members.iter().map(|m| m.product.flops(m.product.n, m.product.batches, m.block)).sum());
    note_room(name, if shared { bytes } else { 0 }, most(Block::registers));
    let workgroups: usize = members.iter().map(Member::workgroups).sum();
    let wide = workgroups.min(MAX_GRID);
    let places = members.iter().zip(of_a.iter().zip(&of_b).zip(&of_c));
    // SAFETY: `check` has found the last number of each tensor that each product's steps reach.
    unsafe {
        matmul_group_kernel::launch_unchecked(
            client,
            CubeCount::Static(wide as u32, workgroups.div_ceil(wide) as u32, first.depth() as u32),
            CubeDim::new_1d(first.block.units()),
            all().map(|tensor| address_type([tensor])).max().unwrap_or_default(),
            lefts.iter().map(|&tensor| tensor.clone().into_tensor_arg()).collect(),
            rights.iter().map(|&tensor| tensor.clone().into_tensor_arg()).collect(),
            results.iter().map(|&tensor| tensor.clone().into_tensor_arg()).collect(),
            members.iter().map(|member| member.product.args(0, 0, member.product.n)).collect(),
            members.iter().map(|member| member.product.image(0)).collect(),
            places.map(|(member, ((&a, &b), &c))| Place { a, b, c, block: member.block }).collect::<Vec<_>>(),
            room,
            first.types().map(dtype_to_storage_type),
        );
    }
    true
}
