//! Rows of examples to the flat arrays a model takes.

use crate::encode::Encoded;

/// The label of a place at which nothing is learnt.
pub const IGNORE: i32 = -100;

/// The document number of padding.
pub const PADDING: i32 = -1;

/// A micro-batch. Every array is `[rows, seq]`, row-major, and filled on the right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Rows.
    pub rows: usize,
    /// Places in a row.
    pub seq: usize,
    /// Token ids.
    pub ids: Vec<i32>,
    /// **Shifted**: `labels[t]` is the token that the output at `t` is to predict, which is `ids[t + 1]`, or [`IGNORE`] if that is not
    /// learnt, begins another document or is padding.
    pub labels: Vec<i32>,
    /// Position within the document, from 0; 0 in padding.
    pub positions: Vec<i32>,
    /// Number of the document within its row, from 0; [`PADDING`] in padding. A place may attend to places of the same number up to
    /// itself.
    pub documents: Vec<i32>,
}

impl Batch {
    /// The rows of `examples` (one example a row, or several that are packed), as long as the longest, rounded up to `multiple`.
    /// `pad` fills the ids; what is padding is known by its place and never by that id.
    pub fn new(examples: &[Vec<&Encoded>], pad: u32, multiple: usize) -> Self {
        let longest = examples.iter().map(|row| row.iter().map(|example| example.len()).sum::<usize>()).max().unwrap_or(0);
        let (rows, seq) = (examples.len(), longest.next_multiple_of(multiple.max(1)));
        let filled = |value: i32| vec![value; rows * seq];
        let mut batch =
            Batch { rows, seq, ids: filled(pad as i32), labels: filled(IGNORE), positions: filled(0), documents: filled(PADDING) };
        for (row, examples) in examples.iter().enumerate() {
            let mut start = row * seq;
            for (document, example) in examples.iter().enumerate() {
                for (place, (&id, &trained)) in example.ids.iter().zip(&example.trained).enumerate() {
                    batch.ids[start + place] = id as i32;
                    batch.positions[start + place] = place as i32;
                    batch.documents[start + place] = document as i32;
                    // The first token of a document is predicted by nothing.
                    if trained && place > 0 {
                        batch.labels[start + place - 1] = id as i32;
                    }
                }
                start += example.len();
            }
        }
        batch
    }

    /// Places at which something is learnt: the number to divide the summed loss by, over all micro-batches of an update.
    pub fn targets(&self) -> usize {
        self.labels.iter().filter(|&&label| label != IGNORE).count()
    }

    /// Places that are padding.
    pub fn padding(&self) -> usize {
        self.documents.iter().filter(|&&document| document == PADDING).count()
    }
}
