//! An image and its objects, as every dataset gives them.

use super::frame::{Frame, Size};
use super::outline::Outline;
use crate::boxes::Label;

/// One image and its objects, as a dataset gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Pixels, of the file's size or already fitted to the network's.
    pub frame: Frame,
    /// Normalised to the image.
    pub labels: Vec<Label>,
    /// Outlines of these, normalised to the image, one a label; empty where no label has one.
    pub outlines: Vec<Outline>,
    /// File name.
    pub name: String,
    /// Size of the image file, whatever `frame` was resized to.
    pub original: Size,
}

impl Item {
    /// An item whose frame has the size of its file, and whose labels are boxes.
    pub fn new(frame: Frame, labels: Vec<Label>, name: String) -> Self {
        let original = Size { width: frame.width as u32, height: frame.height as u32 };
        Self { frame, labels, outlines: Vec::new(), name, original }
    }
}
