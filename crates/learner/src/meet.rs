//! Where the ranks of a run meet in every step: their gradients are added up, and they agree on what the batch was.
//!
//! A global batch is cut into one part a rank, as it is cut into parts where memory is short, so a step of several ranks is the step of one
//! with so many parts: gradients and counts are summed, in the order of the ranks, and loss items are their mean by weight.

use bellows_ranks::Wire;
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::arenas::Arenas;
use crate::attempt::{Failure, attempt};
use crate::error::{LearnError, in_words};
use crate::grads::{GradBuffer, read};
use crate::layout::Layout;
use crate::overlap::{Buckets, summed};
use crate::ranks::Ranks;
use crate::shortage::Shortage;
use crate::task::StepOutput;
use crate::wire::tell;

/// What the parts of a batch have made on this rank.
pub(crate) struct Made<O> {
    pub(crate) grads: GradBuffer,
    pub(crate) outputs: Vec<StepOutput<O>>,
    /// Weight of each part in the means of loss items.
    pub(crate) weights: Vec<usize>,
    pub(crate) samples: usize,
    pub(crate) units: usize,
}

/// What all ranks have made together, gradients aside.
pub(crate) struct Met {
    /// Weight and loss items of every part, by rank.
    pub(crate) items: Vec<(usize, Vec<f64>)>,
    pub(crate) count: usize,
    pub(crate) samples: usize,
    pub(crate) units: usize,
    /// Whether every loss is finite, and every running statistic.
    pub(crate) loss: bool,
    pub(crate) statistics: bool,
}

/// The gradients of all ranks, added up: not on the device yet.
pub(crate) struct Sums {
    /// One arena after the other.
    flat: Vec<f32>,
    /// The entries that any rank has seen.
    seen: Vec<bool>,
}

impl Sums {
    /// On the device, for the entries that were seen.
    pub(crate) fn on_device(self, layout: &Layout, device: &Device) -> GradBuffer {
        let Self { flat, seen } = self;
        let device = device.clone().without_autodiff();
        let mut rest = &flat[..];
        let sums: Arenas = layout
            .pieces
            .0
            .iter()
            .zip(layout.pieces.lengths())
            .map(|(piece, len)| {
                let (values, after) = rest.split_at(len);
                rest = after;
                let dtype = layout.entries[*piece.entries.first()?].dtype;
                let any = piece.entries.iter().any(|&entry| seen[entry]);
                any.then(|| Tensor::from_data(TensorData::new(values.to_vec(), [len]), (&device, dtype)))
            })
            .collect();
        GradBuffer { sums, seen }
    }
}

/// What this rank has made, and, of several ranks, what all have made.
pub(crate) type Together<O> = (Made<O>, Option<(Met, Sums)>);

/// What keeps a rank from going on.
#[derive(Clone, Serialize, Deserialize)]
enum Trouble {
    Failed(String),
    /// Memory ran out, in the device's words, and whether the device is lost.
    Short(String, bool),
}

impl Trouble {
    /// That of this rank, if its work has come to nothing.
    fn of<R>(own: &Result<R, Failure>) -> Option<Self> {
        match own {
            Ok(_) => None,
            Err(Failure::Memory(shortage)) => Some(Self::Short(shortage.reason.clone(), shortage.lost)),
            Err(Failure::Other(error)) => Some(Self::Failed(in_words(error))),
        }
    }
}

/// What this rank's `own` work comes to where the ranks have these troubles: all fail if one has failed, and else all are short of memory if one is, on a device
/// that is lost if one is lost, for all have to do the same.
fn common<R>(own: Result<R, Failure>, troubles: &[Option<Trouble>]) -> Result<R, Failure> {
    let all = || troubles.iter().enumerate().filter_map(|(rank, trouble)| Some((rank, trouble.as_ref()?)));
    let failed = all().find_map(|(rank, trouble)| match trouble {
        Trouble::Failed(reason) => Some(LearnError::Rank { rank, reason: reason.clone() }),
        Trouble::Short(..) => None,
    });
    let lost = all().any(|(_, trouble)| matches!(trouble, Trouble::Short(_, true)));
    match (own, failed, all().next()) {
        (Err(Failure::Other(own)), ..) => Err(Failure::Other(own)),
        (_, Some(failed), _) => Err(Failure::Other(failed)),
        (Err(Failure::Memory(own)), ..) => Err(Failure::Memory(Shortage { lost, ..own })),
        (Ok(_), None, Some((rank, Trouble::Short(reason, _)))) => {
            Err(Failure::Memory(Shortage { reason: format!("rank {rank}: {reason}"), lost }))
        }
        (own, ..) => own,
    }
}

