//! Time as channels: a frame with those before it, and with what differs from the background of its clip.
//!
//! Planes stand in the order of time, the frame itself last: t-2s, t-1s, t for three frames with a stride of s. What is not there (the beginning of a clip,
//! a gap in it, a frame that cannot be read or is of another size) is repeated from the next one; which frame stands before which, `succession` knows. Frames
//! between those that are looked at may be anything. With a background of K a first plane is added: the difference to the median of the K frames
//! before (of an even number the upper of the two in the middle), about middle gray. Only the past is looked at, so that a film is seen as training saw clips.

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use burn::data::dataset::{Dataset, DatasetError};

use super::frame::{Frame, NO_DIFFERENCE, Size};
use super::item::Item;

/// Which frames make an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Frames, the last of them the one that is looked at; 1 for no time.
    pub frames: usize,
    /// Frames from one to the next.
    pub stride: usize,
    /// Frames whose median is the background; 0 for no such plane.
    pub background: usize,
}

impl Default for Stack {
    fn default() -> Self {
        Self { frames: 1, stride: 1, background: 0 }
    }
}

impl Stack {
    /// Whether there is more than the frame itself.
    pub fn is_on(&self) -> bool {
        self.frames > 1 || self.background > 0
    }

    /// Planes of an input.
    pub fn channels(&self) -> usize {
        self.frames + usize::from(self.background > 0)
    }

    /// In words: `3 frames and a background`.
    pub(crate) fn told(&self) -> String {
        let background = if self.background > 0 { " and a background" } else { "" };
        format!("{} frame{}{background}", self.frames, if self.frames > 1 { "s" } else { "" })
    }

    /// How many frames before a frame are looked at.
    pub(crate) fn reach(&self) -> usize {
        ((self.frames - 1) * self.stride).max(self.background)
    }

    /// The input for `now`, a gray frame that has so many frames `before` it; `read` gives the one so many steps before, unless it is missing.
    fn input<'a>(&self, now: &Frame, before: usize, read: impl Fn(usize) -> Option<Cow<'a, Frame>>) -> Frame {
        // A frame of another size does not belong to it.
        let read = |k: usize| read(k).filter(|frame| frame.size() == now.size());
        // Frames between those that are looked at are read only where a background is made of them; the first of a clip stands for all before it.
        let oldest = before.min(self.reach());
        let wanted = |k: usize| k <= self.background || k.is_multiple_of(self.stride) || k == oldest;
        let mut past: Vec<Option<Cow<'a, Frame>>> = Vec::with_capacity(oldest);
        for k in 1..=oldest {
            if !wanted(k) {
                past.push(None);
                continue;
            }
            let frame = read(k);
            if frame.is_some() {
                past.push(frame);
                continue;
            }
            // As if the clip began after it: what comes first now stands for all before it, and may not have been read.
            while matches!(past.last(), Some(None)) {
                let first = read(past.len());
                past.pop();
                if first.is_some() {
                    past.push(first);
                }
            }
            break;
        }
        let frames: Vec<&Frame> = past.iter().rev().map(|frame| frame.as_deref().unwrap_or(now)).chain([now]).collect();
        let last = frames.len() - 1;
        let mut pixels = Vec::with_capacity(self.channels() * now.pixels.len());
        if self.background > 0 {
            pixels.extend(difference(now, &frames[last.saturating_sub(self.background)..last]));
        }
        (0..self.frames).rev().for_each(|k| pixels.extend_from_slice(&frames[last.saturating_sub(k * self.stride)].pixels));
        Frame { pixels, channels: self.channels(), width: now.width, height: now.height, difference: self.background > 0 }
    }
}

/// What differs from the median of `frames`, of an even number the upper of the two in the middle, about [`NO_DIFFERENCE`]; of no frames nothing does.
fn difference(now: &Frame, frames: &[&Frame]) -> Vec<u8> {
    let mut values = Vec::with_capacity(frames.len());
    let pixel = |(i, &p): (usize, &u8)| {
        values.clear();
        values.extend(frames.iter().map(|f| f.pixels[i]));
        let middle = values.len() / 2;
        let median = if values.is_empty() { p } else { *values.select_nth_unstable(middle).1 };
        (i32::from(NO_DIFFERENCE) + i32::from(p) - i32::from(median)).clamp(0, 255) as u8
    };
    now.pixels.iter().enumerate().map(pixel).collect()
}

