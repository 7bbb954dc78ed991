//! What is odd about the boxes of a split's COCO files: how often, and where first, for nobody finds a box among millions.

use super::annotated::Marked;
use super::coco::EXAMPLES;

/// Counts over the images of a split.
#[derive(Default)]
pub(crate) struct BoxFaults {
    cut: u64,
    outside: u64,
    foreign: u64,
    resized: u64,
    /// The first that were cut, and the first that lay outside.
    examples: [Vec<String>; 2],
}

impl BoxFaults {
    /// Adds the boxes of the image that its file calls `name`.
    pub(crate) fn add(&mut self, marked: &Marked, name: &str) {
        self.cut += marked.cut.len() as u64;
        self.outside += marked.outside.len() as u64;
        self.foreign += u64::from(marked.foreign);
        self.resized += u64::from(marked.resized);
        for (told, boxes) in self.examples.iter_mut().zip([&marked.cut, &marked.outside]) {
            let room = EXAMPLES - told.len();
            told.extend(boxes.iter().take(room).map(|xywh| format!("{name}: bbox [{}]", xywh.map(|v| v.to_string()).join(", "))));
        }
    }

    /// In words, each kind that there is.
    pub(crate) fn notes(self) -> Vec<String> {
        let [cut, outside] = self.examples;
        let kinds = [
            (self.cut, "boxes reached out of their image by more than 1 % and were clipped", cut),
            (self.outside, "boxes lay outside their image and were left out", outside),
            (self.foreign, "boxes of categories that are no class were left out", Vec::new()),
            (self.resized, "images have another size than their COCO file says; boxes are taken in pixels of the image", Vec::new()),
        ];
        let told = kinds.into_iter().filter(|(n, ..)| *n > 0).map(|(n, what, first)| match first.len() {
            0 => format!("{n} {what}"),
            _ => format!("{n} {what}: {}", first.join("; ")),
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_each_kind_are_named() {
        let mut faults = BoxFaults::default();
        let outside = |n: usize| Marked { outside: (0..n).map(|i| [900.0 + i as f32, 2.5, 5.0, 5.0]).collect(), ..Marked::default() };
        faults.add(&Marked { cut: vec![[-9.0, 1.0, 20.0, 8.0]], foreign: 2, ..outside(3) }, "a/1.jpg");
        faults.add(&outside(90), "a/2.jpg");
        faults.add(&outside(1), "a/3.jpg");
        let notes = faults.notes();
        assert_eq!(notes[0], "1 boxes reached out of their image by more than 1 % and were clipped: a/1.jpg: bbox [-9, 1, 20, 8]");
        assert!(notes[1].starts_with("94 boxes lay outside their image and were left out: a/1.jpg: bbox [900, 2.5, 5, 5]; "), "{notes:?}");
        assert_eq!((notes.len(), notes[1].matches("bbox").count()), (3, EXAMPLES));
        assert!(notes[1].ends_with("a/2.jpg: bbox [906, 2.5, 5, 5]"), "{notes:?}");
    }
}
