//! Brightness, saturation and hue jitter. A gray image has brightness only, and there one table of 256 entries does it.
//!
//! Colour uses the 8-bit HSV of OpenCV (hue in half degrees, 0..180), whose rounding pretrained weights have seen; a gray pixel of a colour
//! image stays gray whatever the saturation gain.

use super::frame::Frame;
use super::rng::Draw;

/// Multiplies hue, saturation and value by 1 + r with r uniform in +/- `gains`; hue is shifted by 180 r half degrees instead. All gains 0 change nothing.
pub(crate) fn jitter(frame: &mut Frame, gains: [f64; 3], draw: &mut Draw) {
    let [hue, saturation, value] = gains.map(|g| draw.uniform(-1.0, 1.0) * g);
    // The way to hue and back rounds, and the draws above are made in any case: what is drawn next does not depend on the gains.
    if gains == [0.0; 3] {
        return;
    }
    let gain = |r: f64| std::array::from_fn::<u8, 256, _>(|v| (v as f64 * (1.0 + r)).clamp(0.0, 255.0) as u8);
    let value = gain(value);
    if frame.channels == 1 {
        frame.pixels.iter_mut().for_each(|p| *p = value[usize::from(*p)]);
        return;
    }
    let saturation = gain(saturation);
    let turn = (hue * 180.0) as f32;
    let size = frame.width * frame.height;
    let (red, rest) = frame.pixels.split_at_mut(size);
    let (green, blue) = rest.split_at_mut(size);
    for ((r, g), b) in red.iter_mut().zip(green).zip(blue) {
        let (h, s, v) = to_hsv([*r, *g, *b]);
        let h = (h + turn).rem_euclid(180.0).floor();
        [*r, *g, *b] = to_rgb(h, saturation[usize::from(s)], value[usize::from(v)]);
    }
}

/// Hue 0..180 (rounded), saturation and value 0..255.
fn to_hsv([r, g, b]: [u8; 3]) -> (f32, u8, u8) {
    let (high, low) = (r.max(g).max(b), r.min(g).min(b));
    let range = f32::from(high - low);
    if range == 0.0 {
        return (0.0, 0, high);
    }
    let [rf, gf, bf] = [r, g, b].map(f32::from);
    let sextant = if high == r {
        (gf - bf) / range
    } else if high == g {
        2.0 + (bf - rf) / range
    } else {
        4.0 + (rf - gf) / range
    };
    ((30.0 * sextant).rem_euclid(180.0).round(), (255.0 * range / f32::from(high)).round() as u8, high)
}

fn to_rgb(h: f32, s: u8, v: u8) -> [u8; 3] {
    let (s, v) = (f32::from(s) / 255.0, f32::from(v));
    let channel = |offset: f32| {
        let k = (offset + h / 30.0).rem_euclid(6.0);
        (v - v * s * k.min(4.0 - k).clamp(0.0, 1.0)).round() as u8
    };
    [channel(5.0), channel(3.0), channel(1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hsv_round_trip() {
        for rgb in [[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [12, 200, 99], [250, 128, 3], [77, 77, 78]] {
            let (h, s, v) = to_hsv(rgb);
            let back = to_rgb(h, s, v);
            assert!(rgb.iter().zip(back).all(|(&a, b)| a.abs_diff(b) <= 4), "{rgb:?} -> {h} {s} {v} -> {back:?}");
        }
        assert_eq!(to_hsv([0, 255, 0]), (60.0, 255, 255));
    }

    #[test]
    fn gray_is_brightness_only_and_equal_in_both_forms() {
        let gray = Frame { pixels: (0..=255).collect(), channels: 1, width: 16, height: 16, difference: false };
        let (mut one, mut three) = (gray.clone(), gray.clone().with_channels(3));
        jitter(&mut one, [0.015, 0.7, 0.4], &mut Draw::new(1, "t", 0, 0));
        jitter(&mut three, [0.015, 0.7, 0.4], &mut Draw::new(1, "t", 0, 0));
        assert_ne!(one, gray);
        assert_eq!(one.with_channels(3), three);
        let mut still = gray.clone();
        jitter(&mut still, [0.0; 3], &mut Draw::new(1, "t", 0, 0));
        assert_eq!(still, gray);
    }

    #[test]
    fn gains_of_zero_are_off_and_draw_as_others_do() {
        let colour =
            Frame { pixels: (0..192).map(|v| (v * 37 % 251) as u8).collect(), channels: 3, width: 8, height: 8, difference: false };
        let after = |gains: [f64; 3]| {
            let (mut frame, mut draw) = (colour.clone(), Draw::new(1, "t", 0, 0));
            jitter(&mut frame, gains, &mut draw);
            (frame, draw.uniform(0.0, 1.0))
        };
        let (still, turned) = (after([0.0; 3]), after([0.015, 0.0, 0.0]));
        assert!(still.0 == colour && turned.0 != colour && still.1 == turned.1);
    }
}
