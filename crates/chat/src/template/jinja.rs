//! Custom chat templates, run as the Jinja they are, and where in their output the assistant speaks.
//!
//! The output is one text, so some things are found with `marks`:
//! - `{% generation %}` blocks, where a template has them, become marks around what the assistant says. Without them, `spans` finds it.
//! - Special tokens in the messages are broken by a mark before rendering and mended after the real ones have been found.

use std::collections::BTreeSet;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::json;

use super::calls::{all_written, with_arguments_as_text, with_null_beside_calls};
use super::date::strftime_now;
use super::fill;
use super::marks::{BEGIN, BROKEN, END, is_mark, without_marks};
use super::piece::{Part, Piece, RenderOptions};
use super::python_json::Style;
use super::spans::{Span, said};
use crate::conversation::{Conversation, Message, Role};
use crate::{Fault, Tokenizer};

/// Instructions a template may run; a turn takes about a hundred. What one of them makes has no bound but in [`fill`]: a text that is doubled again and
/// again (`a ~ a`) takes all memory.
const FUEL: u64 = 10_000_000;

/// What its environment knows a template by.
const NAME: &str = "<string>";

/// A chat template in Jinja, and the tokens it may write.
#[derive(Debug, Clone)]
pub struct Jinja {
    source: String,
    /// The source as [`NAME`], compiled once: a chat is rendered again and again. In it `{% generation %}` is a filter.
    environment: Arc<Environment<'static>>,
    marks_generation: bool,
    /// The special tokens, longest first.
    specials: Vec<String>,
    /// What they begin with.
    firsts: BTreeSet<char>,
    bos: String,
    eos: String,
}

impl Jinja {
    /// The template `source` of the model that `tokenizer` belongs to.
    ///
    /// # Errors
    /// [`Fault::Template`] with the line if it does not compile.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self, Fault> {
        let mut specials: Vec<String> = tokenizer.specials().into_iter().map(|(_, token)| token).collect();
        specials.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        let written = |id: Option<u32>| id.and_then(|id| tokenizer.token(id)).unwrap_or_default();
        let (runnable, marks_generation) = generation_as_filter(source);
        let mut environment = environment()?;
        environment.add_template_owned(NAME, runnable).map_err(fault)?;
        Ok(Jinja {
            source: source.to_owned(),
            environment: Arc::new(environment),
            marks_generation,
            firsts: specials.iter().filter_map(|token| token.chars().next()).collect(),
            specials,
            bos: written(tokenizer.bos()),
            eos: written(tokenizer.eos()),
        })
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The conversation as text. See [`super::Template::render`].
    pub(super) fn render(&self, conversation: &Conversation, options: RenderOptions) -> Result<String, Fault> {
        let input = self.input(conversation, options)?;
        let (_, text) = self.whole(&input, options).or_else(|_| self.written(&input, options))?;
        Ok(without_marks(&text))
    }

    /// Messages and tools as `transformers` takes them, as text: with what a [`Conversation`] has no place for, such as ids of calls.
    ///
    /// # Errors
    /// [`Fault::Template`] if the template refuses them.
    pub fn render_json(&self, messages: &serde_json::Value, tools: &serde_json::Value, options: RenderOptions) -> Result<String, Fault> {
        Ok(without_marks(&self.run(messages, tools, options.generation_prompt, options)?))
    }

    /// The conversation in pieces. See [`super::Template::pieces`].
    pub(super) fn pieces(&self, conversation: &Conversation, options: RenderOptions) -> Result<Vec<Piece>, Fault> {
        let (input, text) = self.whole(&self.input(conversation, options)?, options)?;
        let (messages, tools) = (&input["messages"], &input["tools"]);
        let spans = if options.generation_prompt {
            // Nothing is learnt from a prompt, and templates that rewrite earlier turns can be asked for one.
            Vec::new()
        } else if self.marks_generation {
            marked_spans(&text, &conversation.messages)?
        } else {
            let run = |first: &[serde_json::Value], prompt: bool| self.run(&json!(first), tools, prompt, options);
            said(&text, &conversation.messages, messages.as_array().map_or(&[], Vec::as_slice), &run)?
        };
        let mut pieces = Vec::new();
        let mut at = 0;
        for Span { message, start, end } in spans {
            self.cut(&text[at..start], None, &mut pieces);
            let first = pieces.len();
            self.cut(&text[start..end], Some(message), &mut pieces);
            mark_end(&mut pieces[first..]);
            at = end;
        }
        self.cut(&text[at..], None, &mut pieces);
        Ok(pieces)
    }

