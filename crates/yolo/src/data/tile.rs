//! Tiles of an image to train on, as prediction looks at them (see `predict::tiles`): a square anywhere in it, enlarged to the network's size afterwards.

use super::frame::Size;
use super::item::Item;
use super::rng::Draw;
use crate::boxes::{Label, xywh_to_xyxy, xyxy_to_xywh};

/// An object stays if this much of it is on the tile: of less nobody could tell what it is.
const SHOWN: f32 = 0.4;

/// Which part of the images are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TileConfig {
    /// Side of a tile in pixels of the image; 0 for whole images.
    pub side: usize,
    /// Probability that an image stays whole, for objects that are larger than a tile.
    pub whole: f64,
}

/// A tile of `item`, or the whole of it. Outlines are given up: boxes are cut as boxes.
pub(crate) fn cut(item: Item, config: TileConfig, draw: &mut Draw) -> Item {
    let (width, height) = (item.frame.width, item.frame.height);
    if config.side == 0 || draw.chance(config.whole) || (width <= config.side && height <= config.side) {
        return item;
    }
    let (w, h) = (width.min(config.side), height.min(config.side));
    let (x, y) = (draw.below(width - w + 1), draw.below(height - h + 1));
    let mut frame = item.frame.blank(item.frame.channels, w, h);
    frame.paste(&item.frame, (x, y), (0, 0), w, h);
    let labels = item.labels.iter().filter_map(|label| on_tile(label, [width, height], [x, y], [w, h])).collect();
    Item { frame, labels, outlines: Vec::new(), original: Size { width: w as u32, height: h as u32 }, ..item }
}

/// The part of an object that is on the tile of size `size` at `at`, normalised to it.
fn on_tile(label: &Label, image: [usize; 2], at: [usize; 2], size: [usize; 2]) -> Option<Label> {
    let corners = xywh_to_xyxy(label.xywh);
    let axis = |i: usize| {
        let (pixels, from, side) = (image[i] as f32, at[i] as f32, size[i] as f32);
        let [low, high] = [corners[i], corners[i + 2]].map(|v| v * pixels - from);
        let inside = [low, high].map(|v| v.clamp(0.0, side));
        (inside[1] - inside[0], high - low, inside.map(|v| v / side))
    };
    let ((shown_w, w, [x1, x2]), (shown_h, h, [y1, y2])) = (axis(0), axis(1));
    let shown = shown_w * shown_h;
    (shown > 0.0 && shown >= SHOWN * w * h).then(|| Label { class: label.class, xywh: xyxy_to_xywh([x1, y1, x2, y2]) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::frame::Frame;

    /// 100 x 60, each pixel its place; an object of 10 x 6 in the middle.
    fn item() -> Item {
        let pixels = (0..60).flat_map(|y| (0..100).map(move |x| (x + y) as u8)).collect();
        let frame = Frame { pixels, channels: 1, width: 100, height: 60, difference: false };
        Item::new(frame, vec![Label { class: 2, xywh: [0.5, 0.5, 0.1, 0.1] }], "a".into())
    }

    #[test]
    fn a_tile_has_its_pixels_and_what_is_on_it() {
        let (mut kept, mut lost) = (0, 0);
        for i in 0..60 {
            let tile = cut(item(), TileConfig { side: 32, whole: 0.0 }, &mut Draw::new(1, "t", 0, i));
            assert_eq!((tile.frame.width, tile.frame.height, tile.original), (32, 32, Size::square(32)));
            // x + y of the first pixel, and the object around (50, 30), whose middle has the value 80.
            let first = tile.frame.pixels[0];
            assert_eq!(tile.frame.pixels[33], first + 2);
            match tile.labels[..] {
                [] => lost += 1,
                [Label { class: 2, xywh: [x, y, w, h] }] => {
                    kept += 1;
                    let inside = [x - w / 2.0, y - h / 2.0, 1.0 - x - w / 2.0, 1.0 - y - h / 2.0];
                    assert!(inside.iter().all(|&v| v > -1e-5), "{inside:?}");
                    if inside.iter().all(|&v| v > 0.01) {
                        assert!((w * 32.0 - 10.0).abs() < 1e-3 && (h * 32.0 - 6.0).abs() < 1e-3);
                        let value = tile.frame.pixels[(y * 32.0) as usize * 32 + (x * 32.0) as usize];
                        assert!(value.abs_diff(80) <= 1, "{value}");
                    }
                }
                _ => panic!("{:?}", tile.labels),
            }
        }
        assert!(kept > 5 && lost > 5, "{kept} {lost}");
    }

    #[test]
    fn whole_images_stay_as_often_as_is_said() {
        let whole = |config| (0..200).filter(|&i| cut(item(), config, &mut Draw::new(1, "t", 0, i)) == item()).count();
        assert_eq!(whole(TileConfig::default()), 200);
        assert_eq!(whole(TileConfig { side: 100, whole: 0.0 }), 200, "it is no larger than a tile");
        let some = whole(TileConfig { side: 32, whole: 0.3 });
        assert!((40..80).contains(&some), "{some}");
        let flat = cut(item(), TileConfig { side: 80, whole: 0.0 }, &mut Draw::new(1, "t", 0, 3));
        assert_eq!((flat.frame.width, flat.frame.height), (80, 60));
    }
}
