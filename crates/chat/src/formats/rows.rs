//! A row, as an object with keys, to an example: the formats in use, told apart by their keys.

use serde_json::{Map, Value};

use crate::Fault;
use crate::conversation::{Conversation, Example, Message, Role, ToolCall};

/// The names of keys that data sets do not agree on. Others than the usual ones come before all other keys that a row has, but for a pair of answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// Of plain text.
    pub text_key: String,
    /// Of what is given.
    pub prompt_key: String,
    /// Of what is to be learnt. Another than the usual one must be there beside a prompt, unless the row has a chat or a text so named.
    pub completion_key: String,
    /// Whether pairs of answers are wanted, or single ones: of a data set with splits of both that is which are read, of a row with a chat beside its pair
    /// which of the two it is. None takes those that there are, and of such a row the pair.
    pub pairs: Option<bool>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions { text_key: "text".into(), prompt_key: "prompt".into(), completion_key: "completion".into(), pairs: None }
    }
}

/// The roles of the formats in use.
fn role(name: &str) -> Option<Role> {
    Some(match name {
        "system" | "developer" => Role::System,
        "user" | "human" => Role::User,
        "assistant" | "gpt" | "model" | "function_call" => Role::Assistant,
        "tool" | "observation" | "function" => Role::Tool,
        _ => return None,
    })
}

const ROLES: &str = "system, user, assistant, tool (ShareGPT: human, gpt, function_call, observation)";

/// The example that `row` is.
pub(super) fn example(row: &Value, options: &ReadOptions) -> Result<Example, Fault> {
    let Value::Object(row) = row else {
        return Err(Fault::Value { key: "the row".into(), found: kind(row), expected: "an object with keys" });
    };
    let has = |key: &str| row.get(key).is_some_and(|value| !value.is_null());
    let (prompt, completion, plain) = (options.prompt_key.as_str(), options.completion_key.as_str(), options.text_key.as_str());
    let usual = ReadOptions::default();
    let named = (prompt, completion) != (usual.prompt_key.as_str(), usual.completion_key.as_str());
    let wants = has(completion) || completion != usual.completion_key;
    // Some data sets have in every row a chat to learn, and a pair of answers beside it.
    let single = options.pairs == Some(false) && ["messages", "conversations"].into_iter().any(has);
    if (has("chosen") || has("rejected")) && !single {
        pair(row, prompt)
    } else if named && has(prompt) && has(completion) {
        // Alpaca's own have an `input` and a `history` beside them.
        if (prompt, completion) == ("instruction", "output") { alpaca(row) } else { prompt_completion(row, prompt, completion) }
    } else if plain != usual.text_key && has(plain) && row[plain] != "" {
        running(row, plain)
    } else if has("messages") {
        openai(row)
    } else if has("conversations") {
        sharegpt(row)
    } else if has("instruction") && (has("output") || !(has(prompt) && wants || has(plain))) {
        alpaca(row)
    } else if has(prompt) && (wants || !has(plain)) {
        prompt_completion(row, prompt, completion)
    } else if has(plain) {
        running(row, plain)
    } else if has("input_ids") {
        tokens(row)
    } else {
        let found: Vec<String> = row.keys().take(12).map(|key| format!("`{key}`")).collect();
        Err(Fault::UnknownKeys { found: if found.is_empty() { "none".into() } else { found.join(", ") } })
    }
}

fn openai(row: &Map<String, Value>) -> Result<Example, Fault> {
    let messages = led(row, messages(row, "messages")?)?;
    chat(Conversation { messages, tools: tools(row)? })
}

/// Text of which all is learnt.
fn running(row: &Map<String, Value>, key: &str) -> Result<Example, Fault> {
    without_system(row)?;
    Ok(Example::Text(text(row, key)?.to_owned()))
}

