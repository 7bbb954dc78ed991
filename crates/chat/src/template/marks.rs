//! Noncharacters of Unicode, which no text may hold, as marks in what a template renders.

/// Before what the assistant says.
pub(super) const BEGIN: char = '\u{fdd0}';
/// After it.
pub(super) const END: char = '\u{fdd1}';
/// In a special token that a message spells out.
pub(super) const BROKEN: char = '\u{fdd2}';
/// In place of what a message says.
pub(super) const SAID: char = '\u{fdd3}';

pub(super) fn is_mark(c: char) -> bool {
    [BEGIN, END, BROKEN, SAID].contains(&c)
}

pub(super) fn without_marks(text: &str) -> String {
    text.chars().filter(|&c| !is_mark(c)).collect()
}
