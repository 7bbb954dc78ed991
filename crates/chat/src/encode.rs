//! An example to token ids, each with a flag: learnt, or only read.

use crate::conversation::{Conversation, Example, Role};
use crate::{Fault, Part, Piece, Place, RenderOptions, Template, Tokenizer};

/// Which turns are learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainOn {
    /// Every token, the template's own among them.
    All,
    /// What the assistant says (and other roles, if [`EncodeOptions::roles`] names them).
    Assistant,
    /// As `Assistant`, the last such turn only.
    LastAssistant,
    /// As `Assistant`, only what follows the last message of the user.
    Completion,
}

/// Which tokens that end a turn are learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainOnEos {
    /// Those of learnt turns.
    Turn,
    /// Those of every turn, but for those that are part of a prompt and not learnt.
    All,
    /// That of the last learnt turn only.
    Last,
}

/// What becomes of examples over the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncation {
    /// Their end is cut off.
    KeepStart,
    /// Their beginning is cut off.
    KeepEnd,
    /// They are left out.
    Drop,
    /// Text and token ids are cut into several examples; others, and both sides of a pair, as with `KeepStart`.
    Split,
    /// They are an error.
    Refuse,
}

/// How examples become tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Which turns are learnt.
    pub train_on: TrainOn,
    /// Which ends of turns are learnt. Of custom templates only the assistant's are known.
    pub train_on_eos: TrainOnEos,
    /// Whose turns are learnt. Of custom templates only the assistant's are known.
    pub roles: Vec<Role>,
    /// Most tokens of one example.
    pub max_seq_length: usize,
    /// What becomes of longer ones.
    pub truncation: Truncation,
    /// Special tokens written in the messages are taken for real. See [`RenderOptions::special_in_content`].
    pub special_in_content: bool,
    /// Examples are pairs of answers, all of them or none.
    pub pairs: bool,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        EncodeOptions {
            train_on: TrainOn::Assistant,
            train_on_eos: TrainOnEos::Turn,
            roles: vec![Role::Assistant],
            max_seq_length: 2048,
            truncation: Truncation::KeepStart,
            special_in_content: false,
            pairs: false,
        }
    }
}

/// An example as a model reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Whether each is learnt. The first never is: nothing comes before it to predict it from.
    pub trained: Vec<bool>,
    /// Tokens that truncation took away.
    pub cut: usize,
}

impl Encoded {
    /// Tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Tokens that are learnt.
    pub fn targets(&self) -> usize {
        self.trained.iter().skip(1).filter(|&&trained| trained).count()
    }

    fn push(&mut self, id: u32, trained: bool) {
        self.ids.push(id);
        self.trained.push(trained);
    }

    fn slice(&self, range: std::ops::Range<usize>, cut: usize) -> Encoded {
        Encoded { ids: self.ids[range.clone()].to_vec(), trained: self.trained[range].to_vec(), cut }
    }
}

/// Why an example was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// It is text without a character, as data sets of running text have between their parts.
    Empty,
    /// It is over the limit, and [`Truncation::Drop`] was asked for.
    TooLong {
        /// Its tokens.
        tokens: usize,
    },
    /// Nothing that is learnt was left of it within the limit.
    NothingLeft {
        /// Its tokens.
        tokens: usize,
    },
}

/// What became of an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// One piece; several for text that was split; two for a pair, the chosen answer first.
    Kept(Vec<Encoded>),
    /// Nothing.
    Dropped(Dropped),
}

