//! Values that tools write in more than one way. Those of `meta` may be anything: numbers, texts and truth values become texts, the rest is passed over.
//! Numbers may stand in texts, for tables are read as texts.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, Expected, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};

/// A text where none may stand. An empty one is told as what it was in the file, before `tolerant` had it, or may have been.
pub(super) fn misplaced<E: Error>(text: &str, expected: &dyn Expected) -> E {
    let found = if text.is_empty() { Unexpected::Other("NaN, Infinity or an empty text") } else { Unexpected::Str(text) };
    E::invalid_type(found, expected)
}

/// A number, a text or a truth value as a text; none of anything else.
#[derive(Default)]
pub(super) struct Scalar(pub(super) Option<String>);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.trim().to_string()).filter(|text| !text.is_empty())))
            }

            fn visit_unit<E: Error>(self) -> Result<Scalar, E> {
                Ok(Scalar(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Scalar, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar(None))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// The values of a map by key; none of anything else.
#[derive(Default)]
pub(super) struct Pairs(pub(super) Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some((key, Scalar(value))) = map.next_entry::<String, Scalar>()? {
                    pairs.extend(value.map(|value| (key, value)));
                }
                Ok(Pairs(pairs))
            }

            fn visit_unit<E: Error>(self) -> Result<Pairs, E> {
                Ok(Pairs::default())
            }

            fn visit_bool<E: Error>(self, _: bool) -> Result<Pairs, E> {
                Ok(Pairs::default())
            }

            fn visit_i64<E: Error>(self, _: i64) -> Result<Pairs, E> {
                Ok(Pairs::default())
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<Pairs, E> {
                Ok(Pairs::default())
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<Pairs, E> {
                Ok(Pairs::default())
            }

            fn visit_str<E: Error>(self, _: &str) -> Result<Pairs, E> {
                Ok(Pairs::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Pairs, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Pairs::default())
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// A number; none of null, of an empty text, and of what is not finite.
#[derive(Clone, Copy, Default)]
pub(super) struct Number(pub(super) Option<f64>);

/// A number of a box, which has to be known.
pub(super) struct Side(pub(super) f64);

/// What is made of a number, which may be unknown. It is the visitor that refuses it: of what is said later the JSON reader does not know the byte.
trait OfNumber: Sized {
    /// What has to stand there.
    const WHAT: &'static str;

    fn of<E: Error>(number: Option<f64>) -> Result<Self, E>;
}

impl OfNumber for Number {
    const WHAT: &'static str = "a number";

    fn of<E: Error>(number: Option<f64>) -> Result<Self, E> {
        Ok(Self(number))
    }
}

impl OfNumber for Side {
    const WHAT: &'static str = "a number of a box";

    fn of<E: Error>(number: Option<f64>) -> Result<Self, E> {
        number.map(Self).ok_or_else(no_box)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNumber::<Self>(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Side {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNumber::<Self>(PhantomData))
    }
}

struct AnyNumber<T>(PhantomData<T>);

impl<T: OfNumber> Visitor<'_> for AnyNumber<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        T::of(Some(value as f64))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        T::of(Some(value as f64))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        T::of(Some(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<T, E> {
        match value.trim() {
            "" => T::of(None),
            text => match text.parse::<f64>() {
                Ok(number) => T::of(Some(number).filter(|n| n.is_finite())),
                Err(_) => Err(E::invalid_value(Unexpected::Str(value), &Number::WHAT)),
            },
        }
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        T::of(None)
    }
}

pub(super) fn no_box<E: Error>() -> E {
    E::custom("a box needs four numbers")
}

/// 0, 1, true or false, also as texts; false where there is nothing.
#[derive(Default)]
pub(super) struct Flag(pub(super) bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Flag;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("0 or 1")
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Flag, E> {
                Ok(Flag(value))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Flag, E> {
                Ok(Flag(value != 0))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Flag, E> {
                Ok(Flag(value != 0))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Flag, E> {
                Ok(Flag(value != 0.0))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Flag, E> {
                match value.trim().to_ascii_lowercase().as_str() {
                    "" | "0" | "false" => Ok(Flag(false)),
                    "1" | "true" => Ok(Flag(true)),
                    _ => Err(E::invalid_value(Unexpected::Str(value), &self)),
                }
            }

            fn visit_unit<E: Error>(self) -> Result<Flag, E> {
                Ok(Flag(false))
            }
        }
        deserializer.deserialize_any(Any)
    }
}