/// This rank's `own` work, when every rank has done its own; what has become of another's is the failure of all. One small message to each of the others.
///
/// # Errors
/// As [`common`]; a rank that is gone.
pub(crate) fn agreed<R>(ranks: &Ranks, own: Result<R, Failure>) -> Result<R, Failure> {
    let Some(others) = ranks.others() else { return own };
    let troubles = tell(others, &Trouble::of(&own)).map_err(Failure::Other)?;
    common(own, &troubles)
}

/// What one rank tells of its part.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Told {
    trouble: Option<Trouble>,
    /// Weight and loss items of every part.
    items: Vec<(usize, Vec<f64>)>,
    count: usize,
    samples: usize,
    units: usize,
    loss: bool,
    statistics: bool,
    seen: Vec<bool>,
    /// The entries that were given in the middle of the pass, in their order; `None` if one of them has another gradient in the end.
    early: Option<Vec<usize>>,
}

/// Makes this rank's part of a batch by `pass`, and adds up what the ranks have made, gradients in f32 from what `wire` makes of them: `meanwhile`, as far as they come up in
/// the middle of the pass. All of them fail if one has failed, and all are short of memory if one is. Of several ranks the gradients are those sums, and no rank's own.
pub(crate) fn meet<M: Module, O>(
    (ranks, wire): (&Ranks, Wire),
    layout: &Layout,
    model: &M,
    meanwhile: bool,
    pass: impl FnOnce() -> Result<Made<O>, Failure>,
) -> Result<Together<O>, Failure> {
    let Some(others) = ranks.others() else { return pass().map(|made| (made, None)) };
    let order = ranks.early();
    let buckets = Buckets::of(layout, order.as_deref().unwrap_or_default());
    let meanwhile = meanwhile && order.is_some();
    let (read, sums) = summed(others, wire, &buckets, meanwhile, |hand| {
        let made = if meanwhile { hand.listen(layout.leaves(model), pass) } else { pass() }?;
        let (mut told, flat) = attempt(|| on_host(layout, model, &made))?;
        told.early = hand.rest(&flat);
        Ok((made, told, flat))
    });
    let mut sums = sums.map_err(|error| Failure::Other(error.into()))?;
    let mine = match &read {
        Ok((_, told, _)) => told.clone(),
        Err(_) => Told { trouble: Trouble::of(&read), ..Told::default() },
    };
    let all = tell(others, &mine).map_err(Failure::Other)?;
    let troubles: Vec<Option<Trouble>> = all.iter().map(|told| told.trouble.clone()).collect();
    let (mut made, _, flat) = common(read, &troubles)?;
    if all.iter().any(|told| told.early.is_none()) {
        // Somebody's model reads a weight more than once. It may do so again.
        tracing::warn!(
            "gradients are exchanged after the backward pass from here on: a weight had another gradient at its end than in its middle"
        );
        ranks.set_early(None);
        sums = flat;
        others.sum(&mut sums, wire).map_err(|error| Failure::Other(error.into()))?;
    } else if order.is_some_and(|order| order.is_empty()) {
        ranks.set_early(all[0].early.clone());
    }
    let seen = (0..layout.entries.len()).map(|i| all.iter().any(|told| told.seen.get(i) == Some(&true))).collect();
    // They are in the sums.
    made.grads = GradBuffer::default();
    let sum = |of: fn(&Told) -> usize| all.iter().map(of).sum::<usize>();
    let met = Met {
        items: all.iter().flat_map(|told| told.items.clone()).collect(),
        count: sum(|told| told.count),
        samples: sum(|told| told.samples),
        units: sum(|told| told.units),
        loss: all.iter().all(|told| told.loss),
        statistics: all.iter().all(|told| told.statistics),
    };
    Ok((made, Some((met, Sums { flat: sums, seen }))))
}

