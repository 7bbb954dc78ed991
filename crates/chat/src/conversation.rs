//! What a row of a data set is, whichever format it was written in.

use serde_json::Value;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The instructions before the chat.
    System,
    /// The one who asks.
    User,
    /// The model.
    Assistant,
    /// The answer of a function the model called.
    Tool,
}

impl Role {
    /// The name templates know it by.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// One call of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The function.
    pub name: String,
    /// Its arguments, usually an object.
    pub arguments: Value,
}

/// One turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; may be empty beside tool calls.
    pub content: String,
    /// The thoughts before it, of models that write them down.
    pub reasoning: Option<String>,
    /// The functions called after it.
    pub tool_calls: Vec<ToolCall>,
    /// Whether it is part of a prompt: read only, unless all is learnt.
    pub prompt: bool,
    /// Whether to train on it, where the data set says so: stronger than every option, and than `prompt`.
    pub train: Option<bool>,
}

impl Message {
    /// A turn of text alone.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Message { role, content: content.into(), reasoning: None, tool_calls: Vec::new(), prompt: false, train: None }
    }
}

/// A chat.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// Its turns.
    pub messages: Vec<Message>,
    /// The functions the model may call, as JSON schemas.
    pub tools: Vec<Value>,
}

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub enum Example {
    /// A chat, to be rendered by a template.
    Chat(Conversation),
    /// A beginning and its continuation, both as they are.
    Prompt {
        /// What is given.
        prompt: String,
        /// What is learnt.
        completion: String,
    },
    /// Text, all of it to be learnt.
    Text(String),
    /// Two answers to one prompt, for preference training; each a [`Example::Chat`] or a [`Example::Prompt`].
    Pair {
        /// The prompt with the better answer.
        chosen: Box<Example>,
        /// The prompt with the other one.
        rejected: Box<Example>,
    },
    /// Tokens, made elsewhere.
    Tokens {
        /// Their ids.
        ids: Vec<u32>,
        /// Which of them are learnt; as long as `ids`.
        trained: Vec<bool>,
    },
}

impl Example {
    /// Bytes that it takes in memory, about.
    pub fn bytes(&self) -> usize {
        match self {
            Example::Chat(conversation) => {
                let calls =
                    |message: &Message| message.tool_calls.iter().map(|call| call.name.len() + size(&call.arguments)).sum::<usize>();
                let said = |message: &Message| message.content.len() + message.reasoning.as_ref().map_or(0, String::len) + calls(message);
                conversation.messages.iter().map(said).sum::<usize>() + conversation.tools.iter().map(size).sum::<usize>()
            }
            Example::Prompt { prompt, completion } => prompt.len() + completion.len(),
            Example::Text(text) => text.len(),
            Example::Pair { chosen, rejected } => chosen.bytes() + rejected.bytes(),
            Example::Tokens { ids, trained } => size_of_val(ids.as_slice()) + trained.len(),
        }
    }
}

/// Bytes that `value` takes in memory, about.
pub(crate) fn size(value: &Value) -> usize {
    let inside = match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(size).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + size(value)).sum(),
        _ => 0,
    };
    size_of::<Value>() + inside
}