/// A dataset of clips whose items have the frames before them as channels.
pub struct Stacked {
    data: Arc<dyn Dataset<Item>>,
    stack: Stack,
    /// Of each item the one before it in its clip.
    before: Vec<Option<u32>>,
    /// Frames before others that could not be read.
    unreadable: Mutex<HashSet<usize>>,
}

impl Stacked {
    /// `before` names, of each item of `data`, which are gray, the one before it in its clip.
    pub fn new(data: Arc<dyn Dataset<Item>>, stack: Stack, before: Vec<Option<u32>>) -> Self {
        Self { data, stack, before, unreadable: Mutex::default() }
    }

    /// The frame of an item before one whose file has this `size`, if it can be read and its file has that size, too.
    fn past(&self, index: usize, size: Size) -> Option<Frame> {
        match self.data.get(index) {
            Ok(item) => (item.original == size).then_some(item.frame),
            Err(error) => {
                self.missing(index, &error);
                None
            }
        }
    }

    /// Told once a frame: it is missing to many.
    fn missing(&self, index: usize, error: &DatasetError) {
        if self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).insert(index) {
            tracing::warn!("missing to the frames after it: {error}");
        }
    }
}

impl Dataset<Item> for Stacked {
    fn get(&self, index: usize) -> Result<Item, DatasetError> {
        let item = self.data.get(index)?;
        let mut chain = vec![index];
        while let Some(Some(before)) = self.before.get(chain[chain.len() - 1]).filter(|_| chain.len() <= self.stack.reach()) {
            chain.push(*before as usize);
        }
        let frame = self.stack.input(&item.frame, chain.len() - 1, |k| self.past(chain[k], item.original).map(Cow::Owned));
        Ok(Item { frame, ..item })
    }

    fn len(&self) -> usize {
        self.data.len()
    }
}

/// The frames of a film so far, as many as are looked at.
pub struct Ring {
    stack: Stack,
    /// Nothing for one that is missing.
    past: VecDeque<Option<Frame>>,
}

impl Ring {
    /// Of a film that begins.
    pub fn new(stack: Stack) -> Self {
        Self { stack, past: VecDeque::new() }
    }

    /// The input for the next frame.
    pub fn push(&mut self, frame: &Frame) -> Frame {
        let (now, past) = (frame.clone().to_gray(), &self.past);
        let input = self.stack.input(&now, past.len(), |k| past[past.len() - k].as_ref().map(Cow::Borrowed));
        self.keep(Some(now));
        input
    }

    /// A frame that is looked at only as one before others; nothing for one that cannot be read.
    pub fn remember(&mut self, frame: Option<&Frame>) {
        self.keep(frame.map(|frame| frame.clone().to_gray()));
    }

