//! The types of values that settings have, as a command line sees them.
//!
//! A file has types of its own, a flag has text. What a text that is no such value becomes is text, which merging refuses with the setting's
//! name: nothing is guessed here, and nothing refused.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value};

/// A type of value.
pub trait Kind {
    /// What stands for a value in `--help`: `N`.
    fn value_name() -> String;

    /// What stands there for a list of them.
    fn list_name() -> String {
        format!("{0},{0},..", Self::value_name())
    }

    /// Whether the flag alone says yes, and its only values are true and false.
    const SWITCH: bool = false;

    /// The value that is written so on the command line.
    fn read(text: &str) -> Value;
}

/// A number if it is a finite one, else text: JSON has no other numbers, and would take them for "not given".
pub fn number(text: &str) -> Value {
    let trimmed = text.trim();
    let whole = trimmed.parse::<i64>().map(Value::from).or_else(|_| trimmed.parse::<u64>().map(Value::from)).ok();
    let real = || trimmed.parse::<f64>().ok().filter(|x| x.is_finite()).map(Value::from);
    whole.or_else(real).unwrap_or_else(|| Value::from(text))
}

macro_rules! numbers {
    ($($name:literal: $($kind:ty),+;)+) => {
        $($(impl Kind for $kind {
            fn value_name() -> String {
                $name.into()
            }

            fn read(text: &str) -> Value {
                number(text)
            }
        })+)+
    };
}

numbers! {
    "N": usize, u64, u32, i64;
    "X": f64;
}

impl Kind for bool {
    fn value_name() -> String {
        "true|false".into()
    }

    const SWITCH: bool = true;

    fn read(text: &str) -> Value {
        match text.to_ascii_lowercase().as_str() {
            "true" => true.into(),
            "false" => false.into(),
            _ => text.into(),
        }
    }
}

impl Kind for String {
    fn value_name() -> String {
        "VALUE".into()
    }

    fn list_name() -> String {
        "NAME,NAME,..".into()
    }

    fn read(text: &str) -> Value {
        text.into()
    }
}

impl Kind for PathBuf {
    fn value_name() -> String {
        "PATH".into()
    }

    fn read(text: &str) -> Value {
        text.into()
    }
}

impl<T: Kind> Kind for Option<T> {
    fn value_name() -> String {
        T::value_name()
    }

    const SWITCH: bool = T::SWITCH;

    fn read(text: &str) -> Value {
        T::read(text)
    }
}

impl<T: Kind> Kind for Vec<T> {
    fn value_name() -> String {
        T::list_name()
    }

    fn read(text: &str) -> Value {
        text.split(',').map(T::read).collect()
    }
}

impl<T: Kind> Kind for BTreeMap<String, T> {
    fn value_name() -> String {
        format!("NAME={0},NAME={0},..", T::value_name())
    }

    /// A name may hold an equals sign, a value not.
    fn read(text: &str) -> Value {
        let pairs = text.split(',').map(|pair| pair.rsplit_once('=').map(|(name, value)| (name.to_string(), T::read(value))));
        pairs.collect::<Option<Map<_, _>>>().map_or_else(|| text.into(), Value::Object)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_becomes_its_kind_or_stays_text() {
        assert_eq!([usize::read("7"), u64::read(" 7"), u32::read("x"), i64::read("-1")], [json!(7), json!(7), json!("x"), json!(-1)]);
        assert_eq!(u64::read("18446744073709551615"), json!(u64::MAX), "no whole number becomes a real one");
        assert_eq!([f64::read("1e-3"), f64::read("nan"), f64::read("inf")], [json!(0.001), json!("nan"), json!("inf")]);
        assert_eq!([bool::read("True"), bool::read("false"), bool::read("yes")], [json!(true), json!(false), json!("yes")]);
        assert_eq!([String::read("7"), PathBuf::read("a,b")], [json!("7"), json!("a,b")]);
        assert_eq!([Option::<f64>::read("2"), Option::<String>::read("2")], [json!(2), json!("2")]);
        assert_eq!([Vec::<f64>::read("1,.5,x"), Vec::<String>::read("1,b")], [json!([1, 0.5, "x"]), json!(["1", "b"])]);
        assert_eq!([Vec::<usize>::read("3"), Option::<Vec<u32>>::read("0,3")], [json!([3]), json!([0, 3])]);
        let maps = [BTreeMap::<String, usize>::read("a=1,b=c=2"), BTreeMap::<String, f64>::read("a")];
        assert_eq!(maps, [json!({ "a": 1, "b=c": 2 }), json!("a")]);
    }

    #[test]
    fn help_says_what_is_expected() {
        let names = [usize::value_name(), Option::<f64>::value_name(), bool::value_name(), Option::<String>::value_name()];
        assert_eq!(names, ["N", "X", "true|false", "VALUE"]);
        let names = [Vec::<usize>::value_name(), Vec::<String>::value_name(), Option::<Vec<PathBuf>>::value_name()];
        assert_eq!(names, ["N,N,..", "NAME,NAME,..", "PATH,PATH,.."]);
        assert_eq!(BTreeMap::<String, f64>::value_name(), "NAME=X,NAME=X,..");
        assert_eq!([bool::SWITCH, Option::<bool>::SWITCH, usize::SWITCH, Vec::<bool>::SWITCH], [true, true, false, false]);
    }
}
