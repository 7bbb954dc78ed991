//! Conversations that tell templates apart: what one of them renders otherwise than a built-in is in one of these.

use serde_json::json;

use crate::conversation::Role::{Assistant, System, Tool, User};
use crate::conversation::{Conversation, Message, ToolCall};

/// All of them.
pub(super) fn all() -> Vec<Conversation> {
    let say = |role, text: &str| Message::new(role, text);
    let thought = |text: &str, why: &str| Message { reasoning: Some(why.into()), ..say(Assistant, text) };
    let call = |name: &str, arguments| ToolCall { name: name.into(), arguments };
    let calling = |text: &str, tool_calls: Vec<ToolCall>| Message { tool_calls, ..say(Assistant, text) };
    let f = || call("f", json!({"a": "\u{fc}", "b": [1, 2.5]}));
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let tools = || vec![json!({"type": "function", "function": {"name": "f", "parameters": schema}}), json!({"name": "g"})];
    let plain = [
        vec![say(User, "a")],
        vec![say(User, "a"), say(Assistant, "b"), say(User, " \n c\n"), say(Assistant, "\n\n d \n")],
        vec![say(System, ""), say(User, "a"), say(Assistant, "b")],
        vec![say(System, "s"), say(User, "a"), say(Assistant, "b"), say(User, "c"), say(Assistant, "<think>\nx\n</think>\n\nd")],
        vec![say(User, "a"), say(Assistant, "<think>\nx\n</think>\n\nb"), say(User, "c"), say(Assistant, "d")],
        vec![say(User, "a"), thought("b", "why"), say(User, "c"), thought("d", "\nwhy\n")],
        vec![say(User, "a"), say(Assistant, "b"), say(System, "s"), say(User, "c")],
        // With no function on offer: templates that write calls may leave those out.
        vec![say(User, "a"), calling("", vec![f()]), say(Tool, "1"), say(Assistant, "b")],
    ];
    let with_tools = [
        vec![say(User, "a"), say(Assistant, "b")],
        vec![say(System, "s"), say(User, "a"), calling("wait", vec![f()]), say(Tool, "1"), say(Tool, "2"), say(Assistant, "b")],
        vec![say(User, "a"), calling("", vec![f(), call("g", json!({}))]), say(Tool, "1"), thought("b", "why"), say(User, "c")],
        vec![say(User, "a"), Message { reasoning: Some("why".into()), ..calling("", vec![f()]) }, say(Tool, "1")],
    ];
    let plain = plain.into_iter().map(|messages| Conversation { messages, tools: Vec::new() });
    plain.chain(with_tools.into_iter().map(|messages| Conversation { messages, tools: tools() })).collect()
}

/// The conversation with no functions on offer and no calls.
pub(super) fn without_tools(conversation: &Conversation) -> Conversation {
    let silent = |message: &Message| Message { tool_calls: Vec::new(), ..message.clone() };
    Conversation { messages: conversation.messages.iter().map(silent).collect(), tools: Vec::new() }
}
