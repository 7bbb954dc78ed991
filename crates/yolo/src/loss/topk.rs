//! The k largest of a list, with ties broken as PyTorch's CPU `topk` breaks them.
//!
//! The assigner picks ten anchors per object by a metric that is exactly zero for most anchors, so which of the
//! equal ones are picked is visible in the result. `topk` runs `std::partial_sort` when k is small beside n and
//! `std::nth_element` otherwise, as the GNU library implements them: a binary heap of the first k whose root is
//! replaced by strictly larger values, and a quickselect with the median of three as pivot. Both are done here
//! step for step in the same order. NaN counts as larger than every number.

use std::cmp::Ordering;

/// A value and its place in the list.
type Entry = (f32, u32);

fn before(a: Entry, b: Entry) -> bool {
    (a.0.is_nan() && !b.0.is_nan()) || a.0 > b.0
}

/// Places of the `k` largest of `values`, in no particular order; all places if there are fewer.
pub fn top_k(values: &[f32], k: usize, scratch: &mut Vec<(f32, u32)>) -> Vec<u32> {
    let n = values.len();
    let k = k.min(n);
    if k == 0 {
        return vec![];
    }
    scratch.clear();
    scratch.extend(values.iter().copied().zip(0..));
    if k * 64 <= n {
        heap_select(scratch, k);
    } else {
        nth_element(scratch, k - 1);
    }
    scratch[..k].iter().map(|e| e.1).collect()
}

/// Moves the first `k` in order to the front, by a heap whose root comes last in order.
fn heap_select(v: &mut [Entry], k: usize) {
    for parent in (0..k / 2).rev() {
        let value = v[parent];
        sift(&mut v[..k], parent, value);
    }
    for i in k..v.len() {
        if before(v[i], v[0]) {
            let value = v[i];
            v[i] = v[0];
            sift(&mut v[..k], 0, value);
        }
    }
}

/// Fills the hole at `top` with `value`: the hole sinks to a leaf along the later children, then `value` rises.
fn sift(heap: &mut [Entry], top: usize, value: Entry) {
    let n = heap.len();
    let mut hole = top;
    while 2 * hole + 2 < n {
        let right = 2 * hole + 2;
        let child = if before(heap[right], heap[right - 1]) { right - 1 } else { right };
        heap[hole] = heap[child];
        hole = child;
    }
    if 2 * hole + 2 == n {
        heap[hole] = heap[n - 1];
        hole = n - 1;
    }
    while hole > top && before(heap[(hole - 1) / 2], value) {
        heap[hole] = heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap[hole] = value;
}

/// Puts the entry that belongs at `nth` there, with those before it in order in front of it.
fn nth_element(v: &mut [Entry], nth: usize) {
    let (mut first, mut last) = (0, v.len());
    let mut depth = 2 * v.len().ilog2();
    while last - first > 3 {
        if depth == 0 {
            heap_select(&mut v[first..last], nth + 1 - first);
            v.swap(first, nth);
            return;
        }
        depth -= 1;
        let cut = partition(v, first, last);
        if cut <= nth { first = cut } else { last = cut }
    }
    insertion_sort(&mut v[first..last]);
}

/// Splits `first..last` by the median of its second, middle and last entry.
fn partition(v: &mut [Entry], first: usize, last: usize) -> usize {
    let (a, b, c) = (first + 1, first + (last - first) / 2, last - 1);
    let median = match (before(v[a], v[b]), before(v[b], v[c]), before(v[a], v[c])) {
        (true, true, _) => b,
        (true, false, true) => c,
        (true, false, false) => a,
        (false, _, true) => a,
        (false, true, false) => c,
        (false, false, false) => b,
    };
    v.swap(first, median);
    let pivot = v[first];
    let (mut low, mut high) = (first + 1, last);
    loop {
        while before(v[low], pivot) {
            low += 1;
        }
        high -= 1;
        while before(pivot, v[high]) {
            high -= 1;
        }
        if low >= high {
            return low;
        }
        v.swap(low, high);
        low += 1;
    }
}

fn insertion_sort(v: &mut [Entry]) {
    // Stable, as a plain insertion sort is.
    v.sort_by(|&a, &b| match (before(a, b), before(b, a)) {
        (true, _) => Ordering::Less,
        (_, true) => Ordering::Greater,
        _ => Ordering::Equal,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mostly zeros and a few positive values that repeat: less than one in `256 / positive`, and with fewer than
    /// seven kinds only among the first 600.
    fn list(positive: u32, n: u32) -> Vec<f32> {
        let value = |i: u32| match i.wrapping_mul(2_654_435_761) >> 24 {
            h if h < positive && (positive == 7 || i < 600) => (h + 1) as f32 / 8.0,
            _ => 0.0,
        };
        (0..n).map(value).collect()
    }

    fn top(values: &[f32]) -> Vec<u32> {
        let mut places = top_k(values, 10, &mut vec![]);
        places.sort_unstable();
        places
    }

    #[test]
    fn picks_the_largest() {
        let values: Vec<f32> = (0..1000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32).collect();
        for n in [5, 12, 300, 1000] {
            let mut sorted: Vec<u32> = (0..n as u32).collect();
            sorted.sort_by(|&a, &b| values[b as usize].total_cmp(&values[a as usize]));
            let mut expected: Vec<u32> = sorted.into_iter().take(10).collect();
            expected.sort_unstable();
            assert_eq!(top(&values[..n]), expected, "{n}");
        }
    }

    // Golden: torch.topk(list, 10) of PyTorch 2.15 on the CPU, sorted places (tests/golden/make.py prints them).
    #[test]
    fn breaks_ties_as_torch_does() {
        for (positive, n, expected) in TORCH {
            assert_eq!(top(&list(positive, n)), expected, "{positive} kinds in {n} values");
        }
    }

    const TORCH: [(u32, u32, [u32; 10]); 18] = [
        (7, 100, [0, 34, 64, 65, 66, 68, 72, 73, 75, 89]),
        (7, 189, [0, 34, 68, 89, 123, 124, 126, 127, 128, 178]),
        (7, 639, [34, 68, 123, 212, 267, 356, 411, 445, 500, 589]),
        (7, 640, [34, 68, 123, 212, 267, 356, 411, 445, 500, 589]),
        (7, 2100, [68, 445, 678, 822, 966, 1055, 1432, 1665, 1809, 2042]),
        (7, 8400, [68, 445, 678, 822, 1055, 1432, 1665, 1809, 2042, 2275]),
        (2, 100, [0, 63, 64, 65, 66, 67, 71, 73, 75, 89]),
        (2, 189, [0, 89, 119, 121, 125, 126, 127, 128, 129, 131]),
        (2, 639, [0, 89, 233, 322, 421, 425, 427, 428, 438, 466]),
        (2, 640, [0, 1, 3, 4, 7, 8, 89, 233, 322, 466]),
        (2, 2100, [0, 1, 3, 4, 7, 8, 89, 233, 322, 466]),
        (2, 8400, [0, 1, 3, 4, 7, 8, 89, 233, 322, 466]),
        (1, 100, [0, 63, 64, 65, 66, 67, 68, 72, 74, 75]),
        (1, 189, [0, 119, 120, 121, 125, 126, 127, 128, 129, 141]),
        (1, 639, [0, 233, 420, 421, 422, 424, 426, 427, 428, 466]),
        (1, 640, [0, 1, 3, 4, 5, 7, 8, 9, 233, 466]),
        (1, 2100, [0, 1, 3, 4, 5, 7, 8, 9, 233, 466]),
        (1, 8400, [0, 1, 3, 4, 5, 7, 8, 9, 233, 466]),
    ];
}
