//! The Learner's tensors in [arenas](mod@bellows_kernels::arena): what an update does, it does to all parameters at once.
//!
//! Trained tensors of one number format share an arena, or a few where they are large, in the order of their groups: a group is a range of it. So do those without
//! a group. Weights, gradients, moments and averages lie in the same places. A task and a checkpoint know nothing of it: to them every tensor has its name.

use std::ops::Range;

use bellows_kernels::{Places, Segments, arena, arena_parts, sum_of_squares};
use burn::tensor::{DType, Tensor};

use crate::entry::Entry;

/// Entries that share an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Their indices.
    pub(crate) entries: Vec<usize>,
    /// Where each parameter group ends, from the end of the one before on, and its number, or that of the first like it; none where nothing is trained.
    pub(crate) groups: Vec<(usize, usize)>,
    pub(crate) places: Places,
}

/// The arenas of a list of tensors, each of one number format, and trained or not; `None` where none of its tensors has a value.
pub type Arenas = Vec<Option<Tensor<1>>>;

/// What entries of an arena have in common: whether they are trained, or in which group, and their number format.
type Kind = (Option<usize>, DType);

/// Values of several tensors in an arena at most: an arena is a buffer, and wgpu binds none of 2 GiB, which in f32 are twice as many.
const MOST: usize = 1 << 28;

/// Which arena each tensor is in, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pieces(pub(crate) Vec<Piece>);

impl Pieces {
    /// As few as there are number formats of what is trained and of what is not, and more only where values are too many for one. `first` tells of a group the first
    /// one that is the same. Each group has arenas of its own if they are to be `of_one`.
    pub(crate) fn together(entries: &[Entry], first: impl Fn(usize) -> usize, of_one: bool) -> Self {
        let mut pieces = Vec::<(Kind, usize, Vec<usize>)>::new();
        let mut sorted: Vec<usize> = (0..entries.len()).collect();
        sorted.sort_by_key(|&i| entries[i].group.map(&first));
        for i in sorted {
            let entry = &entries[i];
            let (kind, numel) = ((entry.group.map(|group| if of_one { first(group) } else { 0 }), entry.dtype), entry.numel());
            match pieces.iter_mut().find(|(k, values, _)| *k == kind && *values + numel <= MOST) {
                Some((_, values, members)) => {
                    *values += numel;
                    members.push(i);
                }
                None => pieces.push((kind, numel, vec![i])),
            }
        }
        Self(pieces.into_iter().map(|(_, _, members)| Piece::new(members, entries, &first)).collect())
    }

    /// Every tensor by itself: for a rule that asks for its shape.
    pub(crate) fn apart(entries: &[Entry]) -> Self {
        Self((0..entries.len()).map(|i| Piece::new(vec![i], entries, |group| group)).collect())
    }

    /// The values of each.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|piece| piece.places.len())
    }

    /// The arenas of values in the order of the entries; where some tensors of a piece have none, theirs are zero.
    pub(crate) fn gather(&self, values: Vec<Option<Tensor<1>>>) -> Arenas {
        let mut values = values;
        self.0.iter().map(|piece| piece.gather(piece.entries.iter().map(|&i| values[i].take()).collect())).collect()
    }

    /// The values in the order of the entries.
    pub(crate) fn scatter(&self, arenas: &[Option<Tensor<1>>]) -> Vec<Option<Tensor<1>>> {
        let mut values = vec![None; self.0.iter().map(|piece| piece.entries.len()).sum()];
        for (piece, arena) in self.0.iter().zip(arenas) {
            let Some(arena) = arena else { continue };
            for (&i, part) in piece.entries.iter().zip(piece.parts(arena.clone())) {
                values[i] = Some(part);
            }
        }
        values
    }

    /// Σ x² over the tensors with a value that `of` asks for, `[1]`: not finite if any of their numbers is not. `None` if there are none.
    pub(crate) fn squares(&self, arenas: &[Option<Tensor<1>>], of: impl Fn(usize) -> bool) -> Option<Tensor<1>> {
        let (mut present, mut segments) = (Vec::new(), Vec::new());
        for (piece, arena) in self.0.iter().zip(arenas) {
            let Some(arena) = arena else { continue };
            segments.extend(piece.ranges().filter(|(i, _)| of(*i)).map(|(i, place)| (i, (present.len(), place))));
            present.push(arena.clone());
        }
        // In the order of the entries, so that the sum does not depend on the pieces.
        segments.sort_by_key(|(i, _)| *i);
        let segments = Segments(segments.into_iter().map(|(_, segment)| segment).collect());
        (!segments.0.is_empty()).then(|| sum_of_squares(present, segments))
    }
}

