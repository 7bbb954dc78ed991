//! A small antialiased painter for float images: ellipses, thick lines and rotated boxes, each by its signed distance.

/// A one-channel float picture and, for every pixel, the number of the object that was painted there last.
pub(crate) struct Canvas {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) value: Vec<f32>,
    pub(crate) owner: Vec<u16>,
}

/// A shape in pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// Centre and radii.
    Ellipse { at: [f32; 2], radii: [f32; 2] },
    /// A line with round ends.
    Capsule { from: [f32; 2], to: [f32; 2], radius: f32 },
    /// Centre, half sizes, corner radius.
    Block { at: [f32; 2], half: [f32; 2], round: f32 },
    /// A circle's outline.
    Ring { at: [f32; 2], radius: f32, width: f32 },
}

impl Shape {
    /// Signed distance of a point to the edge, negative inside (for ellipses to first order).
    fn distance(&self, x: f32, y: f32) -> f32 {
        match *self {
            Self::Ellipse { at, radii } => {
                let (u, v) = ((x - at[0]) / radii[0], (y - at[1]) / radii[1]);
                let k = u.hypot(v);
                let slope = (u / radii[0]).hypot(v / radii[1]);
                if slope > 0.0 { k * (k - 1.0) / slope } else { -radii[0].min(radii[1]) }
            }
            Self::Capsule { from, to, radius } => {
                let (dx, dy) = (to[0] - from[0], to[1] - from[1]);
                let t = (((x - from[0]) * dx + (y - from[1]) * dy) / (dx * dx + dy * dy).max(1e-6)).clamp(0.0, 1.0);
                (x - from[0] - t * dx).hypot(y - from[1] - t * dy) - radius
            }
            Self::Block { at, half, round } => {
                let (qx, qy) = ((x - at[0]).abs() - half[0] + round, (y - at[1]).abs() - half[1] + round);
                qx.max(0.0).hypot(qy.max(0.0)) + qx.max(qy).min(0.0) - round
            }
            Self::Ring { at, radius, width } => ((x - at[0]).hypot(y - at[1]) - radius).abs() - width / 2.0,
        }
    }

    /// A box that surely holds the shape, `xyxy`.
    pub(crate) fn bounds(&self) -> [f32; 4] {
        match *self {
            Self::Ellipse { at, radii } => [at[0] - radii[0], at[1] - radii[1], at[0] + radii[0], at[1] + radii[1]],
            Self::Capsule { from: a, to: b, radius: r } => [a[0].min(b[0]) - r, a[1].min(b[1]) - r, a[0].max(b[0]) + r, a[1].max(b[1]) + r],
            Self::Block { at, half, .. } => [at[0] - half[0], at[1] - half[1], at[0] + half[0], at[1] + half[1]],
            Self::Ring { at, radius, width } => {
                let r = radius + width / 2.0;
                [at[0] - r, at[1] - r, at[0] + r, at[1] + r]
            }
        }
    }
}

impl Canvas {
    pub(crate) fn new(width: usize, height: usize) -> Self {
        Self { width, height, value: vec![0.0; width * height], owner: vec![0; width * height] }
    }

    /// Moves the pixels under `shape` towards `value`, by their coverage times `alpha`. Pixels at least half covered become `owner`'s.
    pub(crate) fn paint(&mut self, shape: &Shape, value: f32, alpha: f32, owner: u16) {
        let [x1, y1, x2, y2] = shape.bounds();
        let clip = |v: f32, n: usize| (v.max(0.0) as usize).min(n);
        for y in clip(y1 - 1.0, self.height)..clip(y2 + 2.0, self.height) {
            for x in clip(x1 - 1.0, self.width)..clip(x2 + 2.0, self.width) {
                let coverage = (0.5 - shape.distance(x as f32 + 0.5, y as f32 + 0.5)).clamp(0.0, 1.0);
                if coverage > 0.0 {
                    let at = y * self.width + x;
                    self.value[at] += (value - self.value[at]) * coverage * alpha;
                    if coverage >= 0.5 {
                        self.owner[at] = owner;
                    }
                }
            }
        }
    }

    /// Gaussian blur with a standard deviation of `sigma` pixels, edges repeated.
    pub(crate) fn blur(&mut self, sigma: f32) {
        let radius = (3.0 * sigma).ceil() as isize;
        let weights: Vec<f32> = (-radius..=radius).map(|i| (-0.5 * (i as f32 / sigma).powi(2)).exp()).collect();
        let total: f32 = weights.iter().sum();
        let (w, h) = (self.width as isize, self.height as isize);
        for (step_x, step_y) in [(1, 0), (0, 1)] {
            let source = self.value.clone();
            for y in 0..h {
                for x in 0..w {
                    let tap = |i: isize| {
                        let (sx, sy) = ((x + step_x * i).clamp(0, w - 1), (y + step_y * i).clamp(0, h - 1));
                        source[(sy * w + sx) as usize] * weights[(i + radius) as usize]
                    };
                    self.value[(y * w + x) as usize] = (-radius..=radius).map(tap).sum::<f32>() / total;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_right_and_bounds_hold() {
        for (shape, area) in [
            (Shape::Ellipse { at: [32.3, 30.0], radii: [10.0, 6.0] }, std::f32::consts::PI * 60.0),
            (Shape::Capsule { from: [20.0, 20.0], to: [40.0, 20.0], radius: 3.0 }, 120.0 + std::f32::consts::PI * 9.0),
            (Shape::Block { at: [30.0, 30.0], half: [10.0, 5.0], round: 0.5 }, 200.0),
            (Shape::Ring { at: [32.0, 32.0], radius: 9.0, width: 2.0 }, std::f32::consts::TAU * 18.0),
        ] {
            let mut canvas = Canvas::new(64, 64);
            canvas.paint(&shape, 1.0, 1.0, 7);
            let painted: f32 = canvas.value.iter().sum();
            assert!((painted / area - 1.0).abs() < 0.03, "{shape:?}: {painted} {area}");
            let [x1, y1, x2, y2] = shape.bounds();
            for (i, &owner) in canvas.owner.iter().enumerate() {
                let (x, y) = ((i % 64) as f32, (i / 64) as f32);
                assert!(owner == 0 || (x >= x1 - 1.0 && x <= x2 + 1.0 && y >= y1 - 1.0 && y <= y2 + 1.0));
            }
        }
    }
}
