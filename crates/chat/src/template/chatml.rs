//! The ChatML family: `<|im_start|>{role}\n{content}<|im_end|>\n` for every turn, and what the models of Qwen and SmolLM add to it.

use super::piece::{Part, Piece, RenderOptions};
use super::python_json::dumps;
use crate::Fault;
use crate::conversation::{Conversation, Message, Role, ToolCall};

/// A dialect of ChatML.
pub(super) struct ChatMl {
    name: &'static str,
    default_system: Option<&'static str>,
    tools: bool,
    thinking: bool,
}

pub(super) const QWEN2: ChatMl =
    ChatMl { name: "qwen2", default_system: Some("You are a helpful assistant."), tools: false, thinking: false };
pub(super) const QWEN25: ChatMl = ChatMl {
    name: "qwen2.5",
    default_system: Some("You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
    tools: true,
    thinking: false,
};
pub(super) const QWEN3: ChatMl = ChatMl { name: "qwen3", default_system: None, tools: true, thinking: true };
pub(super) const SMOLLM: ChatMl = ChatMl {
    name: "smollm",
    default_system: Some("You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
    tools: false,
    thinking: false,
};
pub(super) const PLAIN: ChatMl = ChatMl { name: "chatml", default_system: None, tools: false, thinking: false };

const TOOLS_BEGIN: &str = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
    You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
const TOOLS_END: &str = "\n</tools>\n\nFor each function call, return a json object with function name and arguments within \
    <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";

/// Pieces in the making.
#[derive(Default)]
struct Writer {
    pieces: Vec<Piece>,
}

impl Writer {
    fn push(&mut self, text: impl Into<String>, special: bool, message: Option<usize>, part: Part) {
        let text = text.into();
        if !text.is_empty() {
            self.pieces.push(Piece { text, special, message, part });
        }
    }

    /// `<|im_start|>{role}` and `after`, which is "\n" but for turns of tools.
    fn begin(&mut self, role: &str, after: &str, message: Option<usize>) {
        self.push("<|im_start|>", true, message, Part::Frame);
        self.push(format!("{role}{after}"), false, message, Part::Frame);
    }

    /// `<|im_end|>\n`. The newline is written by the template, never by the model.
    fn end(&mut self, message: Option<usize>) {
        self.push("<|im_end|>", true, message, if message.is_some() { Part::End } else { Part::Frame });
        self.push("\n", false, message, Part::Frame);
    }

    fn turn(&mut self, role: &str, body: impl Into<String>, message: Option<usize>) {
        self.begin(role, "\n", message);
        self.push(body, false, message, if message.is_some() { Part::Body } else { Part::Frame });
        self.end(message);
    }
}

impl ChatMl {
    /// The conversation in pieces. See [`super::Template::pieces`].
    pub(super) fn pieces(&self, conversation: &Conversation, options: RenderOptions) -> Result<Vec<Piece>, Fault> {
        let Conversation { messages, tools } = conversation;
        if !self.tools && (!tools.is_empty() || messages.iter().any(|m| m.role == Role::Tool || !m.tool_calls.is_empty())) {
            return Err(Fault::template(format!("{} has no place for tools, and the conversation uses them", self.name)));
        }
        let mut writer = Writer::default();
        self.system(&mut writer, conversation);
        let last_question = last_question(messages);
        for (index, message) in messages.iter().enumerate() {
            match message.role {
                Role::System if index == 0 => {}
                Role::System | Role::User => writer.turn(message.role.name(), &message.content, Some(index)),
                Role::Assistant if self.thinking => {
                    let body = thinking_body(message, index > last_question, index + 1 == messages.len());
                    writer.turn("assistant", body, Some(index));
                }
                Role::Assistant => writer.turn("assistant", body(message), Some(index)),
                Role::Tool => {
                    let is_tool = |at: Option<usize>| at.and_then(|at| messages.get(at)).is_some_and(|m| m.role == Role::Tool);
                    if !is_tool(index.checked_sub(1)) {
                        writer.begin("user", "", Some(index));
                    }
                    let body = format!("\n<tool_response>\n{}\n</tool_response>", message.content);
                    writer.push(body, false, Some(index), Part::Body);
                    if !is_tool(Some(index + 1)) {
                        writer.end(Some(index));
                    }
                }
            }
        }
        if options.generation_prompt {
            writer.begin("assistant", "\n", None);
            if self.thinking && options.thinking == Some(false) {
                writer.push("<think>\n\n</think>\n\n", false, None, Part::Frame);
            }
        }
        Ok(writer.pieces)
    }

    /// The system's turn: the message or the default one, then the tools.
    fn system(&self, writer: &mut Writer, Conversation { messages, tools }: &Conversation) {
        let own = messages.first().filter(|message| message.role == Role::System);
        let text = own.map(|message| message.content.as_str()).or(self.default_system);
        let index = own.map(|_| 0);
        if tools.is_empty() {
            if let Some(text) = text {
                writer.turn("system", text, index);
            }
            return;
        }
        let signatures: String = tools.iter().map(|tool| format!("\n{}", dumps(tool))).collect();
        let gap = if text.is_some() { "\n\n" } else { "" };
        writer.turn("system", format!("{}{gap}{TOOLS_BEGIN}{signatures}{TOOLS_END}", text.unwrap_or_default()), index);
    }
}

/// What an assistant that does not think says.
fn body(message: &Message) -> String {
    let calls = message.tool_calls.iter().map(|tool_call| call(tool_call, dumps(&tool_call.arguments)));
    let content = (!message.content.is_empty() || message.tool_calls.is_empty()).then(|| message.content.clone());
    content.into_iter().chain(calls).collect::<Vec<_>>().join("\n")
}

/// What an assistant that thinks says. Thoughts stand in a field of their own or at the head of the content, and are kept `after_question`
/// only: always in the last message, in others if there are any.
fn thinking_body(message: &Message, after_question: bool, last: bool) -> String {
    let (thoughts, content) = match &message.reasoning {
        Some(thoughts) => (thoughts.as_str(), message.content.as_str()),
        None => split_thoughts(&message.content),
    };
    let mut body = if after_question && (last || !thoughts.is_empty()) {
        format!("<think>\n{}\n</think>\n\n{}", thoughts.trim_matches('\n'), content.trim_start_matches('\n'))
    } else {
        content.to_owned()
    };
    for (index, tool_call) in message.tool_calls.iter().enumerate() {
        if index > 0 || !content.is_empty() {
            body.push('\n');
        }
        // This template, unlike Qwen2.5's, takes arguments that are text for JSON already.
        let arguments = tool_call.arguments.as_str().map_or_else(|| dumps(&tool_call.arguments), str::to_owned);
        body.push_str(&call(tool_call, arguments));
    }
    body
}

/// `<think>\n{thoughts}\n</think>\n\n{answer}` in its two parts, cut where Qwen3's template cuts.
fn split_thoughts(content: &str) -> (&str, &str) {
    let (Some((head, _)), Some((_, answer))) = (content.split_once("</think>"), content.rsplit_once("</think>")) else {
        return ("", content);
    };
    let head = head.trim_end_matches('\n');
    let thoughts = head.rsplit_once("<think>").map_or(head, |(_, thoughts)| thoughts);
    (thoughts.trim_start_matches('\n'), answer.trim_start_matches('\n'))
}

fn call(ToolCall { name, .. }: &ToolCall, arguments: String) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// Index of the last message in which the user asks something, rather than hands back the answer of a tool.
fn last_question(messages: &[Message]) -> usize {
    let answer = |text: &str| text.starts_with("<tool_response>") && text.ends_with("</tool_response>");
    let asks = |message: &Message| message.role == Role::User && !answer(&message.content);
    messages.iter().rposition(asks).unwrap_or(messages.len().saturating_sub(1))
}
