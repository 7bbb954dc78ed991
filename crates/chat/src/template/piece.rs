//! What rendering makes: text in pieces that know who says them, and the ways to ask for it.

/// What a piece of rendered text is to its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What the template puts around the turns; never said by anyone.
    Frame,
    /// What the speaker says.
    Body,
    /// The token with which the speaker ends the turn.
    End,
}

/// A piece of rendered text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The text; the pieces joined are the rendered conversation.
    pub text: String,
    /// Whether `text` is one special token that the template wrote, such as `<|im_start|>`.
    pub special: bool,
    /// Index of the message it belongs to; None before and after all of them.
    pub message: Option<usize>,
    /// What it is to that message.
    pub part: Part,
}

/// How to render.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RenderOptions {
    /// Ends with the beginning of an assistant's turn, for generation.
    pub generation_prompt: bool,
    /// Of models that think: told not to, the generation prompt holds an empty thought already. Of a template of one's own it is `enable_thinking`, which is not
    /// there if nothing is said, as in TRL: some think unless told not to, some only if told to.
    pub thinking: Option<bool>,
    /// Special tokens written in the messages are taken for real, as `transformers` does. Off, they are text like any other.
    pub special_in_content: bool,
}
