//! Where in the text of a template each message of the assistant stands, by what the template writes of other conversations.
//!
//! Most templates write turn after turn: the text up to a message, with the prompt that asks for it, begins the whole. Those of models that
//! think do not: they take thoughts out of earlier turns, and their prompt opens `<think>`. There the conversation is rendered once more with
//! the message in other words; what both texts share around it is the template's.

use serde_json::{Value, json};

use super::marks::SAID;
use crate::Fault;
use crate::conversation::{Message, Role};

/// Bytes of the rendered text that one message of the assistant says.
pub(super) struct Span {
    pub(super) message: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// What a template writes of messages, with the prompt for the next one or without.
pub(super) type Run<'a> = &'a dyn Fn(&[Value], bool) -> Result<String, Fault>;

/// The spans of `text`, which `run` has written of `messages` without a prompt.
pub(super) fn said(text: &str, conversation: &[Message], messages: &[Value], run: Run<'_>) -> Result<Vec<Span>, Fault> {
    let (mut spans, mut from): (Vec<Span>, usize) = (Vec::new(), 0);
    for (message, _) in conversation.iter().enumerate().filter(|(_, m)| m.role == Role::Assistant) {
        // Some templates cannot write of no message.
        let prompted = if message > 0 { Some(run(&messages[..message], true)?) } else { None };
        let with = run(&messages[..=message], false)?;
        let plain_start = prompted.as_deref().filter(|prompted| text.starts_with(prompted)).map(str::len);
        let plain_end = text.starts_with(&with).then_some(with.len());
        let (start, end) = match (plain_start, plain_end) {
            (Some(start), Some(end)) => (start, end),
            _ => {
                let (start, end) = rewritten(text, from, message, messages, run)?.ok_or_else(|| refused(message))?;
                (plain_start.unwrap_or(start), plain_end.unwrap_or(end))
            }
        };
        if start > end || start < from {
            return Err(refused(message));
        }
        spans.push(Span { message, start, end });
        from = end;
    }
    Ok(spans)
}

fn refused(message: usize) -> Fault {
    Fault::template(format!(
        "what message {} says cannot be told from the text around it, because the template rewrites earlier turns; put {{% generation %}} and \
         {{% endgeneration %}} around the assistant's part of the template",
        message + 1
    ))
}

/// Where message number `message` begins and ends in `text`, at `from` or later; None if the text around it depends on what it says.
fn rewritten(text: &str, from: usize, message: usize, messages: &[Value], run: Run<'_>) -> Result<Option<(usize, usize)>, Fault> {
    // What a prompt adds to what is there.
    let there = &messages[..message.max(1)];
    let (before, prompted) = (run(there, false)?, run(there, true)?);
    let prompt = prompted.strip_prefix(before.as_str()).unwrap_or_default();
    for hidden in in_other_words(&messages[message]) {
        let mut all = messages.to_vec();
        all[message] = hidden;
        let other = run(&all, false)?;
        let (Some(first), Some(last)) = (other.find(SAID), other.rfind(SAID)) else { continue };
        let last = last + SAID.len_utf8();
        // The head of the turn is the part of the prompt that is there.
        let Some(window) = other.get(from..first) else { return Ok(None) };
        let places = window.char_indices().map(|(at, _)| at).chain([window.len()]);
        let Some(head) = places.max_by_key(|&at| (shared(&window[at..], prompt), at)) else { return Ok(None) };
        let start = from + head + shared(&window[head..], prompt);
        // The end of the turn is what follows it where it is the last.
        let alone = run(&all[..=message], false)?;
        let closing = alone.rfind(SAID).map_or("", |at| &alone[at + SAID.len_utf8()..]);
        let closing = shared(closing, &other[last..]);
        let (true, Some(body)) = (text.starts_with(&other[..start]), text.strip_suffix(&other[last..])) else { return Ok(None) };
        let whole = text[from + head..].starts_with(prompt);
        return Ok(Some((if whole { from + head + prompt.len() } else { start }, body.len() + closing)));
    }
    Ok(None)
}

/// The message saying something else, and for templates that leave out what is said beside a call, calling something else.
fn in_other_words(message: &Value) -> Vec<Value> {
    let mut other = message.clone();
    if let Some(fields) = other.as_object_mut() {
        fields.shift_remove("reasoning_content");
    }
    let mut says = other.clone();
    says["content"] = json!(SAID);
    for call in other.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        call["function"]["name"] = json!(SAID);
    }
    vec![says, other]
}

/// Bytes that both begin with.
fn shared(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(c, _)| c.len_utf8()).sum()
}
