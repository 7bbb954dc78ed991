//! What a thermal camera does to a picture, drawn for training in place of colours: optics, drift, fixed-pattern noise, dead pixels, gain, gamma,
//! polarity.
//!
//! In the order in which they come about, on levels from 0 (black) to 1 (white). Each has a range, and 0 is off; where all are off nothing is
//! drawn. All channels of a frame are changed alike: a stack of frames has one sensor. Of a difference to the background what is the same in every
//! frame is gone (offset, drift, pattern, dead pixels), and gain, polarity and optics are left.

use super::frame::{self, Frame};
use super::raster::Canvas;
use super::rng::Draw;

/// How strongly the sensor is varied; each is the end of a range that is drawn from for every picture.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SensorConfig {
    /// Gain about middle gray: 1 +/- this.
    pub gain: f64,
    /// Offset, +/- a part of all levels.
    pub offset: f64,
    /// Gamma, from `exp(-x)` to `exp(x)`.
    pub gamma: f64,
    /// Probability that white becomes black (white-hot and black-hot cameras).
    pub invert: f64,
    /// Low-frequency drift over the picture: the standard deviation of its field, up to a part of all levels.
    pub drift: f64,
    /// Fixed-pattern noise of columns, rows and pixels: standard deviation of the columns', up to a part of all levels.
    pub pattern: f64,
    /// Gaussian blur of the optics: standard deviation, up to so many pixels.
    pub blur: f64,
    /// Dead pixels, black or white: up to this part of all.
    pub dead: f64,
}

/// Cells of the drift's field a side.
const CELLS: usize = 4;

impl SensorConfig {
    /// Whether anything is drawn.
    pub fn is_on(&self) -> bool {
        [self.gain, self.offset, self.gamma, self.invert, self.drift, self.pattern, self.blur, self.dead].iter().any(|&x| x > 0.0)
    }
}

/// One picture's sensor.
struct Sensor {
    gain: f32,
    offset: f32,
    gamma: f32,
    inverted: bool,
    drift: f32,
    pattern: f32,
    blur: f32,
    dead: f64,
}

/// The level of no difference.
const NO_DIFFERENCE: f32 = frame::NO_DIFFERENCE as f32 / 255.0;

/// Sees `frame` with a sensor that is drawn.
pub(crate) fn disturb(frame: &mut Frame, config: &SensorConfig, draw: &mut Draw) {
    if !config.is_on() {
        return;
    }
    let sensor = Sensor::draw(config, draw);
    let (width, height) = (frame.width, frame.height);
    let field = sensor.field(width, height, draw);
    let dead = sensor.dead_pixels(width * height, draw);
    let curve = |level: f32| {
        let level = ((level - 0.5) * sensor.gain + 0.5 + sensor.offset).clamp(0.0, 1.0).powf(sensor.gamma);
        if sensor.inverted { 1.0 - level } else { level }
    };
    let of_difference = |level: f32| {
        let off = (level - NO_DIFFERENCE) * sensor.gain;
        (NO_DIFFERENCE + if sensor.inverted { -off } else { off }).clamp(0.0, 1.0)
    };
    for (k, plane) in frame.pixels.chunks_exact_mut((width * height).max(1)).enumerate() {
        let mut levels: Vec<f32> = plane.iter().map(|&p| f32::from(p) / 255.0).collect();
        if sensor.blur > 0.1 {
            let mut canvas = Canvas { width, height, value: levels, owner: Vec::new() };
            canvas.blur(sensor.blur);
            levels = canvas.value;
        }
        if frame.difference && k == 0 {
            plane.iter_mut().zip(&levels).for_each(|(p, &level)| *p = (of_difference(level) * 255.0).round() as u8);
            continue;
        }
        levels.iter_mut().zip(&field).for_each(|(level, noise)| *level += noise);
        dead.iter().for_each(|&(at, value)| levels[at] = value);
        plane.iter_mut().zip(&levels).for_each(|(p, &level)| *p = (curve(level) * 255.0).round() as u8);
    }
}

impl Sensor {
    fn draw(c: &SensorConfig, draw: &mut Draw) -> Self {
        Self {
            gain: (1.0 + draw.uniform(-1.0, 1.0) * c.gain) as f32,
            offset: (draw.uniform(-1.0, 1.0) * c.offset) as f32,
            gamma: (draw.uniform(-1.0, 1.0) * c.gamma).exp() as f32,
            inverted: draw.chance(c.invert),
            drift: (draw.unit() * c.drift) as f32,
            pattern: (draw.unit() * c.pattern) as f32,
            blur: (draw.unit() * c.blur) as f32,
            dead: draw.unit() * c.dead,
        }
    }

