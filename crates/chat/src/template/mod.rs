//! Chat templates: a conversation to the text a model was trained on, in pieces that know what they are.
//!
//! The ChatML family is written out in Rust ([`chatml`]), because only the one who writes a turn knows for certain where it begins. Any
//! other template runs as the Jinja it is ([`jinja`]).

mod calls;
mod chatml;
mod date;
mod fill;
mod jinja;
mod marks;
mod piece;
mod probes;
mod python_json;
mod spans;

use crate::conversation::{Conversation, Message, Role};
use crate::{Fault, Tokenizer};

pub use jinja::Jinja;
pub use piece::{Part, Piece, RenderOptions};

/// A chat template.
#[derive(Debug, Clone)]
pub enum Template {
    /// Qwen2: ChatML with a default system message; no tools.
    Qwen2,
    /// Qwen2.5: ChatML with a default system message and tools.
    Qwen25,
    /// Qwen3: ChatML with tools and thoughts, kept only after the last question.
    Qwen3,
    /// SmolLM2: ChatML with a default system message; no tools.
    SmolLm,
    /// ChatML and nothing else.
    ChatMl,
    /// Any other, as Jinja.
    Jinja(Jinja),
}

impl Template {
    const BUILT_IN: [Template; 5] = [Template::Qwen3, Template::Qwen25, Template::Qwen2, Template::SmolLm, Template::ChatMl];

    /// The template of a model: the built-in that renders what the model's own template renders, else that template itself. Without one,
    /// the family's (`model_type` of `config.json`), else ChatML if the vocabulary has its tokens.
    ///
    /// # Errors
    /// [`Fault::Template`] if the model's template does not compile, or if there is none and the tokens of ChatML are missing.
    pub fn detect(tokenizer: &Tokenizer, model_type: Option<&str>) -> Result<Self, Fault> {
        if let Some(source) = tokenizer.chat_template() {
            let own = Jinja::new(source, tokenizer)?;
            let own = Template::Jinja(own);
            let same = Template::BUILT_IN.into_iter().find(|built_in| renders_the_same(built_in, &own));
            return Ok(same.unwrap_or(own));
        }
        match model_type {
            _ if tokenizer.id("<|im_start|>").is_none() => {
                Err(Fault::template("the model has none, and its vocabulary has no <|im_start|> for plain ChatML; give one"))
            }
            Some("qwen2") => Ok(Template::Qwen25),
            Some("qwen3") => Ok(Template::Qwen3),
            _ => Ok(Template::ChatMl),
        }
    }

    /// The built-in called `name`: qwen2, qwen2.5, qwen3, smollm, chatml.
    pub fn named(name: &str) -> Option<Self> {
        Template::BUILT_IN.into_iter().find(|template| template.name() == name)
    }

