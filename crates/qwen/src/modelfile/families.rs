//! Families whose turns with tools are written in Go. A template is a family's if it renders what the family's does, and refuses what it refuses.

use bellows_chat::{Jinja, RenderOptions, Tokenizer};
use serde_json::{Value, json};

/// Models with one chat template.
pub(super) struct Family {
    /// The template in our words.
    jinja: &'static str,
    /// The same in Go, without the prompt for an answer and with `$bos`, `$eos` and `$gap` to be set.
    go: &'static str,
    /// What stands behind a mark.
    gap: &'static str,
    /// What the Modelfile says of what Go or Ollama does otherwise.
    pub(super) notes: &'static [&'static str],
}

const OFFERED: &str = "# Functions are offered in the first question, as the chat template does it, their JSON in one line, as Ollama writes it; control characters in\n\
    # their answers are written as Go does. The date in the system message is 26 Jul 2024, which the template writes if it is told of no other:\n\
    # Ollama has none in that form.\n";
const IDS: &str = "# Calls and their answers need Ollama 0.12.10 or later. Ids of calls are written as Ollama or its client made them, where the chat template asks for nine\n\
    # characters.\n";
const BLANKS: &str = "# White space around a message stays, where the chat template takes it off.\n";

/// Llama 3.1, 3.2 and 3.3; Mistral 7B v0.3; Mistral Nemo.
pub(super) static FAMILIES: [Family; 3] = [
    Family { jinja: include_str!("llama3.jinja"), go: include_str!("llama3.tmpl"), gap: "", notes: &[OFFERED, BLANKS] },
    Family { jinja: include_str!("mistral.jinja"), go: include_str!("mistral.tmpl"), gap: " ", notes: &[IDS, BLANKS] },
    Family { jinja: include_str!("mistral.jinja"), go: include_str!("mistral.tmpl"), gap: "", notes: &[IDS] },
];

impl Family {
    /// The one whose template this is.
    pub(super) fn of(template: &Jinja, tokenizer: &Tokenizer) -> Option<&'static Self> {
        let probes = probes();
        FAMILIES.iter().find(|family| {
            let own = Jinja::new(&family.source(), tokenizer);
            own.is_ok_and(|own| probes.iter().all(|probe| texts(&own, probe) == texts(template, probe)))
        })
    }

    /// Its template in Jinja.
    pub(super) fn source(&self) -> String {
        format!("{{%- set gap = '{}' -%}}\n{}", self.gap, self.jinja)
    }

    /// Its template in Go. The token that the runner puts before every text is left out.
    pub(super) fn go(&self, tokenizer: &Tokenizer) -> String {
        let written = |id: Option<u32>| id.and_then(|id| tokenizer.token(id)).unwrap_or_default();
        let bos = if tokenizer.leading_bos().is_some() { String::new() } else { written(tokenizer.bos()) };
        let values = [("$bos", bos), ("$eos", written(tokenizer.eos())), ("$gap", self.gap.to_owned())];
        let used = values.into_iter().filter(|(name, _)| self.go.contains(*name));
        let set: String = used.map(|(name, value)| format!("{{{{- {name} := {value:?} -}}}}\n")).collect();
        format!("{set}{}", self.go)
    }
}

/// What a template writes without and with a prompt for an answer; None where it refuses.
fn texts(template: &Jinja, [messages, tools]: &[Value; 2]) -> [Option<String>; 2] {
    [false, true].map(|generation_prompt| {
        let options = RenderOptions { generation_prompt, ..RenderOptions::default() };
        template.render_json(messages, tools, options).ok()
    })
}

/// Messages and tools that tell templates apart.
fn probes() -> Vec<[Value; 2]> {
    let say = |role: &str, text: &str| json!({ "role": role, "content": text });
    let (system, ask, answer) = (say("system", " s\n"), say("user", " a\n"), say("assistant", " b\n"));
    let call =
        |id: &str| json!({ "type": "function", "function": { "name": "f", "arguments": { "x": "\u{fc} \"<", "y": [1, 2.5] } }, "id": id });
    let calling = |calls: Vec<Value>| json!({ "role": "assistant", "content": "wait", "tool_calls": calls });
    let result = |id: &str| json!({ "role": "tool", "content": " {\"\u{fc}\": 1}\n", "tool_call_id": id });
    let (one, two) = ("abcdefgh1", "abcdefgh2");
    let (first, second) = (result(one), result(two));
    let plain = [
        vec![&ask],
        vec![&system, &ask],
        vec![&system, &ask, &answer],
        vec![&system, &ask, &answer, &ask, &answer, &ask],
        vec![&ask, &answer, &system, &ask],
        vec![&ask, &answer, &ask, &system],
        vec![&ask, &ask],
    ];
    let called = calling(vec![call(one)]);
    let several = calling(vec![call(one), call(two)]);
    let [long, nameless] = ["abcdefgh10", ""].map(|id| calling(vec![call(id)]));
    let silent = say("tool", "1");
    let with_tools = [
        vec![&ask],
        vec![&system, &ask, &answer, &ask],
        vec![&ask, &called, &first, &answer],
        vec![&system, &ask, &called, &first, &answer, &ask],
        vec![&system, &ask, &called, &first, &called, &second],
        vec![&ask, &several, &first, &second],
        vec![&ask, &long],
        vec![&ask, &nameless],
        vec![&ask, &called, &silent],
    ];
    let schema = json!({ "type": "object", "properties": { "x": { "type": "string" } } });
    let f = json!({ "type": "function", "function": { "name": "f", "description": "d \u{fc}", "parameters": schema, "return": { "type": "string" } } });
    let g = json!({ "type": "function", "function": { "name": "g", "parameters": {} } });
    let plain = plain.into_iter().map(|messages| [json!(messages), Value::Null]);
    let offered = with_tools.clone().into_iter().map(|messages| [json!(messages), json!([f, g])]);
    // Calls that stand in a talk though nothing is on offer.
    plain.chain(offered).chain(with_tools.into_iter().map(|messages| [json!(messages), Value::Null])).collect()
}