/// Refuses a `system` beside text.
fn without_system(row: &Map<String, Value>) -> Result<(), Fault> {
    let expected = "none beside text, which no template is laid on: `messages` have one";
    let fault = |_| Err(Fault::Value { key: "system".into(), found: "text".into(), expected });
    optional(row, "system")?.map_or(Ok(()), fault)
}

/// Messages behind the row's `system`, unless they have one of their own.
fn led(row: &Map<String, Value>, mut messages: Vec<Message>) -> Result<Vec<Message>, Fault> {
    if messages.first().is_none_or(|first| first.role != Role::System)
        && let Some(system) = optional(row, "system")?
    {
        messages.insert(0, Message::new(Role::System, system));
    }
    Ok(messages)
}

fn messages(row: &Map<String, Value>, key: &str) -> Result<Vec<Message>, Fault> {
    list(row, key)?.iter().enumerate().map(|(index, value)| message(value, &format!("{key}[{index}]"))).collect()
}

/// `{role, content, tool_calls, reasoning_content, train | weight}`.
fn message(value: &Value, at: &str) -> Result<Message, Fault> {
    let fault = |key: &str, value: Option<&Value>, expected| Fault::Value { key: format!("{at}{key}"), found: found(value), expected };
    let Value::Object(map) = value else { return Err(fault("", Some(value), "an object with `role` and `content`")) };
    let name = map.get("role").and_then(Value::as_str).ok_or_else(|| fault(".role", map.get("role"), "a role"))?;
    let speaker = known_role(name, &format!("{at}.role"))?;
    let tool_calls = match map.get("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(calls)) => {
            calls.iter().enumerate().map(|(index, call)| tool_call(call, &format!("{at}.tool_calls[{index}]"))).collect::<Result<_, _>>()?
        }
        other => return Err(fault(".tool_calls", other, "a list")),
    };
    let content = match map.get("content") {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) if !tool_calls.is_empty() => String::new(),
        Some(Value::Array(parts)) => {
            joined(parts).ok_or_else(|| fault(".content", map.get("content"), "text, or a list of parts of text"))?
        }
        other => return Err(fault(".content", other, "text")),
    };
    let given = |key: &'static str| Some((key, map.get(key).filter(|value| !value.is_null())?));
    let reasoning = match given("reasoning_content").or_else(|| given("thinking")) {
        None => None,
        Some((_, Value::String(text))) => Some(text.clone()),
        Some((key, other)) => return Err(fault(&format!(".{key}"), Some(other), "text")),
    };
    Ok(Message { reasoning, tool_calls, train: train(map, at)?, ..Message::new(speaker, content) })
}

/// `train` or else `weight` of a turn: a yes or no, or a number that is 0 or 1.
fn train(turn: &Map<String, Value>, at: &str) -> Result<Option<bool>, Fault> {
    let given = |key: &'static str| Some((key, turn.get(key).filter(|value| !value.is_null())?));
    match given("train").or_else(|| given("weight")) {
        None => Ok(None),
        Some((_, Value::Bool(train))) => Ok(Some(*train)),
        Some((_, Value::Number(weight))) if weight.as_f64() == Some(0.0) => Ok(Some(false)),
        Some((_, Value::Number(weight))) if weight.as_f64() == Some(1.0) => Ok(Some(true)),
        Some((key, other)) => Err(Fault::Value { key: format!("{at}.{key}"), found: kind(other), expected: "true or false, 1 or 0" }),
    }
}

/// `[{"type": "text", "text": ...}, ...]` as one text; None if there is anything else, such as a picture.
fn joined(parts: &[Value]) -> Option<String> {
    parts.iter().map(|part| (part.get("type")?.as_str()? == "text").then(|| part.get("text")?.as_str())?).collect()
}