impl Piece {
    fn new(members: Vec<usize>, entries: &[Entry], first: impl Fn(usize) -> usize) -> Self {
        let places = Places::of(members.iter().map(|&i| entries[i].numel()));
        let mut groups: Vec<(usize, usize)> = Vec::new();
        let ends = places.all.iter().skip(1).map(|place| place.0).chain([places.len()]);
        for (end, &i) in ends.zip(&members) {
            match (entries[i].group.map(&first), groups.last_mut()) {
                (Some(group), Some(last)) if last.1 == group => last.0 = end,
                (Some(group), _) => groups.push((end, group)),
                (None, _) => {}
            }
        }
        Self { places, groups, entries: members }
    }

    /// Its entries, and where each lies in its arena.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.entries.iter().zip(&self.places.all).map(|(&i, &(start, len))| (i, start..start + len))
    }

    fn gather(&self, values: Vec<Option<Tensor<1>>>) -> Option<Tensor<1>> {
        // A tensor alone is its own arena, whatever its length: that of a buffer may not be its parameter's.
        if let [_] = self.entries[..] {
            return values.into_iter().next().flatten();
        }
        let device = values.iter().flatten().next()?.device();
        let of = |(value, &(_, len)): (Option<Tensor<1>>, &(usize, usize))| value.unwrap_or_else(|| Tensor::zeros([len], &device));
        Some(arena(values.into_iter().zip(&self.places.all).map(of).collect(), &self.places))
    }

    fn parts(&self, arena: Tensor<1>) -> Vec<Tensor<1>> {
        if let [_] = self.entries[..] {
            return vec![arena];
        }
        arena_parts(arena, &self.places)
    }

    /// `new` of the tensors that `take`, `old` (zeros, if there is none) of the others.
    pub(crate) fn choose(&self, old: Option<Tensor<1>>, new: Tensor<1>, take: impl Fn(usize) -> bool) -> Option<Tensor<1>> {
        if self.entries.iter().all(|&i| take(i)) {
            return Some(new);
        }
        let mut old = old.map(|old| self.parts(old).into_iter());
        let parts = self.parts(new).into_iter().zip(&self.entries).map(|(new, &i)| {
            let old = old.as_mut().and_then(Iterator::next);
            if take(i) { Some(new) } else { old }
        });
        self.gather(parts.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_many_values_has_several_arenas() {
        let members = |lengths: &[usize]| {
            let entry = |&len: &usize| Entry { name: "w".into(), shape: vec![len], group: Some(0), dtype: DType::F32 };
            let entries: Vec<Entry> = lengths.iter().map(entry).collect();
            Pieces::together(&entries, |group| group, false).0.into_iter().map(|piece| piece.entries).collect::<Vec<_>>()
        };
        assert_eq!(members(&[100, 200]), [vec![0, 1]]);
        assert_eq!(members(&[200_000_000, 200_000_000, 100]), [vec![0, 2], vec![1]]);
        assert_eq!(members(&[100, MOST + 1, 200]), [vec![0, 2], vec![1]], "one that is larger is alone");
    }

    #[test]
    fn groups_are_ranges_of_an_arena() {
        let groups = [Some(2), None, Some(0), Some(1), Some(2), Some(0)];
        let entry = |group: Option<usize>| Entry { name: "w".into(), shape: vec![100], group, dtype: DType::F32 };
        let entries: Vec<Entry> = groups.into_iter().map(entry).collect();
        let of = |first: fn(usize) -> usize, of_one: bool| {
            let pieces = Pieces::together(&entries, first, of_one).0;
            pieces.into_iter().map(|piece| (piece.entries, piece.groups)).collect::<Vec<_>>()
        };
        let kept = (vec![1], vec![]);
        assert_eq!(of(|group| group, false), [kept.clone(), (vec![2, 5, 3, 0, 4], vec![(256, 0), (384, 1), (612, 2)])]);
        // The second is as the first.
        let two_alike = |group| if group == 1 { 0 } else { group };
        assert_eq!(of(two_alike, false), [kept.clone(), (vec![2, 3, 5, 0, 4], vec![(384, 0), (612, 2)])]);
        assert_eq!(of(two_alike, true), [kept, (vec![2, 3, 5], vec![(356, 0)]), (vec![0, 4], vec![(228, 2)])]);
    }
}