    /// What is added to each pixel: a smooth field, and columns, rows and pixels that answer differently.
    fn field(&self, width: usize, height: usize, draw: &mut Draw) -> Vec<f32> {
        let mut field = vec![0.0; width * height];
        if self.drift > 0.0 {
            let lattice: Vec<f32> = (0..(CELLS + 1) * (CELLS + 1)).map(|_| draw.normal() as f32 * self.drift).collect();
            let along = |size: usize| -> Vec<(usize, f32)> {
                let place = |i: usize| (i as f32 + 0.5) / size as f32 * CELLS as f32;
                (0..size).map(|i| (place(i) as usize, place(i).fract())).map(|(cell, t)| (cell, t * t * (3.0 - 2.0 * t))).collect()
            };
            let (columns, rows) = (along(width), along(height));
            for (row, &(v, fv)) in field.chunks_exact_mut(width).zip(&rows) {
                for (to, &(u, fu)) in row.iter_mut().zip(&columns) {
                    let at = |u: usize, v: usize| lattice[v * (CELLS + 1) + u];
                    let line = |v: usize| at(u, v) * (1.0 - fu) + at(u + 1, v) * fu;
                    *to = line(v) * (1.0 - fv) + line(v + 1) * fv;
                }
            }
        }
        if self.pattern > 0.0 {
            let mut list = |n: usize, deviation: f32| -> Vec<f32> { (0..n).map(|_| draw.normal() as f32 * deviation).collect() };
            let (columns, rows) = (list(width, self.pattern), list(height, self.pattern / 2.0));
            // Uniform noise of half the columns' deviation.
            let most = f64::from(self.pattern) / 2.0 * 3f64.sqrt();
            for (row, across) in field.chunks_exact_mut(width.max(1)).zip(&rows) {
                for (to, column) in row.iter_mut().zip(&columns) {
                    *to += across + column + draw.uniform(-most, most) as f32;
                }
            }
        }
        field
    }

