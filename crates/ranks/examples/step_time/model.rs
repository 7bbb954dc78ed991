//! What a sum over ranks takes, and what is left of a row of sums when the backward pass beside which they are made is over.

/// The ranks' number, what their links carry in bytes a second, and the cores of each machine that ranks share; without end where each has one of its own.
#[derive(Clone, Copy)]
pub(crate) struct Net {
    pub(crate) ranks: f64,
    pub(crate) rate: f64,
    pub(crate) cores: f64,
}

/// Gradients that travel together: their bytes, and the share of a pass that is left when the last of them is there.
#[derive(Clone, Copy)]
pub(crate) struct Bucket {
    pub(crate) bytes: f64,
    pub(crate) left: f64,
}

/// A measured sum.
pub(crate) struct Sum {
    pub(crate) net: Net,
    pub(crate) bytes: f64,
    pub(crate) seconds: f64,
}

/// a, b and c of a sum of S bytes by N ranks over links of R bytes a second, `a + b 2 (N - 1) / N S / R + c S max(1, N / cores)`.
#[derive(Clone, Copy)]
pub(crate) struct Model(pub(crate) [f64; 3]);

/// What a, b and c are multiplied by.
fn terms(net: Net, bytes: f64) -> [f64; 3] {
    [1.0, 2.0 * (net.ranks - 1.0) / net.ranks * bytes / net.rate, bytes * (net.ranks / net.cores).max(1.0)]
}

/// Least squares of relative errors: the normal equations of the unknowns from this one on, by elimination; those before it are 0.
fn solve(sums: &[&Sum], first: usize) -> [f64; 3] {
    let mut m = [[0.0; 4]; 3];
    for sum in sums {
        let t = terms(sum.net, sum.bytes).map(|term| term / sum.seconds);
        for i in first..3 {
            (first..3).for_each(|j| m[i][j] += t[i] * t[j]);
            m[i][3] += t[i];
        }
    }
    for i in first..3 {
        let pivot = m[i];
        for (_, row) in m.iter_mut().enumerate().filter(|(j, _)| *j != i) {
            let by = row[i] / pivot[i];
            (0..4).for_each(|k| row[k] -= by * pivot[k]);
        }
    }
    [0, 1, 2].map(|i| if i < first { 0.0 } else { m[i][3] / m[i][i] })
}

impl Model {
    /// What fits these best. No exchange costs less than nothing: a that comes out so is 0.
    pub(crate) fn fit(sums: &[&Sum]) -> Self {
        let model = solve(sums, 0);
        Self(if model[0] < 0.0 { solve(sums, 1) } else { model })
    }

    /// Seconds of a sum of so many bytes.
    pub(crate) fn seconds(self, net: Net, bytes: f64) -> f64 {
        terms(net, bytes).iter().zip(self.0).map(|(term, by)| term * by).sum()
    }

    /// Seconds that a rank waits when its pass of so many seconds is over: a bucket travels when it is there and the ones before it have come back.
    pub(crate) fn exposed(self, net: Net, buckets: &[Bucket], pass: f64) -> f64 {
        let back = |free: f64, bucket: &Bucket| free.max(-bucket.left * pass) + self.seconds(net, bucket.bytes);
        buckets.iter().fold(f64::NEG_INFINITY, back).max(0.0)
    }
}
