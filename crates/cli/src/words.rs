//! The words of the command line, and those that one process of a program adds to it for another.

use std::ffi::OsString;

/// The word before the folder, last but one on the command line.
pub(crate) const SUPERVISED: &str = "__supervised";
/// The word before the file that a process in the background writes to.
pub(crate) const BACKGROUND: &str = "__background";
/// The word before which rank of a run a process is.
pub(crate) const RANK: &str = "__rank";

/// Words that stand before another one at a command line's end, and are ours.
const OURS: [&str; 3] = [SUPERVISED, BACKGROUND, RANK];

/// The command line as a user typed it, the program's name left out.
pub fn words() -> Vec<String> {
    let mut words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    while let [.., mark, _] = &words[..]
        && OURS.contains(&mark.as_str())
    {
        words.truncate(words.len() - 2);
    }
    words
}

/// What stands behind `mark` among the last words, which are ours.
pub(crate) fn last_words(mark: &str) -> Option<OsString> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut pairs = words.rchunks_exact(2).take_while(|pair| OURS.iter().any(|ours| pair[0] == *ours));
    pairs.find(|pair| pair[0] == mark).map(|pair| pair[1].clone())
}
