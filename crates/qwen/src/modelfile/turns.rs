//! Chat templates of a regular shape (Llama's, Mistral's, Zephyr's, Gemma's, ..): what stands around a message depends on who says it and on whether it is the
//! first. The parts are found by rendering, held against the template over whole conversations, and then written as a Go template.

use bellows_chat::{Conversation, Message, RenderOptions, Role, Template};

/// What stands before a message and after it.
type Around = [String; 2];
type Said<'a> = (Role, &'a str);

/// What a template writes around the messages of a chat without tools.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Turns {
    /// Before the first question, where no system message is.
    opening: String,
    /// Around a system message that comes first, where there is a place for one: the first question follows.
    headed: Option<Around>,
    /// That message stands at the head of the last question, not of the first.
    with_last: bool,
    /// Around a later system message.
    system: Option<Around>,
    /// Around every question; before the first one stands what opens the chat.
    user: Around,
    assistant: Around,
}

impl Turns {
    /// Those of a template, if it is of this shape.
    pub(super) fn of(template: &Template) -> Option<Self> {
        use Role::{Assistant, System, User};
        let text = |said: &[Said<'_>]| render(template, said, false);
        let talk = text(&[(User, "ask-1"), (Assistant, "say-1"), (User, "ask-2"), (Assistant, "say-2")])?;
        let [opening, answering, asking, _, end] = cut(&talk, ["ask-1", "say-1", "ask-2", "say-2"])?;
        let alone = text(&[(User, "ask-1")])?;
        let [_, asked] = cut(&alone, ["ask-1"])?;
        let turns = Self {
            opening: opening.into(),
            headed: text(&[(System, "sys-1"), (User, "ask-1")]).and_then(|text| {
                let [before, after, _] = cut(&text, ["sys-1", "ask-1"])?;
                Some([before.into(), after.into()])
            }),
            with_last: false,
            system: text(&[(User, "ask-1"), (Assistant, "say-1"), (System, "sys-1"), (User, "ask-2")]).and_then(|text| {
                let [_, _, before, after, _] = cut(&text, ["ask-1", "say-1", "sys-1", "ask-2"])?;
                Some([before.strip_prefix(end)?.into(), after.strip_suffix(asking.strip_prefix(end)?)?.into()])
            }),
            user: [asking.strip_prefix(end)?.into(), asked.into()],
            assistant: [answering.strip_prefix(asked)?.into(), end.into()],
        };
        let folded = Self { with_last: true, ..turns.clone() };
        [turns, folded].into_iter().find(|turns| turns.are(template))
    }

    /// Whether they are what the template writes.
    fn are(&self, template: &Template) -> bool {
        use Role::{Assistant, System, User};
        let chat = [(User, "a"), (Assistant, "b b"), (User, "c"), (Assistant, "d"), (User, "e\nf")];
        let headed = [&[(System, "s t")], &chat[..]].concat();
        let late = [&chat[..2], &[(System, "s t")], &chat[2..]].concat();
        let cut_off = [&chat, &headed[..], &late].map(|said| (1..=said.len()).map(|n| said[..n].to_vec()).collect::<Vec<_>>()).concat();
        cut_off.iter().chain([&vec![chat[0], chat[2], chat[1]]]).all(|said| {
            let placed = said.iter().enumerate().all(|(i, (role, _))| match (role, i) {
                (System, 0) => self.headed.is_some() && said.len() > 1,
                (System, _) => self.system.is_some(),
                _ => true,
            });
            // What a template refuses is never asked of it.
            !placed || render(template, said, false).is_none_or(|text| text == self.render(said))
        })
    }

    fn render(&self, said: &[Said<'_>]) -> String {
        let head = said.first().filter(|(role, _)| *role == Role::System).map(|(_, text)| *text);
        let last = said.iter().rposition(|(role, _)| *role == Role::User);
        let (mut out, mut begun) = (String::new(), false);
        for (i, (role, text)) in said.iter().enumerate() {
            let around = match role {
                Role::System if i == 0 => continue,
                Role::System => self.system.as_ref(),
                Role::User => Some(&self.user),
                Role::Assistant | Role::Tool => Some(&self.assistant),
            };
            let Some([before, after]) = around else { continue };
            if *role == Role::User {
                match (head, &self.headed) {
                    (Some(head), Some([before, after])) if !self.with_last && !begun => out.extend([before, head, after]),
                    _ => out.push_str(if begun { before } else { &self.opening }),
                }
                if let (Some(head), Some([_, gap]), true) = (head, &self.headed, self.with_last && last == Some(i)) {
                    out.extend([head, gap]);
                }
                begun = true;
            } else {
                out.push_str(before);
            }
            out.extend([text, after.as_str()]);
        }
        out
    }

    /// Whether a system message that comes first has a place.
    pub(super) fn have_system(&self) -> bool {
        self.headed.is_some()
    }

    /// The same as a Go template, without the prompt for an answer. The runner puts `bos` before every text: it is left out here.
    pub(super) fn go(&self, bos: Option<&str>) -> String {
        let own = |text: &str| literal(bos.and_then(|bos| text.strip_prefix(bos)).unwrap_or(text));
        let [asking, asked] = self.user.each_ref().map(|text| literal(text));
        let [answering, answered] = self.assistant.each_ref().map(|text| literal(text));
        let opening = own(&self.opening);
        let first = match &self.headed {
            Some([before, after]) if !self.with_last => {
                format!("{{{{ if $headed }}}}{}{{{{ $system }}}}{}{{{{ else }}}}{opening}{{{{ end }}}}", own(before), literal(after))
            }
            _ => opening,
        };
        let folded = match &self.headed {
            Some([_, gap]) if self.with_last => {
                format!("{{{{ if and $headed (eq $i $last) }}}}{{{{ $system }}}}{}{{{{ end }}}}", literal(gap))
            }
            _ => String::new(),
        };
        let late = self.system.as_ref().map_or(String::new(), |[before, after]| {
            let [before, after] = [before, after].map(|text| literal(text));
            format!("{{{{- else if and (eq .Role \"system\") (gt $i 0) }}}}{before}{{{{ .Content }}}}{after}\n")
        });
        format!(
            r#"{{{{- $system := "" }}}}{{{{ $headed := false }}}}{{{{ $last := 0 }}}}
{{{{- range $i, $message := .Messages }}}}
{{{{- if and (eq $i 0) (eq .Role "system") }}}}{{{{ $system = .Content }}}}{{{{ $headed = true }}}}{{{{ end }}}}
{{{{- if eq .Role "user" }}}}{{{{ $last = $i }}}}{{{{ end }}}}
{{{{- end }}}}
{{{{- $begun := false }}}}
{{{{- range $i, $message := .Messages }}}}
{{{{- if eq .Role "user" }}}}{{{{ if $begun }}}}{asking}{{{{ else }}}}{first}{{{{ end }}}}{folded}{{{{ .Content }}}}{asked}{{{{ $begun = true }}}}
{{{{- else if eq .Role "assistant" }}}}{answering}{{{{ .Content }}}}{answered}
{late}{{{{- end }}}}
{{{{- end -}}}}
"#
        )
    }
}

/// What a template asks an answer with: where nothing is said, of a model that is to think, and of one that is not to. None of a template that rewrites the
/// turns before; one that says elsewhere that the model is to think asks as if nothing were said.
pub(super) fn prompts(template: &Template) -> Option<[String; 3]> {
    let said = [(Role::System, "s"), (Role::User, "a")];
    let said = if render(template, &said, false).is_some() { &said[..] } else { &said[1..] };
    let before = render(template, said, false)?;
    let prompt = |thinking: Option<bool>| Some(rendered(template, said, true, thinking)?.strip_prefix(&before)?.to_owned());
    let unsaid = prompt(None)?;
    Some([unsaid.clone(), prompt(Some(true)).unwrap_or(unsaid), prompt(Some(false))?])
}

/// The prompt in Go: `Think` is set where the runner was asked for thoughts, or for none.
pub(super) fn go_prompt([unsaid, thinking, silent]: &[String; 3]) -> String {
    let [unsaid_go, thinking_go, silent_go] = [unsaid, thinking, silent].map(|text| literal(text));
    if unsaid == thinking && thinking == silent {
        return unsaid_go;
    }
    if unsaid != thinking {
        return format!(
            "{{{{ if .IsThinkSet }}}}{{{{ if .Think }}}}{thinking_go}{{{{ else }}}}{silent_go}{{{{ end }}}}{{{{ else }}}}{unsaid_go}{{{{ end }}}}"
        );
    }
    format!("{{{{ if and .IsThinkSet (not .Think) }}}}{}{{{{ else }}}}{}{{{{ end }}}}", silent_go, thinking_go)
}

fn render(template: &Template, said: &[Said<'_>], generation_prompt: bool) -> Option<String> {
    rendered(template, said, generation_prompt, None)
}

fn rendered(template: &Template, said: &[Said<'_>], generation_prompt: bool, thinking: Option<bool>) -> Option<String> {
    let messages = said.iter().map(|(role, text)| Message::new(*role, *text)).collect();
    let options = RenderOptions { generation_prompt, thinking, ..RenderOptions::default() };
    template.render(&Conversation { messages, ..Conversation::default() }, options).ok()
}

/// The text before, between and behind these words, each of which comes once and in this order. One more part than words.
fn cut<'a, const N: usize, const M: usize>(text: &'a str, words: [&str; N]) -> Option<[&'a str; M]> {
    let (mut parts, mut rest) = ([""; M], text);
    for (part, word) in parts.iter_mut().zip(words) {
        (*part, rest) = rest.split_once(word)?;
    }
    let last = parts.last_mut()?;
    *last = rest;
    let whole = words.iter().all(|word| !parts.iter().any(|part| part.contains(word)));
    (M == N + 1 && whole).then_some(parts)
}

/// What writes a text as it is, blanks and braces included.
fn literal(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let mut quoted = String::new();
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c => quoted.push(c),
        }
    }
    format!("{{{{ \"{quoted}\" }}}}")
}