/// `{function: {name, arguments}}` or `{name, arguments}`; arguments as an object, or as the text of one.
fn tool_call(value: &Value, at: &str) -> Result<ToolCall, Fault> {
    let call = value.get("function").unwrap_or(value);
    let name = call.get("name").and_then(Value::as_str);
    let name =
        name.ok_or_else(|| Fault::Value { key: format!("{at}.name"), found: found(call.get("name")), expected: "the function's name" })?;
    let arguments = match call.get("arguments") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) => super::json::parse(text).ok().filter(Value::is_object).ok_or_else(|| Fault::Value {
            key: format!("{at}.arguments"),
            found: found(call.get("arguments")),
            expected: "an object, or the JSON text of one",
        })?,
        Some(other) => other.clone(),
    };
    Ok(ToolCall { name: name.to_owned(), arguments })
}

/// The functions on offer: a list, or the JSON text of one.
fn tools(row: &Map<String, Value>) -> Result<Vec<Value>, Fault> {
    let parsed = match row.get("tools") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(Vec::new()),
        Some(Value::String(text)) => super::json::parse(text).ok(),
        other => other.cloned(),
    };
    match parsed {
        Some(Value::Array(tools)) => Ok(tools),
        _ => Err(Fault::Value { key: "tools".into(), found: found(row.get("tools")), expected: "a list, or the JSON text of one" }),
    }
}

/// `{conversations: [{from, value, train | weight}], system, tools}`.
fn sharegpt(row: &Map<String, Value>) -> Result<Example, Fault> {
    let mut messages = Vec::new();
    for (index, turn) in list(row, "conversations")?.iter().enumerate() {
        let at = |key: &str| format!("conversations[{index}].{key}");
        // Some sets of this name hold `role` and `content` inside.
        let Some(from) = turn.get("from") else {
            messages.push(message(turn, &format!("conversations[{index}]"))?);
            continue;
        };
        let name = from.as_str().ok_or_else(|| Fault::Value { key: at("from"), found: kind(from), expected: "a role" })?;
        let train = turn.as_object().map_or(Ok(None), |turn| train(turn, &format!("conversations[{index}]")))?;
        let speaker = known_role(name, &at("from"))?;
        let value = turn.get("value").and_then(Value::as_str);
        let value = value.ok_or_else(|| Fault::Value { key: at("value"), found: found(turn.get("value")), expected: "text" })?;
        if name == "function_call" {
            let expected = "the JSON text of a call, or of a list of calls";
            let calls = super::json::parse(value);
            let calls = calls.map_err(|fault| Fault::Value { key: at("value"), found: fault.to_string(), expected })?;
            let calls = if let Value::Array(list) = calls { list } else { vec![calls] };
            let tool_calls = calls.iter().map(|call| tool_call(call, &at("value"))).collect::<Result<_, _>>()?;
            messages.push(Message { tool_calls, train, ..Message::new(Role::Assistant, "") });
        } else {
            messages.push(Message { train, ..Message::new(speaker, value) });
        }
    }
    chat(Conversation { messages: led(row, messages)?, tools: tools(row)? })
}

/// `{instruction, input, output, system, history: [[question, answer], ...]}`.
fn alpaca(row: &Map<String, Value>) -> Result<Example, Fault> {
    let mut messages = led(row, Vec::new())?;
    let history = if row.get("history").is_some_and(|h| !h.is_null()) { list(row, "history")? } else { &[] };
    for (index, pair) in history.iter().enumerate() {
        let side = |side: usize| pair.get(side).and_then(Value::as_str);
        let (Some(question), Some(answer)) = (side(0), side(1)) else {
            return Err(Fault::Value { key: format!("history[{index}]"), found: kind(pair), expected: "a question and an answer" });
        };
        messages.extend([Message::new(Role::User, question), Message::new(Role::Assistant, answer)]);
    }
    let instruction = text(row, "instruction")?;
    let question = match optional(row, "input")? {
        Some(input) => format!("{instruction}\n{input}"),
        None => instruction.to_owned(),
    };
    messages.extend([Message::new(Role::User, question), Message::new(Role::Assistant, text(row, "output")?)]);
    chat(Conversation { messages, tools: tools(row)? })
}

