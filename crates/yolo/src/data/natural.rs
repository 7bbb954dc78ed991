//! Names in the order in which people count: `frame2` before `frame10`.

use std::cmp::Ordering;

/// Compares digits by their number, however many they are, and the rest byte by byte; names that differ in leading zeros alone by their bytes.
pub(crate) fn natural(a: &str, b: &str) -> Ordering {
    let (mut x, mut y) = (a.as_bytes(), b.as_bytes());
    while let (Some(p), Some(q)) = (x.first(), y.first()) {
        let order = if p.is_ascii_digit() && q.is_ascii_digit() {
            let (m, n) = (number(&mut x), number(&mut y));
            m.len().cmp(&n.len()).then_with(|| m.cmp(n))
        } else {
            (x, y) = (&x[1..], &y[1..]);
            p.cmp(q)
        };
        if order.is_ne() {
            return order;
        }
    }
    x.len().cmp(&y.len()).then_with(|| a.cmp(b))
}

/// Takes the digits at the beginning of `text`, without leading zeros.
fn number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let end = text.iter().position(|c| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    &digits[digits.iter().take_while(|&&c| c == b'0').count()..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_and_the_order_is_total() {
        let long = format!("a/frame{}", "7".repeat(40));
        // Of two with the same number the one with more zeros stands first, as by its bytes.
        let sorted = ["", "a", "a/9", "a/frame", "a/frame1", "a/frame02", "a/frame2", "a/frame2b", "a/frame10", &long, "a/x", "b01", "b1a"];
        for (i, a) in sorted.iter().enumerate() {
            for (k, b) in sorted.iter().enumerate() {
                assert_eq!(natural(a, b), i.cmp(&k), "{a} {b}");
            }
        }
    }
}
