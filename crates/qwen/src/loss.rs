//! Cross entropy of the output head, over trained tokens only and a block of rows at a time: the logits of a whole batch are never held.

use bellows_kernels::{Precision, cross_entropy, cross_entropy_loss, linear, linear_data_grad, linear_weight_grad, total};
use bellows_learner::memory::Place;
use burn::tensor::{Int, Tensor};

/// Most rows of logits, and of what is as large, that are held at once: 240 × 151,936 values are 146 MB.
pub const CHUNK: usize = 240;

/// How many times the rows of a block are held: as logits; on a card as their gradient too, which takes the logits' place on the processor; and as that
/// gradient times the weight of each row, if there are weights.
pub(crate) fn copies(place: Place, weighted: bool) -> usize {
    1 + usize::from(place == Place::Card) + usize::from(weighted)
}

/// The most rows of a block; on a card a tenth fewer, which its allocator may lose.
pub(crate) fn most(place: Place, weighted: bool) -> usize {
    let rows = if place == Place::Card { CHUNK * 9 / 10 } else { CHUNK };
    rows / copies(place, weighted)
}

/// `n` rows in as few blocks of at most `most` as there can be, first row and count of each: as alike as can be and the largest first, so that the memory of
/// one serves the next.
fn blocks(n: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = n.div_ceil(most).max(1);
    let (each, more) = (n / count, n % count);
    (0..count).map(move |i| (i * each + i.min(more), each + usize::from(i < more))).filter(|(_, len)| *len > 0)
}

/// The loss of a batch and its gradients, none of it on a graph.
pub struct HeadLoss {
    /// Σ of `−log softmax(h Wᵀ)[target]` over the rows, `[1]`.
    pub loss: Tensor<1>,
    /// Its gradient with respect to the rows, `[N, h]`.
    pub rows: Tensor<2>,
    /// Its gradient with respect to W, `[V, h]`, if asked for.
    pub weight: Option<Tensor<2>>,
}

/// Loss of normalised hidden `rows` `[N, h]` under the head W `[V, h]`, for one target id a row.
pub fn head_loss(rows: Tensor<2>, weight: &Tensor<2>, targets: Tensor<1, Int>, with_weight: bool, precision: Precision) -> HeadLoss {
    weighted_head_loss(rows, weight, targets, None, with_weight, precision)
}

/// The same with every row's loss multiplied by its weight, `[N]`.
pub fn weighted_head_loss(
    rows: Tensor<2>,
    weight: &Tensor<2>,
    targets: Tensor<1, Int>,
    weights: Option<Tensor<1>>,
    with_weight: bool,
    precision: Precision,
) -> HeadLoss {
    let n = rows.dims()[0];
    let most = most(Place::of(&rows.device()), weights.is_some());
    let (mut losses, mut row_grads, mut weight_grad) = (Vec::new(), Vec::new(), None);
    for (start, len) in blocks(n, most) {
        let h = rows.clone().narrow(0, start, len);
        let logits = linear(h.clone(), weight.clone(), None, precision);
        let (mut loss, mut dlogits) = cross_entropy(logits, targets.clone().narrow(0, start, len));
        if let Some(weights) = &weights {
            let of_rows = weights.clone().narrow(0, start, len);
            (loss, dlogits) = (loss * of_rows.clone(), dlogits * of_rows.reshape([len, 1]));
        }
        losses.push(total(loss));
        if with_weight {
            let grad = linear_weight_grad(h, dlogits.clone());
            weight_grad = Some(match weight_grad {
                Some(sum) => sum + grad,
                None => grad,
            });
        }
        row_grads.push(linear_data_grad(dlogits, weight.clone(), precision));
    }
    HeadLoss { loss: total(join(losses)), rows: join(row_grads), weight: weight_grad }
}

/// Σ of `−log softmax(h Wᵀ)[target]` alone, `[1]`: evaluation.
pub fn head_loss_only(rows: Tensor<2>, weight: &Tensor<2>, targets: Tensor<1, Int>, precision: Precision) -> Tensor<1> {
    total(join(losses(rows, weight, targets, precision).map(total).collect()))
}

/// `−log softmax(h Wᵀ)[target]` of every row, `[N]`.
pub fn row_losses(rows: Tensor<2>, weight: &Tensor<2>, targets: Tensor<1, Int>, precision: Precision) -> Tensor<1> {
    join(losses(rows, weight, targets, precision).collect())
}

/// The rows' losses a block at a time.
fn losses(rows: Tensor<2>, weight: &Tensor<2>, targets: Tensor<1, Int>, precision: Precision) -> impl Iterator<Item = Tensor<1>> {
    let n = rows.dims()[0];
    blocks(n, CHUNK).map(move |(start, len)| {
        let logits = linear(rows.clone().narrow(0, start, len), weight.clone(), None, precision);
        cross_entropy_loss(logits, targets.clone().narrow(0, start, len))
    })
}