/// What this rank tells, and its gradients one arena after the other: zeros where it has none.
fn on_host<M: Module, O>(layout: &Layout, model: &M, made: &Made<O>) -> Result<(Told, Vec<f32>), LearnError> {
    let of_outputs = made.outputs.iter().flat_map(|output| [output.loss.clone(), output.items.clone()]);
    let statistics = statistics(layout, model);
    let of_grads: Vec<Tensor<1>> = made.grads.sums.iter().flatten().cloned().collect();
    let asked = statistics.is_some();
    let mut values = read(of_outputs.chain(statistics).chain(of_grads).collect())?.into_iter();
    let of_parts: Vec<Vec<f32>> = values.by_ref().take(2 * made.outputs.len()).collect();
    let statistics = !asked || values.next().is_some_and(|sum| sum[0].is_finite());
    let items = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect();
    let told = Told {
        items: made.weights.iter().copied().zip(of_parts.chunks_exact(2).map(|part| items(&part[1]))).collect(),
        count: made.outputs.iter().map(|output| output.count).sum(),
        samples: made.samples,
        units: made.units,
        loss: of_parts.chunks_exact(2).all(|part| part[0][0].is_finite()),
        statistics,
        seen: made.grads.seen.clone(),
        ..Told::default()
    };
    let mut flat = Vec::with_capacity(layout.pieces.lengths().sum());
    for (i, len) in layout.pieces.lengths().enumerate() {
        match made.grads.sums.get(i) {
            Some(Some(_)) => flat.extend(values.next().unwrap_or_default()),
            _ => flat.resize(flat.len() + len, 0.0),
        }
    }
    Ok((told, flat))
}

/// Σ x² of what a forward pass moves, the float tensors that are not learned, if there are any.
pub(crate) fn statistics<M: Module>(layout: &Layout, model: &M) -> Option<Tensor<1>> {
    if layout.entries.iter().all(|entry| entry.group.is_some()) {
        return None;
    }
    let values = layout.values(&model.valid()).into_iter().zip(&layout.entries);
    let kept = values.map(|(value, entry)| entry.group.is_none().then_some(value)).collect();
    layout.pieces.squares(&layout.gather(kept), |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(lost: bool) -> Failure {
        Failure::Memory(Shortage { reason: "out of memory".into(), lost })
    }

    fn failed() -> Failure {
        Failure::Other(LearnError::Config("no".into()))
    }

    /// What each rank makes of what became of all of them: the reason, and whether a device is lost where memory ran out.
    fn of_all(works: Vec<Result<(), Failure>>) -> Vec<Result<(), (String, Option<bool>)>> {
        let troubles: Vec<Option<Trouble>> = works.iter().map(Trouble::of).collect();
        let told = |failure| match failure {
            Failure::Memory(shortage) => (shortage.reason, Some(shortage.lost)),
            Failure::Other(error) => (error.to_string(), None),
        };
        works.into_iter().map(|own| common(own, &troubles).map_err(told)).collect()
    }

    #[test]
    fn what_becomes_of_one_rank_becomes_of_all() {
        let told = |reason: &str, lost| Err((reason.to_string(), lost));
        assert_eq!(of_all(vec![Ok(()), Ok(())]), [Ok(()), Ok(())]);
        assert_eq!(
            of_all(vec![Ok(()), Err(short(false))]),
            [told("rank 1: out of memory", Some(false)), told("out of memory", Some(false))]
        );
        // Who has lost its device saves nothing, and who saves waits for the others.
        let one_is_lost = of_all(vec![Err(short(false)), Ok(()), Err(short(true))]);
        assert_eq!(one_is_lost[1], told("rank 0: out of memory", Some(true)));
        assert!([0, 2].into_iter().all(|rank| one_is_lost[rank] == told("out of memory", Some(true))));
        let failed = of_all(vec![Err(short(false)), Err(failed()), Ok(())]);
        assert_eq!(failed, [told("rank 1: no", None), told("no", None), told("rank 1: no", None)]);
    }
}