    /// Its name; "jinja" for a custom one.
    pub fn name(&self) -> &'static str {
        match self {
            Template::Qwen2 => "qwen2",
            Template::Qwen25 => "qwen2.5",
            Template::Qwen3 => "qwen3",
            Template::SmolLm => "smollm",
            Template::ChatMl => "chatml",
            Template::Jinja(_) => "jinja",
        }
    }

    /// It as Jinja, for exports. Of a built-in, a text of ours that renders the same; a checkpoint that brings its own keeps that.
    pub fn source(&self) -> &str {
        match self {
            Template::Qwen2 => include_str!("qwen2.jinja"),
            Template::Qwen25 => include_str!("qwen25.jinja"),
            Template::Qwen3 => include_str!("qwen3.jinja"),
            Template::SmolLm => include_str!("smollm.jinja"),
            Template::ChatMl => include_str!("chatml.jinja"),
            Template::Jinja(jinja) => jinja.source(),
        }
    }

    /// The conversation in pieces. Those of a custom template's generation prompt belong to no message. One that writes calls only beside a content of
    /// null is given that where nothing is said beside them.
    ///
    /// # Errors
    /// [`Fault::Template`] if the template has no place for tools and there are some (of a custom one: if nothing is written of a call or of a function
    /// on offer), or a custom one fails.
    pub fn pieces(&self, conversation: &Conversation, options: RenderOptions) -> Result<Vec<Piece>, Fault> {
        match self {
            Template::Jinja(jinja) => jinja.pieces(conversation, options),
            Template::Qwen2 => chatml::QWEN2.pieces(conversation, options),
            Template::Qwen25 => chatml::QWEN25.pieces(conversation, options),
            Template::Qwen3 => chatml::QWEN3.pieces(conversation, options),
            Template::SmolLm => chatml::SMOLLM.pieces(conversation, options),
            Template::ChatMl => chatml::PLAIN.pieces(conversation, options),
        }
    }

    /// Whether a chat that a system message begins comes out as plain ChatML wherever an answer is asked for.
    pub fn is_chatml(&self) -> bool {
        use Role::{Assistant, System, User};
        let chat = [(System, "s"), (User, "a"), (Assistant, "b"), (User, "c"), (Assistant, "d"), (User, "e")];
        let messages = chat.map(|(role, text)| Message::new(role, text));
        let options = RenderOptions { generation_prompt: true, ..RenderOptions::default() };
        [2, 4, 6].into_iter().all(|end| {
            let conversation = Conversation { messages: messages[..end].to_vec(), ..Conversation::default() };
            matches!((self.render(&conversation, options), Template::ChatMl.render(&conversation, options)), (Ok(a), Ok(b)) if a == b)
        })
    }

    /// The system message that a ChatML template writes into a conversation without one.
    pub fn default_system(&self) -> Option<String> {
        let conversation = Conversation { messages: vec![Message::new(Role::User, "a")], ..Conversation::default() };
        let text = self.render(&conversation, RenderOptions::default()).ok()?;
        let (system, _) = text.strip_prefix("<|im_start|>system\n")?.split_once("<|im_end|>")?;
        Some(system.to_owned())
    }

    /// The special token with which the assistant ends a turn: `<|im_end|>` of ChatML.
    pub fn end_of_turn(&self) -> Option<String> {
        let messages = vec![Message::new(Role::User, "a"), Message::new(Role::Assistant, "b")];
        let pieces = self.pieces(&Conversation { messages, ..Conversation::default() }, RenderOptions::default()).ok()?;
        pieces.into_iter().rfind(|piece| piece.special && piece.part == Part::End).map(|piece| piece.text)
    }

    /// The conversation as text, that of its pieces. Of a custom template that leaves out tools it is what `transformers` writes.
    ///
    /// # Errors
    /// Those of [`Template::pieces`], for tools that are left out only of a built-in.
    pub fn render(&self, conversation: &Conversation, options: RenderOptions) -> Result<String, Fault> {
        if let Template::Jinja(jinja) = self {
            return jinja.render(conversation, options);
        }
        Ok(self.pieces(conversation, options)?.into_iter().map(|piece| piece.text).collect())
    }
}

impl Tokenizer {
    /// Makes `template` the one that [`Tokenizer::save`] writes; a text of the model's own that renders the same stays.
    pub fn adopt(&mut self, template: &Template) {
        let own = || Template::detect(self, None).is_ok_and(|own| own.name() == template.name());
        if matches!(template, Template::Jinja(_)) || self.chat_template().is_none() || !own() {
            self.set_chat_template(template.source().to_owned());
        }
    }
}

/// Whether a built-in writes all that a model's own template writes, or refuses what the other leaves out.
fn renders_the_same(built_in: &Template, own: &Template) -> bool {
    let variants = [(false, None), (true, None), (true, Some(true)), (true, Some(false))];
    probes::all().iter().all(|conversation| {
        variants.into_iter().all(|(generation_prompt, thinking)| {
            let options = RenderOptions { generation_prompt, thinking, special_in_content: true };
            let own = |conversation: &Conversation| own.render(conversation, options).ok();
            match built_in.render(conversation, options) {
                Ok(ours) => own(conversation).is_some_and(|theirs| ours == theirs),
                // Tools that it has no place for. Where the other writes functions or calls, it has one.
                Err(_) => {
                    own(conversation).is_none_or(|theirs| own(&probes::without_tools(conversation)).is_some_and(|plain| plain == theirs))
                }
            }
        })
    })
}
