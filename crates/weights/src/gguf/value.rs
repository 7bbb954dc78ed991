//! The typed values of a GGUF file's metadata.

use indexmap::IndexMap;

use super::cursor::Cursor;
use crate::error::Fault;

/// Metadata in the file's order: `general.architecture`, `qwen2.block_count`, `tokenizer.ggml.tokens` ...
pub type Metadata = IndexMap<String, Value>;

macro_rules! values {
    ($($id:literal $kind:ident($rust:ty)),+ $(,)?) => {
        /// A value.
        #[derive(Debug, Clone, PartialEq)]
        #[expect(missing_docs, reason = "the names say it all")]
        pub enum Value {
            $($kind($rust),)+
            Array(Array),
        }

        /// Values of one kind. Arrays of arrays, which no model has, are not read.
        #[derive(Debug, Clone, PartialEq)]
        #[expect(missing_docs, reason = "the names say it all")]
        pub enum Array {
            $($kind(Vec<$rust>),)+
        }

        impl Value {
            /// The format's number of the value's kind.
            pub(super) fn id(&self) -> u32 {
                match self {
                    $(Value::$kind(_) => $id,)+
                    Value::Array(_) => ARRAY,
                }
            }

            /// A value of kind `id`.
            pub(super) fn read(id: u32, cursor: &mut Cursor) -> Result<Value, Fault> {
                Ok(match id {
                    $($id => Value::$kind(<$rust>::read(cursor)?),)+
                    ARRAY => Value::Array(Array::read(cursor)?),
                    _ => return Err(cursor.fault(format!("values of kind {id} are unknown"))),
                })
            }

            /// The value's bytes in a file, little endian.
            pub(super) fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Value::$kind(value) => value.write(out),)+
                    Value::Array(array) => {
                        out.extend(array.id().to_le_bytes());
                        out.extend((array.len() as u64).to_le_bytes());
                        array.write(out);
                    }
                }
            }
        }

        impl Array {
            fn id(&self) -> u32 {
                match self { $(Array::$kind(_) => $id,)+ }
            }

            /// Number of values.
            pub fn len(&self) -> usize {
                match self { $(Array::$kind(values) => values.len(),)+ }
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            fn read(cursor: &mut Cursor) -> Result<Array, Fault> {
                let id = cursor.u32()?;
                Ok(match id {
                    $($id => Array::$kind({
                        let count = cursor.count("array elements", <$rust>::MIN_BYTES)?;
                        (0..count).map(|_| <$rust>::read(cursor)).collect::<Result<_, _>>()?
                    }),)+
                    ARRAY => return Err(cursor.fault("an array of arrays is not supported")),
                    _ => return Err(cursor.fault(format!("array elements of kind {id} are unknown"))),
                })
            }

            fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Array::$kind(values) => values.iter().for_each(|value| value.write(out)),)+
                }
            }
        }

        $(impl From<$rust> for Value {
            fn from(value: $rust) -> Self {
                Value::$kind(value)
            }
        }

        impl From<Vec<$rust>> for Value {
            fn from(values: Vec<$rust>) -> Self {
                Value::Array(Array::$kind(values))
            }
        })+
    };
}

/// The format's number of an array.
pub(super) const ARRAY: u32 = 9;

values! {
    0 U8(u8), 1 I8(i8), 2 U16(u16), 3 I16(i16), 4 U32(u32), 5 I32(i32), 6 F32(f32),
    7 Bool(bool), 8 String(String), 10 U64(u64), 11 I64(i64), 12 F64(f64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::String(text.to_owned())
    }
}

impl Value {
    /// A whole number that is not negative, of any integer kind.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(x) => Some(x.into()),
            Value::U16(x) => Some(x.into()),
            Value::U32(x) => Some(x.into()),
            Value::U64(x) => Some(x),
            Value::I8(x) => x.try_into().ok(),
            Value::I16(x) => x.try_into().ok(),
            Value::I32(x) => x.try_into().ok(),
            Value::I64(x) => x.try_into().ok(),
            _ => None,
        }
    }

    /// A float of either kind.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Value::F32(x) => Some(x),
            Value::F64(x) => Some(x as f32),
            _ => None,
        }
    }

    /// A truth value.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(x) = *self { Some(x) } else { None }
    }

    /// A text.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(text) = self { Some(text) } else { None }
    }

    /// An array of texts.
    pub fn as_strings(&self) -> Option<&[String]> {
        if let Value::Array(Array::String(texts)) = self { Some(texts) } else { None }
    }

    /// An array of i32, the kind of token types.
    pub fn as_i32s(&self) -> Option<&[i32]> {
        if let Value::Array(Array::I32(values)) = self { Some(values) } else { None }
    }

    /// An array of f32, the kind of token scores.
    pub fn as_f32s(&self) -> Option<&[f32]> {
        if let Value::Array(Array::F32(values)) = self { Some(values) } else { None }
    }
}

/// A value as it lies in a file.
trait Stored: Sized {
    /// The fewest bytes one can have.
    const MIN_BYTES: u64;
    fn read(cursor: &mut Cursor) -> Result<Self, Fault>;
    fn write(&self, out: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($number:ty),+) => {
        $(impl Stored for $number {
            const MIN_BYTES: u64 = size_of::<$number>() as u64;

            fn read(cursor: &mut Cursor) -> Result<Self, Fault> {
                cursor.array().map(<$number>::from_le_bytes)
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
        })+
    };
}

numbers!(u8, i8, u16, i16, u32, i32, f32, u64, i64, f64);

impl Stored for bool {
    const MIN_BYTES: u64 = 1;

    fn read(cursor: &mut Cursor) -> Result<Self, Fault> {
        let [byte] = cursor.array()?;
        Ok(byte != 0)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Stored for String {
    /// Its length.
    const MIN_BYTES: u64 = 8;

    fn read(cursor: &mut Cursor) -> Result<Self, Fault> {
        cursor.text().map(str::to_owned)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend((self.len() as u64).to_le_bytes());
        out.extend(self.as_bytes());
    }
}