    /// Places and levels of pixels that answer to nothing.
    fn dead_pixels(&self, pixels: usize, draw: &mut Draw) -> Vec<(usize, f32)> {
        let count = (pixels as f64 * self.dead).round() as usize;
        (0..count).map(|_| (draw.below(pixels), if draw.chance(0.5) { 1.0 } else { 0.0 })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp() -> Frame {
        Frame { pixels: (0..64 * 48).map(|i| 40 + (i % 64 * 2) as u8).collect(), channels: 1, width: 64, height: 48, difference: false }
    }

    fn seen(config: &SensorConfig, index: u64) -> Frame {
        let mut frame = ramp();
        disturb(&mut frame, config, &mut Draw::new(5, "sensor", 0, index));
        frame
    }

    fn mean(frame: &Frame) -> f64 {
        frame.pixels.iter().map(|&p| f64::from(p)).sum::<f64>() / frame.pixels.len() as f64
    }

    #[test]
    fn off_is_the_picture_itself() {
        assert_eq!(seen(&SensorConfig::default(), 0), ramp());
        let config = SensorConfig { gain: 0.3, drift: 0.1, ..SensorConfig::default() };
        assert_eq!(seen(&config, 3), seen(&config, 3));
        assert_ne!(seen(&config, 3), seen(&config, 4));
    }

    #[test]
    fn each_does_what_it_says() {
        let zero = SensorConfig::default();
        let inverted = seen(&SensorConfig { invert: 1.0, ..zero }, 0);
        assert!(inverted.pixels.iter().zip(&ramp().pixels).all(|(a, b)| a + b == 255));
        // Offset moves all alike; gain leaves middle gray; gamma leaves black and white.
        for i in 0..8 {
            let moved = seen(&SensorConfig { offset: 0.1, ..zero }, i);
            let by: Vec<i32> = moved.pixels.iter().zip(&ramp().pixels).map(|(a, b)| i32::from(*a) - i32::from(*b)).collect();
            assert!(by.iter().all(|d| (d - by[0]).abs() <= 1 && d.abs() <= 26), "{by:?}");
            let spread = seen(&SensorConfig { gain: 0.5, ..zero }, i);
            assert!((i32::from(spread.pixels[44]) - 128).abs() <= 1, "{}", spread.pixels[44]);
            let mut ends = Frame { pixels: vec![0, 255, 100], channels: 1, width: 3, height: 1, difference: false };
            disturb(&mut ends, &SensorConfig { gamma: 0.7, ..zero }, &mut Draw::new(5, "sensor", 0, i));
            assert!(ends.pixels[..2] == [0, 255] && (45..180).contains(&ends.pixels[2]), "{:?}", ends.pixels);
        }
        // Drift is smooth, a pattern is not; both leave the mean near.
        let rough = |f: &Frame| {
            let flat: Vec<i32> = f.pixels.iter().zip(&ramp().pixels).map(|(a, b)| i32::from(*a) - i32::from(*b)).collect();
            flat.windows(2).map(|w| f64::from((w[0] - w[1]).pow(2))).sum::<f64>()
                / flat.iter().map(|v| f64::from(v * v)).sum::<f64>().max(1.0)
        };
        let (drift, pattern) = (seen(&SensorConfig { drift: 0.2, ..zero }, 1), seen(&SensorConfig { pattern: 0.1, ..zero }, 1));
        assert!(drift != ramp() && rough(&drift) < 0.2 && rough(&pattern) > 1.0, "{} {}", rough(&drift), rough(&pattern));
        // The same column answers alike in every row, more or less.
        let column = |x: usize| (0..48).map(|y| f64::from(pattern.pixels[y * 64 + x]) - f64::from(ramp().pixels[x])).sum::<f64>() / 48.0;
        assert!((0..64).map(|x| column(x).abs()).fold(0.0, f64::max) > 3.0);
        let dead = seen(&SensorConfig { dead: 0.05, ..zero }, 1);
        let changed: Vec<u8> = dead.pixels.iter().zip(&ramp().pixels).filter(|(a, b)| a != b).map(|(a, _)| *a).collect();
        assert!(!changed.is_empty() && changed.len() <= 154 && changed.iter().all(|&p| p == 0 || p == 255), "{changed:?}");
        let blurred = (0..8).filter(|&i| {
            let mut point = Frame::filled(1, 31, 21, 0);
            point.pixels[10 * 31 + 15] = 255;
            disturb(&mut point, &SensorConfig { blur: 3.0, ..zero }, &mut Draw::new(5, "sensor", 0, i));
            let around = [[9, 15], [11, 15], [10, 14], [10, 16]].map(|[y, x]: [usize; 2]| point.pixels[y * 31 + x]);
            assert!(around.iter().all(|&p| p == around[0]), "{around:?}");
            point.pixels[10 * 31 + 15] < 200 && around[0] > 0
        });
        assert!(blurred.count() > 3);
        assert!((mean(&seen(&SensorConfig { blur: 2.0, ..zero }, 2)) - mean(&ramp())).abs() < 1.0);
    }

    #[test]
    fn a_stack_has_one_sensor() {
        let one = ramp();
        let mut stack = Frame { pixels: [&one.pixels[..]; 3].concat(), channels: 3, ..one };
        let all = SensorConfig { gain: 0.3, offset: 0.1, gamma: 0.3, invert: 0.5, drift: 0.1, pattern: 0.05, blur: 1.0, dead: 0.01 };
        disturb(&mut stack, &all, &mut Draw::new(5, "sensor", 0, 9));
        assert!(stack.plane(0) == stack.plane(1) && stack.plane(1) == stack.plane(2) && stack.plane(0) != ramp().plane(0));
    }

    #[test]
    fn what_every_frame_has_is_no_difference_between_them() {
        let one = ramp();
        let mut difference = vec![128; one.pixels.len()];
        difference[20 * 64 + 30] = 168;
        let seen = |config: SensorConfig, index| {
            let mut stack = Frame { pixels: [&difference[..], &one.pixels].concat(), channels: 2, difference: true, ..one.clone() };
            disturb(&mut stack, &config, &mut Draw::new(5, "sensor", 0, index));
            stack
        };
        let zero = SensorConfig::default();
        let steady = SensorConfig { offset: 0.3, drift: 0.2, pattern: 0.1, dead: 0.05, gamma: 0.5, ..zero };
        for index in 0..8 {
            let stack = seen(steady, index);
            assert!(stack.plane(0) == difference && stack.plane(1) != one.pixels);
            let stack = seen(SensorConfig { gain: 0.5, ..steady }, index);
            let [at, still] = [20 * 64 + 30, 0].map(|i: usize| stack.plane(0)[i]);
            assert!(still == 128 && (148..=188).contains(&at), "{at}");
        }
        assert_eq!(seen(SensorConfig { invert: 1.0, ..zero }, 0).plane(0)[20 * 64 + 30], 88);
    }
}