/// The pieces one below the other, none of them missing.
///
/// With CubeCL 0.11.3 it is forgotten that a piece could not be computed, for want of memory for its logits, as soon as the next one is written below it. So
/// the last one is made to depend on all: 0 times an element of each is subtracted, which changes no bit of it.
fn join<const D: usize>(mut pieces: Vec<Tensor<D>>) -> Tensor<D> {
    let element = |piece: &Tensor<D>| (0..D).fold(piece.clone(), |piece, dim| piece.narrow(dim, 0, 1));
    if let Some(last) = pieces.pop() {
        let sum = pieces.iter().map(element).reduce(|a, b| a + b);
        pieces.push(match sum {
            Some(sum) => last - sum.abs().mul_scalar(0.0),
            None => last,
        });
    }
    Tensor::cat(pieces, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    /// Over several blocks of rows: every row meets its own target, its own weight and its own place in the gradients.
    #[test]
    fn blocks_are_the_whole() {
        const N: usize = 2 * CHUNK + 7;
        let device = Device::flex().autodiff();
        let numbers = |count: usize, by: usize| (0..count).map(|i| ((i * by) % 17) as f32 / 8.0 - 1.0).collect::<Vec<_>>();
        let rows = Tensor::<1>::from_floats(&numbers(3 * N, 5)[..], &device).reshape([N, 3]).require_grad();
        let head = Tensor::<1>::from_floats(&numbers(33, 7)[..], &device).reshape([11, 3]).require_grad();
        let targets = Tensor::<1, Int>::from_ints(&(0..N).map(|i| (i * i % 11) as i32).collect::<Vec<_>>()[..], &device);
        let weights = Tensor::<1>::from_floats(&numbers(N, 3)[..], &device);
        let logits = rows.clone().matmul(head.clone().transpose());
        let said = burn::tensor::activation::log_softmax(logits, 1).gather(1, targets.clone().reshape([N, 1])).reshape([N]);
        let whole = (said.clone().neg() * weights.clone()).sum();
        let mut graph = whole.clone().backward();
        let [of_rows, of_head] = [&rows, &head].map(|leaf| leaf.grad_remove(&mut graph).unwrap());
        let (h, w, t) = (rows.inner(), head.inner(), targets.inner());
        let ours = weighted_head_loss(h.clone(), &w, t.clone(), Some(weights.inner()), true, Precision::F32);
        let apart = |a: Tensor<2>, b: Tensor<2>| (a - b).abs().max().into_scalar::<f32>();
        assert!((ours.loss.into_scalar::<f32>() - whole.into_scalar::<f32>()).abs() < 1e-3);
        assert!(apart(ours.rows, of_rows) < 1e-5 && apart(ours.weight.unwrap(), of_head) < 1e-4);
        let alone = row_losses(h, &w, t, Precision::F32) + said.inner();
        assert!(alone.abs().max().into_scalar::<f32>() < 1e-5);
    }

    /// A last block of another length would not fit into the memory of the others: 75 MB more at Qwen's vocabulary and 2,048 tokens.
    #[test]
    fn blocks_are_alike_and_of_no_more_than_150_mb() {
        for (place, weighted) in [(Place::Processor, false), (Place::Processor, true), (Place::Card, false), (Place::Card, true)] {
            assert!(copies(place, weighted) * most(place, weighted) * 151_936 * 4 < 150_000_000, "{place:?} {weighted}");
        }
        assert_eq!(most(Place::Processor, false), CHUNK);
        for n in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7, 2047, 2048] {
            let all: Vec<_> = blocks(n, CHUNK).collect();
            assert_eq!(all.len(), n.div_ceil(CHUNK));
            let ends = all.iter().map(|(start, len)| start + len);
            assert!(all.iter().map(|(start, _)| *start).eq(std::iter::once(0).chain(ends).take(all.len())), "{all:?}");
            assert_eq!(all.iter().map(|(_, len)| len).sum::<usize>(), n);
            let first = all.first().map_or(0, |(_, len)| *len);
            assert!(first <= CHUNK && all.iter().all(|(_, len)| *len == first || len + 1 == first), "{all:?}");
        }
    }

    #[test]
    fn joined_pieces_keep_their_bits() {
        let piece = |values: [f32; 4]| Tensor::<2>::from_data([[values[0], values[1]], [values[2], values[3]]], &Device::flex());
        let bits = |t: Tensor<2>| t.try_into_vec_as::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let pieces = || vec![piece([-3.0, 1.5, 2.0, 0.1]), piece([1e30, 4.0, -1.0, 7.0]), piece([-0.0, 0.0, 1e-40, -2.5])];
        assert_eq!(bits(join(pieces())), bits(Tensor::cat(pieces(), 0)));
        assert_eq!(bits(join(pieces().split_off(2))), bits(pieces().remove(2)));
        // A piece that is not finite shows in the last one too: it depends on all.
        assert!(bits(join(vec![piece([f32::NAN; 4]), piece([1.0; 4])])).iter().all(|&b| f32::from_bits(b).is_nan()));
    }
}