    /// `{messages, tools}` in the first form of which all is written, and that text. If there is none, the fault is that of the first.
    fn whole(&self, input: &serde_json::Value, options: RenderOptions) -> Result<(serde_json::Value, String), Fault> {
        self.all_of(input, options).or_else(|fault| {
            // Some templates write calls only beside null. It comes last, for many write "None" there, and that is no fault.
            let null = with_null_beside_calls(input);
            null.and_then(|input| self.all_of(&input, options).ok()).ok_or(fault)
        })
    }

    /// The form that the template takes, and what it writes of it, if nothing is left out.
    fn all_of(&self, input: &serde_json::Value, options: RenderOptions) -> Result<(serde_json::Value, String), Fault> {
        let (input, text) = self.written(input, options)?;
        all_written(&input, &text, |input| self.write(input, options))?;
        Ok((input, text))
    }

    /// `{messages, tools}` in the form that the template takes, and what it writes of them. If it takes none, the fault is that of the first.
    fn written(&self, input: &serde_json::Value, options: RenderOptions) -> Result<(serde_json::Value, String), Fault> {
        match self.write(input, options) {
            Ok(text) => Ok((input.clone(), text)),
            Err(fault) => {
                let form = with_arguments_as_text(input);
                form.and_then(|form| self.write(&form, options).ok().map(|text| (form, text))).ok_or(fault)
            }
        }
    }

    /// What the template writes of `{messages, tools}`.
    fn write(&self, input: &serde_json::Value, options: RenderOptions) -> Result<String, Fault> {
        self.run(&input["messages"], &input["tools"], options.generation_prompt, options)
    }

    /// `{messages, tools}` as the template is given them, special tokens broken.
    fn input(&self, conversation: &Conversation, options: RenderOptions) -> Result<serde_json::Value, Fault> {
        let messages: Vec<serde_json::Value> = conversation.messages.iter().map(as_json).collect();
        let mut input = json!({"messages": messages, "tools": conversation.tools});
        visit_text(&mut input, &mut |text| match text.chars().find(|&c| is_mark(c)) {
            Some(mark) => Err(Fault::template(format!("a message holds the noncharacter U+{:04X}", u32::from(mark)))),
            None => {
                if !options.special_in_content {
                    *text = self.break_specials(text);
                }
                Ok(())
            }
        })?;
        Ok(input)
    }

    fn run(
        &self,
        messages: &serde_json::Value,
        tools: &serde_json::Value,
        generation_prompt: bool,
        options: RenderOptions,
    ) -> Result<String, Fault> {
        let has_tools = tools.as_array().is_some_and(|tools| !tools.is_empty());
        let mut context = json!({
            "messages": messages,
            "tools": if has_tools { tools.clone() } else { serde_json::Value::Null },
            "documents": null,
            "add_generation_prompt": generation_prompt,
            "bos_token": self.bos,
            "eos_token": self.eos,
        });
        if let Some(thinking) = options.thinking {
            context["enable_thinking"] = thinking.into();
        }
        let template = self.environment.get_template(NAME).map_err(fault)?;
        template.render(Value::from(Serde(&context))).map_err(fault)
    }

    /// Puts a mark into every special token of `text`.
    fn break_specials(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((at, token)) = self.next_special(rest) {
            let first = token.chars().next().map_or(0, char::len_utf8);
            out.push_str(&rest[..at + first]);
            out.push(BROKEN);
            // Only its first character is passed: what follows may begin another special token.
            rest = &rest[at + first..];
        }
        out + rest
    }

