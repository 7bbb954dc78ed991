//! Arenas on Flex: f32 copied by all threads, where it is not in place already.

use std::sync::Arc;

use burn::backend::Flex;
use burn_flex::FlexTensor;

use super::{ArenaOps, Places, portable};
use crate::buffers::{all_f32, contiguous, values, written};
use crate::planes::Parts;
use crate::planes::kernels::carry_out;

/// The arena whose parts these are, if they are.
fn whole(parts: &[FlexTensor], places: &Places) -> Option<FlexTensor> {
    let first = &parts[0];
    let memory = first.data_arc();
    let all = parts
        .iter()
        .zip(&places.all)
        .all(|(part, &(start, _))| Arc::ptr_eq(&memory, &part.data_arc()) && part.is_contiguous() && part.layout().start_offset() == start);
    let fits = memory.len() == size_of::<f32>() * places.len();
    (all && fits).then(|| FlexTensor::from_arc(memory, burn_flex::Layout::contiguous([places.len()].into()), first.dtype()))
}

impl ArenaOps for Flex {
    fn arena(parts: Parts<Self>, places: Places) -> FlexTensor {
        let true = all_f32(&parts.0) else { return portable::arena::<Self>(parts, &places) };
        if let Some(whole) = whole(&parts.0, &places) {
            return whole;
        }
        let parts: Vec<FlexTensor> = parts.0.into_iter().map(contiguous).collect();
        written([places.len()], |mut rest| {
            let (mut end, mut moves) = (0, Vec::new());
            for (part, &(start, len)) in parts.iter().zip(&places.all) {
                let (between, behind) = rest.split_at_mut(start - end);
                let (to, behind) = behind.split_at_mut(len);
                moves.extend([(between, None), (to, Some(values(part)))]);
                (rest, end) = (behind, start + len);
            }
            carry_out(moves);
        })
    }

    fn arena_parts(arena: FlexTensor, places: Places) -> Parts<Self> {
        portable::parts::<Self>(contiguous(arena), &places)
    }
}
