//! Calls of functions, and functions on offer, as Jinja templates take them: some refuse a form of them, and some write nothing of them at all, in
//! silence.

use serde_json::Value;

use super::marks::without_marks;
use super::python_json::dumps;
use crate::Fault;

/// `{messages, tools}` in forms for a template that refuses them as they are: some join arguments to text, which goes only with the JSON text of
/// them, and some join the content, which does not go with null. Null is kept as long as it can be, because of those that write calls only beside it.
pub(super) fn other_forms(input: &Value) -> impl Iterator<Item = Value> {
    let any = any_message(input, |message| calls(message) || message["content"].is_null());
    let forms = [(true, false), (false, true), (true, true)].into_iter().filter(move |_| any);
    forms.map(move |(arguments_as_text, null_as_text)| {
        let mut form = input.clone();
        for message in list(&mut form, "messages") {
            if null_as_text && message["content"].is_null() {
                message["content"] = "".into();
            }
            for call in list(message, "tool_calls").filter(|_| arguments_as_text) {
                let arguments = &mut call["function"]["arguments"];
                if !arguments.is_string() {
                    *arguments = dumps(arguments).into();
                }
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
        let or = if message["content"].is_null() { "" } else { ", or only where `content` is null" };
        let what = |name: &str| format!("the call of `{name}` in message {}: it has no place for tools{or}", index + 1);
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

/// What is in the list under `key`, if there is one.
fn list<'a>(value: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> {
    value.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}
