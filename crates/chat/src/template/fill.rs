//! How much a template may have filled up with spaces or zeros: minijinja takes any width, and memory that is not there ends the process.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Rest, StringInput, Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Most characters that one filter or method fills up with.
const MOST: usize = 1 << 20;

/// Python's methods and Jinja's filters, those with a width within bounds.
pub(super) fn bound(environment: &mut Environment<'static>) {
    environment.add_filter("indent", indent);
    environment.add_filter("format", format);
    environment.set_unknown_method_callback(method);
}

fn indent(text: StringInput<'_>, width: Option<usize>, first: Option<bool>, blank: Option<bool>, options: Kwargs) -> Result<Value, Error> {
    let width = if width.is_some() { width } else { options.get("width")? };
    check("indent", text.as_str().split('\n').count().saturating_mul(width.unwrap_or_default()))?;
    filters::indent(text, width, first, blank, options)
}

fn format(state: &mut State, text: &Value, values: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    check("format", widths(FormatStyle::Printf, text.as_str().unwrap_or_default()))?;
    filters::format(state, text, values)
}

fn method(state: &mut State, value: &Value, name: &str, values: &[Value]) -> Result<Value, Error> {
    if let ("format", Some(text)) = (name, value.as_str()) {
        check(name, widths(FormatStyle::StrFormat, text))?;
    }
    unknown_method_callback(state, value, name, values)
}

fn check(name: &str, asked: usize) -> Result<(), Error> {
    let refuse = || Error::new(ErrorKind::InvalidOperation, format!("{name} is to fill up with more than {MOST} characters"));
    if asked > MOST { Err(refuse()) } else { Ok(()) }
}

/// What the widths and precisions of a format string add up to: numbers behind a `%`, or behind the `:` in braces.
fn widths(style: FormatStyle, text: &str) -> usize {
    let mark = if style == FormatStyle::Printf { "%" } else { "{" };
    // Twice it is a character like any other.
    let text = text.replace(&mark.repeat(2), "");
    let specs = text.split(mark).skip(1).map(|field| match style {
        FormatStyle::Printf => field.strip_prefix('(').and_then(|key| key.split_once(')')).map_or(field, |(_, spec)| spec),
        FormatStyle::StrFormat => {
            let spec = field.split_once(':').filter(|(name, _)| !name.contains('}')).map_or("", |(_, spec)| spec);
            // What it fills up with may be any character, a letter or a brace too.
            match spec.char_indices().nth(1) {
                Some((at, '<' | '>' | '^')) => &spec[at..],
                _ => spec,
            }
        }
    });
    specs.map(numbers).fold(0, usize::saturating_add)
}

/// The sum of the numbers before a letter or a brace.
fn numbers(spec: &str) -> usize {
    let end = spec.find(|c: char| c.is_alphabetic() || c == '}').unwrap_or(spec.len());
    let digits = spec[..end].split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    digits.map(|digits| digits.parse().unwrap_or(usize::MAX)).fold(0, usize::saturating_add)
}
