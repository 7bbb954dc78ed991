//! What is wrong with a YAML file, once: the parser's words without the place, which whoever names the file puts behind its name.

use std::borrow::Cow;

use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, Localizer, Location, UserMessageFormatter};

/// Words without their place.
struct Placeless;

impl Localizer for Placeless {
    fn attach_location<'a>(&self, base: Cow<'a, str>, _: Location) -> Cow<'a, str> {
        base
    }
}

/// The line of an error, where the parser knows it, and what it says beside that.
pub fn yaml_fault(error: &Error) -> (Option<u64>, String) {
    let line = error.location().map(|place| place.line()).filter(|&line| line > 0);
    let error = error.without_snippet();
    // The parser names the limit as its source does.
    if let Error::Budget { breach: BudgetBreach::Anchors { .. } | BudgetBreach::Aliases { .. } | BudgetBreach::MergeKeys { .. }, .. } =
        error
    {
        let why = "it has more anchors, aliases (`&name`, `*name`) and merges (`<<`) than are read here: write out what they stand for";
        return (line, why.into());
    }
    let words = error.render_with_formatter(&UserMessageFormatter.with_localizer(&Placeless));
    (line, if words == "expected mapping start" { "it must be keys with values".into() } else { words })
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;

    #[test]
    fn the_place_is_told_apart_from_the_words() {
        for (text, part) in [("a: 1\na: 2\n", "duplicate"), ("a: 1\nb: [x\n", ""), ("- a\n", "it must be keys with values")] {
            let error = serde_saphyr::from_str::<Map<String, Value>>(text).unwrap_err();
            let (line, words) = yaml_fault(&error);
            assert!(line.is_some_and(|line| line <= 3), "{text:?}: {line:?}");
            assert!(!words.is_empty() && words.contains(part) && !words.contains(" line "), "{text:?}: {words}");
            assert!(!words.contains('\n'), "no picture of the file: {words}");
        }
        assert_eq!(yaml_fault(&serde_saphyr::from_str::<Map<String, Value>>("a: 1\na: 2\n").unwrap_err()).0, Some(2));
    }
}
