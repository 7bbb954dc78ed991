//! Calls of functions, and functions on offer, as Jinja templates take them: some refuse a form of them, and some write nothing of them, in silence:
//! of calls beside a text, or of none at all.

use serde_json::Value;

use super::marks::without_marks;
use super::python_json::dumps;
use crate::Fault;

/// `{messages, tools}` with the JSON text of the arguments of calls, for templates that join arguments to text; None if nothing is called.
pub(super) fn with_arguments_as_text(input: &Value) -> Option<Value> {
    any_message(input, calls).then(|| {
        let mut form = input.clone();
        for message in list(&mut form, "messages") {
            for call in list(message, "tool_calls") {
                let arguments = &mut call["function"]["arguments"];
                if !arguments.is_string() {
                    *arguments = dumps(arguments).into();
                }
            }
        }
        form
    })
}

/// `{messages, tools}` with a content of null where nothing is said beside calls, for templates that write calls only there; None if something is
/// said beside all of them.
pub(super) fn with_null_beside_calls(input: &Value) -> Option<Value> {
    any_message(input, only_calls).then(|| {
        let mut form = input.clone();
        for message in list(&mut form, "messages") {
            if only_calls(message) {
                message["content"] = Value::Null;
            }
        }
        form
    })
}

/// Refuses messages if nothing is written of one of their calls, in whose place a model would learn to say nothing, or of a function on offer.
/// `text` is what the template writes of `input`, and `run` has it write of something else.
pub(super) fn all_written(input: &Value, text: &str, run: impl Fn(&Value) -> Result<String, Fault>) -> Result<(), Fault> {
    if !any_message(input, calls) && input["tools"].as_array().is_none_or(Vec::is_empty) {
        return Ok(());
    }
    let mut word = "zq".to_owned();
    while text.contains(&word) {
        word.push('q');
    }
    // All are given names that stand nowhere yet, at once: it is one more rendering.
    let mut renamed = input.clone();
    let mut names: Vec<(String, String)> = Vec::new();
    let mut rename = |name: &mut Value, what: &dyn Fn(&str) -> String| {
        let other = format!("{word}{}{word}", names.len());
        let what = what(&without_marks(name.as_str().unwrap_or_default()));
        *name = other.clone().into();
        names.push((other, what));
    };
    for (index, message) in list(&mut renamed, "messages").enumerate() {
        let what = |name: &str| format!("the call of `{name}` in message {}: it has no place for tools", index + 1);
        for call in list(message, "tool_calls") {
            rename(&mut call["function"]["name"], &what);
        }
    }
    for function in list(&mut renamed, "tools") {
        let inside = function.get("function").is_some_and(|function| function.get("name").is_some());
        let named = if inside { function.get_mut("function") } else { Some(function) };
        if let Some(name) = named.and_then(|named| named.get_mut("name")) {
            rename(name, &|name: &str| format!("the function `{name}`, which is on offer: it has no place for tools"));
        }
    }
    // A template that refuses names it has not seen has looked at them.
    let Ok(written) = run(&renamed) else { return Ok(()) };
    match names.into_iter().find(|(name, _)| !written.contains(name)) {
        Some((_, what)) => Err(Fault::template(format!("it leaves out {what}"))),
        None => Ok(()),
    }
}

fn any_message(input: &Value, is_such: impl Fn(&Value) -> bool) -> bool {
    input["messages"].as_array().is_some_and(|messages| messages.iter().any(is_such))
}

fn calls(message: &Value) -> bool {
    message.get("tool_calls").is_some()
}

fn only_calls(message: &Value) -> bool {
    calls(message) && message["content"].as_str().is_some_and(str::is_empty)
}

/// What is in the list under `key`, if there is one.
fn list<'a>(value: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> {
    value.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}