/// `{prompt, completion}`, both text, or both lists of messages of which the completion's are learnt.
fn prompt_completion(row: &Map<String, Value>, prompt: &str, completion: &str) -> Result<Example, Fault> {
    if !row.get(prompt).is_some_and(Value::is_array) {
        without_system(row)?;
        let example = Example::Prompt { prompt: text(row, prompt)?.to_owned(), completion: text(row, completion)?.to_owned() };
        return match &example {
            Example::Prompt { completion: given, .. } if given.is_empty() => {
                Err(Fault::Value { key: completion.into(), found: "empty".into(), expected: "text to learn" })
            }
            _ => Ok(example),
        };
    }
    let mut all = led(row, messages(row, prompt)?)?;
    all.iter_mut().for_each(|message| message.prompt = true);
    all.extend(messages(row, completion)?);
    chat(Conversation { messages: all, tools: tools(row)? })
}

/// `{prompt, chosen, rejected}`, all text or all lists of messages. Without a prompt two lists are whole chats, and what they begin with in common
/// is it. So it is beside a prompt of text, which says the question once more and is not looked at, as in TRL.
fn pair(row: &Map<String, Value>, prompt: &str) -> Result<Example, Fault> {
    if row.get(prompt).is_some_and(Value::is_array) || !row.get("chosen").is_some_and(Value::is_array) {
        let [chosen, rejected] = ["chosen", "rejected"].map(|answer| prompt_completion(row, prompt, answer));
        return Ok(Example::Pair { chosen: Box::new(chosen?), rejected: Box::new(rejected?) });
    }
    let (chosen, rejected) = (messages(row, "chosen")?, messages(row, "rejected")?);
    let common = chosen.iter().zip(&rejected).take_while(|(a, b)| a == b).count();
    if common == 0 || common == chosen.len() || common == rejected.len() {
        let expected = "a list of messages, or chats that begin alike and end in different answers";
        return Err(Fault::Value { key: prompt.into(), found: found(row.get(prompt)), expected });
    }
    let tools = tools(row)?;
    let [chosen, rejected] = [chosen, rejected].map(|messages| {
        let answers = messages.len() - common;
        let mut messages = led(row, messages)?;
        let prompt = messages.len() - answers;
        messages[..prompt].iter_mut().for_each(|message| message.prompt = true);
        chat(Conversation { messages, tools: tools.clone() })
    });
    Ok(Example::Pair { chosen: Box::new(chosen?), rejected: Box::new(rejected?) })
}

/// `{input_ids, labels, attention_mask}`: labels of -100 are not learnt, and tokens with a mask of 0 are padding and left out.
fn tokens(row: &Map<String, Value>) -> Result<Example, Fault> {
    let numbers = |key: &str| -> Result<Option<Vec<i64>>, Fault> {
        if row.get(key).is_none_or(Value::is_null) {
            return Ok(None);
        }
        let whole = |(index, value): (usize, &Value)| {
            value.as_i64().ok_or_else(|| Fault::Value { key: format!("{key}[{index}]"), found: kind(value), expected: "a whole number" })
        };
        list(row, key)?.iter().enumerate().map(whole).collect::<Result<Vec<_>, _>>().map(Some)
    };
    let input = numbers("input_ids")?.unwrap_or_default();
    let labels = numbers("labels")?.unwrap_or_else(|| input.clone());
    let mask = numbers("attention_mask")?.unwrap_or_else(|| vec![1; input.len()]);
    for (key, len) in [("labels", labels.len()), ("attention_mask", mask.len())] {
        if len != input.len() {
            return Err(Fault::Value { key: key.into(), found: format!("{len} numbers long"), expected: "as long as `input_ids`" });
        }
    }
    let (mut ids, mut trained) = (Vec::new(), Vec::new());
    for (index, ((id, label), mask)) in input.into_iter().zip(labels).zip(mask).enumerate() {
        let fault = |key, found, expected| Fault::Value { key: format!("{key}[{index}]"), found, expected };
        let token = u32::try_from(id).map_err(|_| fault("input_ids", id.to_string(), "a token id"))?;
        if label != -100 && label != id {
            return Err(fault(
                "labels",
                label.to_string(),
                "-100, or the number in `input_ids` at the same place (labels are not shifted)",
            ));
        }
        if mask != 0 {
            ids.push(token);
            trained.push(label != -100);
        }
    }
    if ids.is_empty() {
        return Err(Fault::Value { key: "input_ids".into(), found: "empty".into(), expected: "at least two tokens" });
    }
    Ok(Example::Tokens { ids, trained })
}

