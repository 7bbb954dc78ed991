//! Parts of a batch that the device has no memory for as a whole.

/// The samples of a batch in `parts` parts of nearly equal size, in order, or as many as it has samples.
pub(crate) fn cut(indices: &[usize], parts: usize) -> impl Iterator<Item = &[usize]> {
    let (n, parts) = (indices.len(), parts.clamp(1, indices.len().max(1)));
    (0..parts).map(move |part| &indices[n * part / parts..n * (part + 1) / parts])
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn parts_are_all_of_a_batch_and_nearly_equal() {
        let batch: Vec<usize> = (10..23).collect();
        for parts in [1, 2, 3, 4, 8, 13, 16, usize::MAX] {
            let cut: Vec<&[usize]> = cut(&batch, parts).collect();
            assert_eq!((cut.concat(), cut.len()), (batch.clone(), parts.min(13)));
            let sizes = cut.iter().map(|part| part.len());
            assert!(sizes.clone().min() >= Some(1) && sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1, "{parts} parts");
        }
        assert_eq!(cut(&[], 2).count(), 1);
    }
}
