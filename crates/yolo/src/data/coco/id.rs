//! Ids as files have them: whole numbers of 64 bits (never through a float, which would merge those beyond 2^53), or texts.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde_json::Value;

/// Longest text that is an id, bytes.
const LONGEST: usize = 1024;

/// The id of an image, a category or an annotation. A text that is a whole number is that number: tools write both for one thing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Id {
    Number(i64),
    Text(Box<str>),
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => n.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl Id {
    /// Whether it is a text without a letter, which names nothing.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Text(text) if text.is_empty())
    }
}

impl From<&Id> for Value {
    /// As a file has it.
    fn from(id: &Id) -> Self {
        match id {
            Id::Number(n) => (*n).into(),
            Id::Text(text) => text.as_ref().into(),
        }
    }
}

impl From<&str> for Id {
    fn from(text: &str) -> Self {
        let number = text.parse::<i64>().ok().filter(|n| n.to_string() == text);
        number.map_or_else(|| Self::Text(text.into()), Self::Number)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Id;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number or a text")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Id, E> {
                Ok(Id::Number(value))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Id, E> {
                Ok(i64::try_from(value).map_or_else(|_| Id::Text(value.to_string().into()), Id::Number))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Id, E> {
                // Tables with gaps come out of pandas with 7.0 for 7.
                if value.fract() == 0.0 && value.abs() < (1u64 << 53) as f64 {
                    Ok(Id::Number(value as i64))
                } else if value.fract() != 0.0 {
                    Err(E::custom("an id that is a fraction"))
                } else if value > i64::MIN as f64 && value < u64::MAX as f64 {
                    // What is written without a point and an exponent does not come as a float.
                    Err(E::custom(format!("an id written as a decimal number above 2^53: its last digits are lost ({value:e})")))
                } else {
                    Err(E::custom(format!("an id of more than 64 bits ({value:e})")))
                }
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Id, E> {
                if value.len() > LONGEST { Err(E::custom(format!("an id of {} bytes", value.len()))) } else { Ok(value.into()) }
            }
        }
        deserializer.deserialize_any(Any)
    }
}
