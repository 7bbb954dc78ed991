//! Int8 by row: `v = s q` with whole numbers from -127 to 127 and one scale a row, its largest magnitude over 127. 8 bits a value.

/// The largest code.
const TOP: f32 = 127.0;

/// Numbers divided by x: times 1 / x, unless that is too large for an f32. By 0 all are 0: a block of zeros stays one.
pub(super) fn by(x: f32) -> impl Fn(f32) -> f32 {
    let inverse = if x == 0.0 { 0.0 } else { 1.0 / x };
    move |v| if inverse.is_finite() { v * inverse } else { v / x }
}

/// Finite values in rows of `columns` as codes, filled up to whole words, and the rows' scales.
pub(super) fn encode(values: &[f32], columns: usize) -> (Vec<u8>, Vec<f32>) {
    let mut codes = vec![0; values.len().next_multiple_of(4)];
    let rows = values.chunks(columns.max(1)).zip(codes.chunks_mut(columns.max(1)));
    let scale = |(row, codes): (&[f32], &mut [u8])| {
        let scale = row.iter().fold(0f32, |max, v| max.max(v.abs())) / TOP;
        let quotient = by(scale);
        row.iter().zip(codes).for_each(|(&v, code)| *code = quotient(v).round().clamp(-TOP, TOP) as i8 as u8);
        scale
    };
    let scales = rows.map(scale).collect();
    (codes, scales)
}

/// The values from `at` on.
#[inline(always)]
pub(super) fn decode(codes: &[u8], scales: &[f32], columns: usize, at: usize, out: &mut [f32]) {
    let mut done = 0;
    while done < out.len() {
        let first = at + done;
        let count = (columns - first % columns).min(out.len() - done);
        let scale = scales[first / columns];
        out[done..done + count].iter_mut().zip(&codes[first..]).for_each(|(v, &code)| *v = scale * f32::from(code as i8));
        done += count;
    }
}