    /// The first special token of `text`, the longest where several begin.
    fn next_special(&self, text: &str) -> Option<(usize, &str)> {
        // No further than there: whoever cuts a text asks again for what is behind it.
        let mut places = text.char_indices().filter(|(_, c)| self.firsts.contains(c));
        places.find_map(|(at, _)| {
            let token = self.specials.iter().find(|token| text[at..].starts_with(token.as_str()))?;
            Some((at, token.as_str()))
        })
    }

    /// Cuts `text` at its special tokens into pieces.
    fn cut(&self, text: &str, message: Option<usize>, pieces: &mut Vec<Piece>) {
        let part = if message.is_some() { Part::Body } else { Part::Frame };
        let mut push = |text: &str, special| {
            let text = without_marks(text);
            if !text.is_empty() {
                pieces.push(Piece { text, special, message, part });
            }
        };
        let mut rest = text;
        while let Some((at, token)) = self.next_special(rest) {
            push(&rest[..at], false);
            push(token, true);
            rest = &rest[at + token.len()..];
        }
        push(rest, false);
    }
}

/// The spans between marks; the n-th is the n-th message of the assistant.
fn marked_spans(text: &str, messages: &[Message]) -> Result<Vec<Span>, Fault> {
    let starts: Vec<usize> = text.match_indices(BEGIN).map(|(at, _)| at).collect();
    let ends: Vec<usize> = text.match_indices(END).map(|(at, _)| at).collect();
    let speakers: Vec<usize> = (0..messages.len()).filter(|&index| messages[index].role == Role::Assistant).collect();
    if starts.len() != speakers.len() || ends.len() != speakers.len() || starts.iter().zip(&ends).any(|(start, end)| end < start) {
        let what = format!("{} generation blocks for {} messages of the assistant", starts.len(), speakers.len());
        return Err(Fault::template(what));
    }
    Ok(speakers.into_iter().zip(starts.into_iter().zip(ends)).map(|(message, (start, end))| Span { message, start, end }).collect())
}

/// The last special token of a message, if only white space follows, is its end, and that white space the template's.
fn mark_end(pieces: &mut [Piece]) {
    let Some(last) = pieces.iter().rposition(|piece| piece.special) else { return };
    if pieces[last + 1..].iter().all(|piece| piece.text.trim().is_empty()) {
        pieces[last].part = Part::End;
        pieces[last + 1..].iter_mut().for_each(|piece| piece.part = Part::Frame);
    }
}

/// A message as `transformers` hands it to a template.
fn as_json(message: &Message) -> serde_json::Value {
    let mut out = json!({"role": message.role.name(), "content": message.content});
    if let Some(reasoning) = &message.reasoning {
        out["reasoning_content"] = json!(reasoning);
    }
    if !message.tool_calls.is_empty() {
        let call = |c: &crate::ToolCall| json!({"type": "function", "function": {"name": c.name, "arguments": c.arguments}});
        out["tool_calls"] = message.tool_calls.iter().map(call).collect();
    }
    out
}

