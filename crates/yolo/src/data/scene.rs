//! A picture between an item and a sample, while it is put together.

use super::frame::Frame;
use super::outline::Outline;

/// A picture being composed: boxes are `xyxy` in its pixels.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) frame: Frame,
    pub(crate) boxes: Vec<(u32, [f32; 4])>,
    /// Outlines of these in its pixels, one a box; empty where there are none, and after the warp, which takes the boxes from them.
    pub(crate) outlines: Vec<Outline>,
}

impl Scene {
    /// Both with as many channels as the one that has more.
    pub(crate) fn align(self, other: Scene) -> (Scene, Scene) {
        let channels = self.frame.channels.max(other.frame.channels);
        let widen = |s: Scene| Scene { frame: s.frame.with_channels(channels), boxes: s.boxes, outlines: s.outlines };
        (widen(self), widen(other))
    }
}