/// Encodes `example`.
///
/// # Errors
/// [`Fault::Kind`] for a pair where none is expected, or the other way round, [`Fault::NoTargets`] if nothing is learnt even before truncation, [`Fault::TooLong`] under [`Truncation::Refuse`], [`Fault::Setting`] for a
/// limit below 2, [`Fault::Value`] for ids outside the vocabulary, and those of the template and the tokenizer.
pub fn encode(example: &Example, tokenizer: &Tokenizer, template: &Template, options: &EncodeOptions) -> Result<Outcome, Fault> {
    if options.max_seq_length < 2 {
        let found = options.max_seq_length.to_string();
        return Err(Fault::Setting { setting: "max_seq_length", found, expected: "at least 2 tokens" });
    }
    if options.pairs {
        let Example::Pair { chosen, rejected } = example else {
            return Err(Fault::Kind { found: "is no pair of answers", expected: "`prompt`, `chosen` and `rejected`" });
        };
        return pair(chosen, rejected, tokenizer, template, options);
    }
    let whole = match example {
        Example::Pair { .. } => {
            return Err(Fault::Kind { found: "is a pair of answers", expected: "one answer, or an objective that learns from pairs" });
        }
        Example::Chat(conversation) => chat(conversation, tokenizer, template, options)?,
        Example::Prompt { prompt, completion } => {
            let mut out = text(prompt, tokenizer, options, options.train_on == TrainOn::All)?;
            // On its own, as it will be when the model continues the prompt.
            let place = if prompt.is_empty() { Place::Start } else { Place::Middle };
            tokenizer.ids(completion, options.special_in_content, place)?.into_iter().for_each(|id| out.push(id, true));
            tokenizer.eos().into_iter().for_each(|id| out.push(id, true));
            out
        }
        Example::Text(given) if given.is_empty() => return Ok(Outcome::Dropped(Dropped::Empty)),
        Example::Text(given) => {
            let mut out = text(given, tokenizer, options, true)?;
            tokenizer.eos().into_iter().for_each(|id| out.push(id, true));
            out
        }
        Example::Tokens { ids, trained } => {
            if let Some((index, id)) = ids.iter().enumerate().find(|&(_, &id)| id as usize >= tokenizer.len()) {
                let found = format!("{id}, and the vocabulary has {} tokens", tokenizer.len());
                return Err(Fault::Value { key: format!("input_ids[{index}]"), found, expected: "a smaller id" });
            }
            Encoded { ids: ids.clone(), trained: trained.clone(), cut: 0 }
        }
    };
    if whole.targets() == 0 {
        return Err(Fault::NoTargets { tokens: whole.len(), why: why_none(example, options) });
    }
    truncate(whole, options, matches!(example, Example::Text(_) | Example::Tokens { .. }))
}

/// The two sides of a pair, or neither.
fn pair(
    chosen: &Example,
    rejected: &Example,
    tokenizer: &Tokenizer,
    template: &Template,
    options: &EncodeOptions,
) -> Result<Outcome, Fault> {
    // A side in pieces would be more examples than two.
    let truncation = if options.truncation == Truncation::Split { Truncation::KeepStart } else { options.truncation };
    let options = EncodeOptions { pairs: false, truncation, ..options.clone() };
    let mut both = Vec::new();
    for side in [chosen, rejected] {
        match encode(side, tokenizer, template, &options)? {
            Outcome::Kept(kept) => both.extend(kept),
            dropped @ Outcome::Dropped(_) => return Ok(dropped),
        }
    }
    Ok(Outcome::Kept(both))
}

/// The ids of text as it is, after the token that begins texts if the model has one.
fn text(text: &str, tokenizer: &Tokenizer, options: &EncodeOptions, trained: bool) -> Result<Encoded, Fault> {
    let mut out = Encoded::default();
    tokenizer.leading_bos().into_iter().for_each(|id| out.push(id, false));
    tokenizer.encode(text, options.special_in_content)?.into_iter().for_each(|id| out.push(id, trained));
    Ok(out)
}

fn chat(conversation: &Conversation, tokenizer: &Tokenizer, template: &Template, options: &EncodeOptions) -> Result<Encoded, Fault> {
    let others = options.roles.iter().any(|&role| role != Role::Assistant)
        || conversation.messages.iter().any(|message| message.role != Role::Assistant && message.train == Some(true));
    // Where all is learnt, whose it is does not matter.
    let ends = options.train_on_eos == TrainOnEos::All && options.train_on != TrainOn::All;
    if (others || ends) && matches!(template, Template::Jinja(_)) {
        let asked = if others { "other roles" } else { "the ends of all turns" };
        return Err(Fault::template(format!("of a custom one only the assistant's part is known, and {asked} are to be trained")));
    }
    let render = RenderOptions { special_in_content: options.special_in_content, ..RenderOptions::default() };
    let pieces = template.pieces(conversation, render)?;
    encode_pieces(&pieces, &trained_pieces(&pieces, conversation, options), tokenizer, options.special_in_content)
}

/// The ids that a chat ends in when the model is to speak next.
///
/// # Errors
/// Those of the template and the tokenizer.
pub fn encode_prompt(
    conversation: &Conversation,
    tokenizer: &Tokenizer,
    template: &Template,
    options: RenderOptions,
) -> Result<Vec<u32>, Fault> {
    let pieces = template.pieces(conversation, RenderOptions { generation_prompt: true, ..options })?;
    Ok(encode_pieces(&pieces, &vec![false; pieces.len()], tokenizer, options.special_in_content)?.ids)
}