/// Applies `edit` to every text in `value`, the keys of objects among them: those of arguments and schemas are anybody's.
fn visit_text(value: &mut serde_json::Value, edit: &mut impl FnMut(&mut String) -> Result<(), Fault>) -> Result<(), Fault> {
    match value {
        serde_json::Value::String(text) => edit(text),
        serde_json::Value::Array(list) => list.iter_mut().try_for_each(|value| visit_text(value, edit)),
        serde_json::Value::Object(map) => {
            for (mut key, mut value) in std::mem::take(map) {
                edit(&mut key)?;
                visit_text(&mut value, edit)?;
                map.insert(key, value);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// `{% generation %}` is no tag of Jinja. As a filter block it has the same white space and can mark what it wraps.
fn generation_as_filter(source: &str) -> (String, bool) {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut found = false;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let Some(close) = rest.find("%}") else { break };
        let sign = |c: char| c == '-' || c == '+';
        let name = rest[..close].trim_matches(sign).trim();
        let replacement = match name {
            "generation" => "filter generation",
            "endgeneration" => "endfilter",
            _ => continue,
        };
        found = true;
        out.push_str(&rest[..close].replacen(name, replacement, 1));
        rest = &rest[close..];
    }
    (out + rest, found)
}

/// Jinja as `transformers` sets it up for chat templates.
fn environment() -> Result<Environment<'static>, Fault> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(fault)?);
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    fill::bound(&mut environment);
    environment.add_function("raise_exception", |message: String| Err::<Value, _>(Error::new(ErrorKind::InvalidOperation, message)));
    let date = |format: String| strftime_now(&format).map_err(|what| Error::new(ErrorKind::InvalidOperation, what));
    environment.add_function("strftime_now", date);
    environment.add_filter("generation", |text: String| format!("{BEGIN}{text}{END}"));
    environment.add_filter("tojson", |value: Value, options: Kwargs| {
        let value = serde_json::to_value(&value).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
        let separators: Option<Vec<String>> = options.get("separators")?;
        let separators = separators.map(<[String; 2]>::try_from).transpose();
        let style = Style {
            indent: options.get::<Option<usize>>("indent")?.map(|spaces| spaces.min(16)),
            separators: separators.map_err(|_| Error::new(ErrorKind::InvalidOperation, "`separators` are two texts"))?,
            sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or_default(),
            ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or_default(),
        };
        options.assert_all_used()?;
        Ok(style.dumps(&value))
    });
    Ok(environment)
}

fn fault(error: Error) -> Fault {
    let line = error.line().map(|line| format!("line {line}: ")).unwrap_or_default();
    // `to_string` would repeat the name it gives to templates without one.
    Fault::template(format!("{line}{}{}", error.kind(), error.detail().map(|detail| format!(": {detail}")).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::time::{Duration, Instant};

    use super::*;

    fn jinja(specials: impl IntoIterator<Item = String>) -> Jinja {
        let mut specials: Vec<String> = specials.into_iter().collect();
        specials.sort_by_key(|token| Reverse(token.len()));
        let firsts = specials.iter().filter_map(|token| token.chars().next()).collect();
        Jinja { specials, firsts, ..Jinja::new("", &Tokenizer::byte_level([], 0).unwrap()).unwrap() }
    }

    #[test]
    fn the_first_special_token_is_found_the_longest_where_several_begin() {
        let tokens = ["<a>", "<a>b", "a>", "b", "ü<"];
        let jinja = jinja(tokens.map(String::from));
        let mut texts = vec![String::new()];
        for _ in 0..5 {
            texts = texts.iter().flat_map(|text| ["", "<", "a", ">", "b", "ü"].map(|next| format!("{text}{next}"))).collect();
        }
        for text in texts {
            let found = tokens.iter().filter_map(|token| Some((text.find(*token)?, *token)));
            assert_eq!(jinja.next_special(&text), found.min_by_key(|(at, token)| (*at, Reverse(token.len()))), "{text}");
        }
    }

    /// As Llama 3 has them. A search for each token through all that is left would look at 128 GB here.
    #[test]
    fn many_special_tokens_in_a_long_message_take_no_time() {
        let reserved = (0..250).map(|i| format!("<|reserved_special_token_{i}|>"));
        let jinja = jinja(reserved.chain(["<|eot_id|>".into()]));
        let text = "<|eot_id|>, as it is written thirty more\n".repeat(5000);
        let begun = Instant::now();
        assert_eq!(jinja.break_specials(&text).matches(BROKEN).count(), 5000);
        let mut pieces = Vec::new();
        jinja.cut(&text, None, &mut pieces);
        assert_eq!(pieces.iter().filter(|piece| piece.special).count(), 5000);
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    }
}