    fn keep(&mut self, frame: Option<Frame>) {
        self.past.push_back(frame);
        if self.past.len() > self.stack.reach() {
            self.past.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::data::dataset::InMemDataset;

    use super::*;
    use crate::data::meta::{FrameMeta, MOMENT};
    use crate::data::succession::before;

    fn frame(value: u8) -> Frame {
        Frame::filled(1, 4, 3, value)
    }

    /// Six frames of two clips, of which the second runs backwards by its names.
    fn set(stack: Stack) -> Stacked {
        let mut builder = crate::data::meta::MetaBuilder::default();
        for (row, second) in [0, 1, 2, 3, 9, 8].iter().enumerate() {
            builder.set(row, MOMENT, &format!("2020-05-14T10:00:0{second}"));
        }
        let mut meta = FrameMeta::new(vec![Arc::new(builder.finish())]);
        (0..6).for_each(|i| meta.push(i, Some((0, i as u32))));
        let paths = ["a/0", "a/1", "a/2", "a/3", "b/0", "b/1"];
        meta.find_clips(paths.iter());
        let items = (0..6).map(|i| Item::new(frame(10 * i), Vec::new(), i.to_string())).collect();
        Stacked::new(Arc::new(InMemDataset::new(items)), stack, before(&meta, paths.iter()))
    }

    fn planes(set: &Stacked, index: usize) -> Vec<u8> {
        let frame = set.get(index).unwrap().frame;
        (0..frame.channels).map(|c| frame.plane(c)[5]).collect()
    }

    #[test]
    fn planes_are_the_frames_before_and_what_is_missing_is_repeated() {
        let three = set(Stack { frames: 3, ..Stack::default() });
        assert_eq!([0, 1, 3].map(|i| planes(&three, i)), [vec![0, 0, 0], vec![0, 0, 10], vec![10, 20, 30]]);
        assert_eq!((planes(&three, 4), planes(&three, 5)), (vec![50, 50, 40], vec![50, 50, 50]), "by time and not by name, and by clip");
        let wide = set(Stack { frames: 2, stride: 3, ..Stack::default() });
        assert_eq!([2, 3].map(|i| planes(&wide, i)), [vec![0, 20], vec![0, 30]]);
        assert_eq!(three.len(), 6);
    }

    #[test]
    fn a_gap_begins_anew_for_frames_and_background() {
        // Of the first clip the third frame is missing; of its frames 0, 10, 30, 40 the third begins anew.
        let gap = |stack| Stacked { before: vec![None, Some(0), None, Some(2), None, None], ..set(stack) };
        let three = gap(Stack { frames: 3, ..Stack::default() });
        assert_eq!([1, 2, 3].map(|i| planes(&three, i)), [vec![0, 0, 10], vec![20, 20, 20], vec![20, 20, 30]]);
        let background = gap(Stack { background: 2, ..Stack::default() });
        assert_eq!([2, 3].map(|i| planes(&background, i)), [vec![128, 20], vec![138, 30]]);
    }

    /// A set of which these items cannot be read.
    struct Torn(Arc<dyn Dataset<Item>>, Vec<usize>);

    impl Dataset<Item> for Torn {
        fn get(&self, index: usize) -> Result<Item, DatasetError> {
            if self.1.contains(&index) { Err(DatasetError::new(std::io::Error::other("torn"))) } else { self.0.get(index) }
        }

        fn len(&self) -> usize {
            self.0.len()
        }
    }

    #[test]
    fn a_frame_that_cannot_be_read_is_missing_to_those_after_it_and_told_once() {
        let whole = set(Stack { frames: 3, ..Stack::default() });
        let torn = Stacked { data: Arc::new(Torn(whole.data.clone(), vec![1])), ..whole };
        assert_eq!([2, 3].map(|i| planes(&torn, i)), [vec![20, 20, 20], vec![20, 20, 30]]);
        assert!(torn.get(1).is_err());
        assert_eq!(torn.unreadable.into_inner().unwrap(), HashSet::from([1]));
    }

    /// What `Ring` sees of a film that begins with item 2.
    fn begun_anew(stack: Stack) -> Vec<u8> {
        let mut ring = Ring::new(stack);
        ring.push(&frame(20));
        let seen = ring.push(&frame(30));
        (0..seen.channels).map(|c| seen.plane(c)[5]).collect()
    }

    #[test]
    fn what_cannot_be_read_begins_anew_with_frames_that_were_passed_over() {
        let cases: [(Stack, &'static [usize]); 3] = [
            (Stack { frames: 2, stride: 2, background: 0 }, &[1]),
            (Stack { frames: 2, stride: 3, background: 0 }, &[0, 1]),
            (Stack { frames: 2, stride: 3, background: 1 }, &[0, 1]),
        ];
        for (stack, torn) in cases {
            let whole = set(stack);
            let torn = Stacked { data: Arc::new(Torn(whole.data.clone(), torn.to_vec())), ..whole };
            assert_eq!(planes(&torn, 3), begun_anew(stack), "{stack:?}");
        }
        let whole = set(cases[1].0);
        let torn = Stacked { data: Arc::new(Torn(whole.data.clone(), vec![0, 1, 2])), ..whole };
        assert_eq!(planes(&torn, 3), [30, 30]);
    }

    /// Whether it has been fitted to one size with the others or not.
    #[test]
    fn a_file_of_another_size_begins_anew_with_frames_that_were_passed_over() {
        let stack = Stack { frames: 2, stride: 2, background: 0 };
        let other = |fitted: bool| {
            let item = |i: u8| {
                let item = Item::new(if i == 1 { Frame::filled(1, 8, 6, 10) } else { frame(10 * i) }, Vec::new(), i.to_string());
                if fitted { Item { frame: frame(10 * i), ..item } } else { item }
            };
            Stacked::new(Arc::new(InMemDataset::new((0..4).map(item).collect())), stack, vec![None, Some(0), Some(1), Some(2)])
        };
        assert_eq!([false, true].map(|fitted| planes(&other(fitted), 3)), [[20, 30]; 2]);
        assert_eq!(begun_anew(stack), [20, 30]);
    }

    #[test]
    fn a_film_is_seen_as_its_clip_was() {
        for stack in [
            Stack { frames: 3, ..Stack::default() },
            Stack { frames: 2, stride: 2, background: 0 },
            Stack { frames: 1, stride: 1, background: 2 },
            Stack { frames: 2, stride: 3, background: 1 },
        ] {
            let (set, mut ring) = (set(stack), Ring::new(stack));
            for i in 0..4u8 {
                let seen = ring.push(&frame(10 * i));
                assert_eq!(seen, set.get(usize::from(i)).unwrap().frame, "{stack:?} {i}");
                assert_eq!((seen.channels, seen.plane(seen.channels - 1)[0]), (stack.channels(), 10 * i));
            }
            assert!(ring.past.len() <= stack.reach());
        }
    }

    /// Also where it is a frame that is not looked at.
    #[test]
    fn what_cannot_be_read_is_as_good_as_not_there_to_films_and_clips_alike() {
        let stacks = [
            Stack { frames: 3, ..Stack::default() },
            Stack { frames: 2, stride: 2, background: 0 },
            Stack { frames: 2, stride: 3, background: 0 },
            Stack { frames: 2, stride: 3, background: 1 },
        ];
        for stack in stacks {
            for bits in 0..8_usize {
                let torn: Vec<usize> = (0..3).filter(|i| bits >> i & 1 == 1).collect();
                let whole = set(stack);
                let clip = Stacked { data: Arc::new(Torn(whole.data.clone(), torn.clone())), ..whole };
                // One of another size is none either.
                for other in [None, Some(&Frame::filled(1, 8, 6, 99))] {
                    let mut film = Ring::new(stack);
                    (0..3_u8).for_each(|i| match torn.contains(&usize::from(i)) {
                        true => film.remember(other),
                        false => film.remember(Some(&frame(10 * i))),
                    });
                    assert_eq!(film.push(&frame(30)), clip.get(3).unwrap().frame, "{stack:?} {torn:?}");
                }
            }
        }
        let apart = set(stacks[1]);
        let torn = Stacked { data: Arc::new(Torn(apart.data.clone(), vec![2])), ..apart };
        assert_eq!(planes(&torn, 3), [10, 30], "the frame between is not looked at");
    }

    #[test]
    fn what_stays_is_background_and_what_comes_is_not() {
        let mut ring = Ring::new(Stack { frames: 1, stride: 1, background: 3 });
        let mut street = frame(100);
        assert!((0..4).map(|_| ring.push(&street)).all(|seen| seen.plane(0).iter().all(|&p| p == 128)));
        street.pixels[5] = 130;
        let seen = ring.push(&street);
        assert_eq!((seen.plane(0)[5], seen.plane(0)[6], seen.plane(1)[5]), (158, 128, 130));
        // Of two frames the brighter is the median.
        let [dark, bright] = [frame(10), frame(30)];
        assert!(difference(&frame(40), &[&bright, &dark]).iter().all(|&p| p == 138));
        // A frame of another size begins anew.
        assert_eq!(ring.push(&Frame::filled(1, 2, 2, 7)).pixels, [128, 128, 128, 128, 7, 7, 7, 7]);
    }
}
