//! JSON as Python's `json.dumps` writes it, by default with `ensure_ascii=False`: what the `tojson` of chat templates means.

use serde_json::Value;

/// How `json.dumps` is asked to write.
#[derive(Default)]
pub(super) struct Style {
    /// Spaces a level, each value on a line of its own.
    pub(super) indent: Option<usize>,
    /// Between values, and behind keys.
    pub(super) separators: Option<[String; 2]>,
    pub(super) sort_keys: bool,
    pub(super) ensure_ascii: bool,
}

/// `json.dumps(value, ensure_ascii=False)`
pub(super) fn dumps(value: &Value) -> String {
    Style::default().dumps(value)
}

impl Style {
    pub(super) fn dumps(&self, value: &Value) -> String {
        let mut out = String::new();
        self.write(value, 0, &mut out);
        out
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::Array(list) => self.each('[', list, ']', depth, out, |value, out| self.write(value, depth + 1, out)),
            Value::Object(map) => {
                let mut pairs: Vec<(&String, &Value)> = map.iter().collect();
                if self.sort_keys {
                    pairs.sort_by_key(|(key, _)| *key);
                }
                self.each('{', &pairs, '}', depth, out, |(key, value), out| {
                    self.text(key, out);
                    out.push_str(self.separators.as_ref().map_or(": ", |[_, behind]| behind));
                    self.write(value, depth + 1, out);
                });
            }
            Value::Number(number) if number.is_f64() => out.push_str(&float(number.as_f64().unwrap_or_default())),
            Value::String(text) => self.text(text, out),
            other => out.push_str(&other.to_string()),
        }
    }

    /// What is between two brackets.
    fn each<T>(&self, open: char, items: &[T], close: char, depth: usize, out: &mut String, write: impl Fn(&T, &mut String)) {
        let line = |depth: usize| self.indent.map(|spaces| format!("\n{}", " ".repeat(spaces * depth))).unwrap_or_default();
        let between = self.separators.as_ref().map_or(if self.indent.is_some() { "," } else { ", " }, |[between, _]| between);
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            out.push_str(if i > 0 { between } else { "" });
            out.push_str(&line(depth + 1));
            write(item, out);
        }
        out.push_str(&if items.is_empty() { String::new() } else { line(depth) });
        out.push(close);
    }

    fn text(&self, text: &str, out: &mut String) {
        // The same escapes as Python's, but for DEL, which it leaves alone where others than ASCII may stand.
        let quoted = Value::from(text).to_string();
        for c in quoted.chars() {
            if !self.ensure_ascii || (c.is_ascii() && c != '\x7f') {
                out.push(c);
            } else {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
            }
        }
    }
}

/// `repr(float)`: the shortest digits that read back, with an exponent of two digits or more below 1e-4 and from 1e16.
fn float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_python_writes_it() {
        // From Python 3.11: json.dumps(json.loads(text), ensure_ascii=False).
        for (text, expected) in [
            (
                r#"{"b":[1,2.0,1e16,1e-5,0.0001,123456789.125],"a":null}"#,
                r#"{"b": [1, 2.0, 1e+16, 1e-05, 0.0001, 123456789.125], "a": null}"#,
            ),
            (r#"["ü\u007f\u0001\n\"\\/",true,-0.0,1.5e300,-3]"#, "[\"ü\u{7f}\\u0001\\n\\\"\\\\/\", true, -0.0, 1.5e+300, -3]"),
            (r#"[{},[],9007199254740993,1e15]"#, "[{}, [], 9007199254740993, 1000000000000000.0]"),
        ] {
            assert_eq!(Style::default().dumps(&serde_json::from_str(text).unwrap()), expected);
        }
        // The same with indent=2; separators=(",", ":"); sort_keys=True; ensure_ascii=True; indent=1, separators=("; ", "=").
        let value = serde_json::from_str(r#"{"b":[1,{"é":"😀"}],"a":{},"c":[]}"#).unwrap();
        let of = |style: Style| style.dumps(&value);
        let [plain, indent] = [None, Some(2)].map(|indent| of(Style { indent, ..Style::default() }));
        assert_eq!(plain, r#"{"b": [1, {"é": "😀"}], "a": {}, "c": []}"#);
        assert_eq!(indent, "{\n  \"b\": [\n    1,\n    {\n      \"é\": \"😀\"\n    }\n  ],\n  \"a\": {},\n  \"c\": []\n}");
        let separators = |between: &str, behind: &str| Some([between.to_owned(), behind.to_owned()]);
        assert_eq!(of(Style { separators: separators(",", ":"), ..Style::default() }), r#"{"b":[1,{"é":"😀"}],"a":{},"c":[]}"#);
        assert_eq!(of(Style { sort_keys: true, ..Style::default() }), r#"{"a": {}, "b": [1, {"é": "😀"}], "c": []}"#);
        assert_eq!(of(Style { ensure_ascii: true, ..Style::default() }), r#"{"b": [1, {"\u00e9": "\ud83d\ude00"}], "a": {}, "c": []}"#);
        let both = of(Style { indent: Some(1), separators: separators("; ", "="), ..Style::default() });
        assert_eq!(both, "{\n \"b\"=[\n  1; \n  {\n   \"é\"=\"😀\"\n  }\n ]; \n \"a\"={}; \n \"c\"=[]\n}");
    }
}
