//! A picture between an item and a sample, while it is put together.

use super::frame::Frame;

/// A picture being composed: boxes are `xyxy` in its pixels.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) frame: Frame,
    pub(crate) boxes: Vec<(u32, [f32; 4])>,
}

impl Scene {
    /// Both with as many channels as the one that has more.
    pub(crate) fn align(self, other: Scene) -> (Scene, Scene) {
        let channels = self.frame.channels.max(other.frame.channels);
        let widen = |s: Scene| Scene { frame: s.frame.with_channels(channels), boxes: s.boxes };
        (widen(self), widen(other))
    }
}