/// Which pieces are learnt.
fn trained_pieces(pieces: &[Piece], conversation: &Conversation, options: &EncodeOptions) -> Vec<bool> {
    let messages = &conversation.messages;
    let speaks = |index: usize| options.roles.contains(&messages[index].role);
    let last_speaker = (0..messages.len()).rev().find(|&index| speaks(index));
    let last_user = messages.iter().rposition(|message| message.role == Role::User);
    let turns: Vec<bool> = (0..messages.len())
        .map(|index| {
            messages[index].train.unwrap_or(match options.train_on {
                TrainOn::All => true,
                _ if messages[index].prompt => false,
                TrainOn::Assistant => speaks(index),
                TrainOn::LastAssistant => Some(index) == last_speaker,
                TrainOn::Completion => speaks(index) && Some(index) > last_user,
            })
        })
        .collect();
    let last_turn = turns.iter().rposition(|&trained| trained);
    let trained = |piece: &Piece| {
        let all = options.train_on == TrainOn::All;
        let Some(index) = piece.message.filter(|&index| index < turns.len()) else { return all };
        match (piece.part, options.train_on_eos) {
            (Part::Frame, _) => all && turns[index],
            (Part::Body, _) | (Part::End, TrainOnEos::Turn) => turns[index],
            (Part::End, TrainOnEos::All) => turns[index] || !messages[index].prompt,
            (Part::End, TrainOnEos::Last) => Some(index) == last_turn,
        }
    };
    pieces.iter().map(trained).collect()
}

/// Text between two special tokens is tokenised at once, so that the ids are those of the rendered text as a whole. A token that reaches
/// over the border of a piece is learnt only if both sides are. Some special tokens take the white space beside them into themselves.
fn encode_pieces(pieces: &[Piece], trained: &[bool], tokenizer: &Tokenizer, special_in_content: bool) -> Result<Encoded, Fault> {
    let strips = |piece: &Piece| tokenizer.id(&piece.text).map_or((false, false), |id| tokenizer.strips(id));
    let mut out = Encoded::default();
    let mut at = 0;
    while let Some(piece) = pieces.get(at) {
        if piece.special {
            let id = tokenizer.id(&piece.text);
            let missing = || Fault::template(format!("it writes {}, which is no token of this tokenizer", piece.text));
            out.push(id.ok_or_else(missing)?, trained[at]);
            at += 1;
            continue;
        }
        let end = pieces[at..].iter().position(|piece| piece.special).map_or(pieces.len(), |len| at + len);
        let text: String = pieces[at..end].iter().map(|piece| piece.text.as_str()).collect();
        let flags: Vec<bool> = (at..end).flat_map(|piece| std::iter::repeat_n(trained[piece], pieces[piece].text.len())).collect();
        let before = at.checked_sub(1).is_some_and(|before| strips(&pieces[before]).1);
        let after = pieces.get(end).is_some_and(|next| strips(next).0);
        let start = if before { text.len() - text.trim_start().len() } else { 0 };
        let stop = if after { text.trim_end().len().max(start) } else { text.len() };
        let (text, flags) = (&text[start..stop], &flags[start..stop]);
        let place = if at == 0 { Place::Start } else { Place::AfterSpecial };
        for token in tokenizer.tokens(text, special_in_content, place)? {
            // Tokens that the text has no bytes for (what normalisation adds) go with the next byte.
            let covered = flags.get(token.start..token.end.max(token.start + 1));
            out.push(token.id, covered.is_some_and(|flags| flags.iter().all(|&flag| flag)));
        }
        at = end;
    }
    Ok(out)
}

fn truncate(whole: Encoded, options: &EncodeOptions, splits: bool) -> Result<Outcome, Fault> {
    let (tokens, limit) = (whole.len(), options.max_seq_length);
    if tokens <= limit {
        return Ok(Outcome::Kept(vec![whole]));
    }
    let cut = tokens - limit;
    let mut kept = match options.truncation {
        Truncation::Refuse => return Err(Fault::TooLong { tokens, limit }),
        Truncation::Drop => return Ok(Outcome::Dropped(Dropped::TooLong { tokens })),
        Truncation::Split if splits => (0..tokens).step_by(limit).map(|start| whole.slice(start..tokens.min(start + limit), 0)).collect(),
        Truncation::KeepStart | Truncation::Split => vec![whole.slice(0..limit, cut)],
        Truncation::KeepEnd => vec![whole.slice(cut..tokens, cut)],
    };
    kept.retain(|piece: &Encoded| piece.targets() > 0);
    Ok(if kept.is_empty() { Outcome::Dropped(Dropped::NothingLeft { tokens }) } else { Outcome::Kept(kept) })
}

fn why_none(example: &Example, options: &EncodeOptions) -> String {
    match example {
        Example::Chat(conversation) if !conversation.messages.iter().any(|m| options.roles.contains(&m.role)) => {
            let roles: Vec<&str> = options.roles.iter().map(|role| role.name()).collect();
            format!("there is no message of the {}", roles.join(" or the "))
        }
        Example::Chat(_) => "the messages that would be are marked as not to be trained, or a part of the prompt".into(),
        Example::Prompt { .. } | Example::Pair { .. } => "the completion is empty".into(),
        Example::Text(_) => "the text is empty".into(),
        Example::Tokens { ids, .. } if ids.len() < 2 => "one token alone has nothing before it to be predicted from".into(),
        Example::Tokens { .. } => "every label but the first is -100".into(),
    }
}
