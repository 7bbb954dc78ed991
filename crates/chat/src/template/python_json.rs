//! JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it: what the `tojson` of chat templates means.

use serde_json::Value;

pub(super) fn dumps(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("[{}]", list.iter().map(dumps).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let pair = |(key, value): (&String, &Value)| format!("{}: {}", string(key), dumps(value));
            format!("{{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        Value::Number(number) if number.is_f64() => float(number.as_f64().unwrap_or_default()),
        Value::String(text) => string(text),
        other => other.to_string(),
    }
}

fn string(text: &str) -> String {
    // The same escapes as Python's, but for DEL, which both leave alone.
    Value::from(text).to_string()
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
            assert_eq!(dumps(&serde_json::from_str(text).unwrap()), expected);
        }
    }
}