/// Refuses chats in which a tool answers nobody, or a call is not answered. Who else speaks when is for the template to say, as in TRL: the
/// assistant may begin, and whoever speaks twice has two turns.
fn chat(conversation: Conversation) -> Result<Example, Fault> {
    let mut before: Option<&Message> = None;
    for (index, message) in conversation.messages.iter().enumerate() {
        let calls = before.is_some_and(|m| !m.tool_calls.is_empty());
        let answers = calls || before.is_some_and(|m| m.role == Role::Tool);
        let after = match before.map(|m| m.role) {
            None => "nothing",
            Some(_) if calls => "a call of a tool",
            Some(Role::System) => "one of the system",
            Some(Role::User) => "one of the user",
            Some(Role::Assistant) => "one of the assistant",
            Some(Role::Tool) => "one of the tool",
        };
        let fault = |expected| Err(Fault::Order { index: index + 1, found: message.role.name(), after, expected });
        match (message.role == Role::Tool, answers) {
            (true, false) => return fault("a call of the assistant before it"),
            (false, _) if calls => return fault("one of the tool"),
            _ => {}
        }
        if message.role == Role::Assistant && message.content.trim().is_empty() && message.tool_calls.is_empty() {
            return Err(Fault::EmptyAssistant { index: index + 1 });
        }
        before = Some(message);
    }
    if conversation.messages.is_empty() {
        return Err(Fault::Value { key: "messages".into(), found: "empty".into(), expected: "at least one message" });
    }
    Ok(Example::Chat(conversation))
}

fn known_role(name: &str, key: &str) -> Result<Role, Fault> {
    role(name).ok_or_else(|| Fault::UnknownRole { key: key.to_owned(), found: short(name), expected: ROLES })
}

/// The list under `key`, or the JSON text of one, as CSV holds it.
fn list<'a>(row: &'a Map<String, Value>, key: &str) -> Result<&'a [Value], Fault> {
    let value = row.get(key);
    let list = value.and_then(Value::as_array);
    list.map(Vec::as_slice).ok_or_else(|| Fault::Value { key: key.to_owned(), found: found(value), expected: "a list" })
}

fn text<'a>(row: &'a Map<String, Value>, key: &str) -> Result<&'a str, Fault> {
    let value = row.get(key);
    value.and_then(Value::as_str).ok_or_else(|| Fault::Value { key: key.to_owned(), found: found(value), expected: "text" })
}

/// The text under `key`; None if it is missing, null or empty.
fn optional<'a>(row: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, Fault> {
    if row.get(key).is_none_or(Value::is_null) { Ok(None) } else { text(row, key).map(|text| (!text.is_empty()).then_some(text)) }
}

fn found(value: Option<&Value>) -> String {
    value.map_or_else(|| "missing".into(), kind)
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".into(),
        Value::String(text) => format!("\"{}\"", short(text)),
        other => other.to_string(),
    }
}

/// The beginning of `text`, for a message.
fn short(text: &str) -> String {
    let mut out: String = text.chars().take(40).collect();
    if out.len() < text.len() {
        out.push('…');
    }
    out
}
