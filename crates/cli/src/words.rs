//! The words of the command line, and those that one process of a program adds to it for another.

use std::ffi::OsString;
use std::path::Path;

/// The word before the folder, last but one on the command line.
pub(crate) const SUPERVISED: &str = "__supervised";
/// The word before the file that a process in the background writes to.
pub(crate) const BACKGROUND: &str = "__background";
/// The word before which rank of a run a process is.
pub(crate) const RANK: &str = "__rank";

/// Words that stand before another one at a command line's end, and are ours.
const OURS: [&str; 3] = [SUPERVISED, BACKGROUND, RANK];

/// The command line as a user typed it, the program's name left out.
///
/// # Errors
/// A word that is not UTF-8: read otherwise it would name another file than the one that was meant.
pub fn words() -> Result<Vec<String>, String> {
    typed(std::env::args_os().skip(1).collect())
}

fn typed(mut words: Vec<OsString>) -> Result<Vec<String>, String> {
    while let [.., mark, _] = &words[..]
        && OURS.iter().any(|ours| *mark == *ours)
    {
        words.truncate(words.len() - 2);
    }
    let text = |word: OsString| word.into_string().map_err(|word| format!("{word:?} is not UTF-8, which every argument must be"));
    words.into_iter().map(text).collect()
}

/// What stands behind `mark` among the last words, which are ours.
pub(crate) fn last_words(mark: &str) -> Option<OsString> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut pairs = words.rchunks_exact(2).take_while(|pair| OURS.iter().any(|ours| pair[0] == *ours));
    pairs.find(|pair| pair[0] == mark).map(|pair| pair[1].clone())
}

/// A path as it is typed in a command that is to be copied: in quotes if a shell would read anything else.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:,@".contains(c) || (cfg!(windows) && c == '\\');
    if text.chars().all(is_plain) {
        return text;
    }
    // A path of Windows has no quotation marks.
    if cfg!(windows) { format!("\"{text}\"") } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_shell_reads_a_path_that_it_is_told() {
        let paths = ["runs/detect/d2", "/tmp/ü-1.5", "runs/detect/d ü", "it's", "$HOME", "~/runs", "a&b", "a\\b", "*", "=ls"];
        let words = paths.map(|path| quoted(Path::new(path)));
        assert_eq!((words[0].as_str(), words[2].as_str()), ("runs/detect/d2", "'runs/detect/d ü'"), "quotes where they are needed");
        let script = format!("printf '%s\\n' {}", words.join(" "));
        let told = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(String::from_utf8(told.stdout).unwrap().lines().eq(paths));
    }

    #[cfg(unix)]
    #[test]
    fn a_word_that_is_no_text_is_refused_and_ours_need_not_be_any() {
        use std::os::unix::ffi::OsStringExt;
        let odd = || OsString::from_vec(b"caf\xe9".to_vec());
        let ours = [SUPERVISED.into(), odd(), BACKGROUND.into(), odd()];
        let words = typed([OsString::from("--name"), "x".into()].into_iter().chain(ours).collect());
        assert!(words.is_ok_and(|words| words == ["--name", "x"]));
        let why = typed(vec!["--project".into(), odd()]).unwrap_err();
        assert_eq!(why, "\"caf\\xE9\" is not UTF-8, which every argument must be");
    }
}
