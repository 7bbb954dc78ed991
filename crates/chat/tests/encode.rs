//! Masks, truncation, epochs, batches and the preview.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use bellows_chat::plan::{Mode, Stop, interleave, longest_first, mix, plan, split};
use bellows_chat::preview::{Lengths, Style, tokens};
use bellows_chat::{
    Batch, Conversation, Dataset, Dropped, EncodeOptions, Encoded, Example, Fault, IGNORE, Jinja, Message, Outcome, PADDING, ReadOptions,
    Role, Template, Tokenizer, ToolCall, TrainOn, TrainOnEos, Truncation, encode,
};
use proptest::prelude::*;

/// The finaliser of SplitMix64.
fn draw(seed: u64) -> impl Fn(u64) -> u64 {
    move |index| {
        let mut z = (index ^ (seed << 32)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn bytes() -> Tokenizer {
    Tokenizer::byte_level([], 0).unwrap()
}

fn kept(example: &Example, options: &EncodeOptions) -> Encoded {
    match encode(example, &bytes(), &Template::Qwen25, options).unwrap() {
        Outcome::Kept(mut kept) if kept.len() == 1 => kept.remove(0),
        other => panic!("{other:?}"),
    }
}

/// What is learnt, turns apart.
fn learnt(example: &Example, options: &EncodeOptions) -> Vec<String> {
    let (encoded, tokenizer) = (kept(example, options), bytes());
    let runs = encoded.trained.chunk_by(|a, b| a == b).scan(0, |at, run| {
        *at += run.len();
        Some((run[0], tokenizer.decode(&encoded.ids[*at - run.len()..*at], false).unwrap()))
    });
    runs.filter(|(trained, _)| *trained).map(|(_, text)| text).collect()
}

/// System, a question, a call, its answer, an answer, a question, an answer.
fn agent() -> Conversation {
    let call = ToolCall { name: "f".into(), arguments: serde_json::json!({}) };
    let messages = vec![
        Message::new(Role::System, "s"),
        Message::new(Role::User, "q1"),
        Message { tool_calls: vec![call], ..Message::new(Role::Assistant, "") },
        Message::new(Role::Tool, "r"),
        Message::new(Role::Assistant, "a1"),
        Message::new(Role::User, "q2"),
        Message::new(Role::Assistant, "a2"),
    ];
    Conversation { messages, tools: vec![] }
}

const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|im_end|>";

#[test]
fn every_choice_of_what_is_learnt() {
    let chat = Example::Chat(agent());
    let options = EncodeOptions::default();
    assert_eq!(learnt(&chat, &options), [CALL, "a1<|im_end|>", "a2<|im_end|>"]);
    assert_eq!(learnt(&chat, &EncodeOptions { train_on: TrainOn::LastAssistant, ..options.clone() }), ["a2<|im_end|>"]);
    assert_eq!(learnt(&chat, &EncodeOptions { train_on: TrainOn::Completion, ..options.clone() }), ["a2<|im_end|>"]);
    let all = learnt(&chat, &EncodeOptions { train_on: TrainOn::All, ..options.clone() });
    assert_eq!(all, [Template::Qwen25.render(&agent(), Default::default()).unwrap()]);
    let last = EncodeOptions { train_on_eos: TrainOnEos::Last, ..options.clone() };
    assert_eq!(learnt(&chat, &last), [CALL.strip_suffix("<|im_end|>").unwrap(), "a1", "a2<|im_end|>"]);
    let every = learnt(&chat, &EncodeOptions { train_on_eos: TrainOnEos::All, ..options.clone() });
    assert_eq!(every, ["<|im_end|>", "<|im_end|>", CALL, "<|im_end|>", "a1<|im_end|>", "<|im_end|>", "a2<|im_end|>"]);
    let roles = EncodeOptions { roles: vec![Role::User, Role::Tool], ..options.clone() };
    assert_eq!(learnt(&chat, &roles), ["q1<|im_end|>", "\n<tool_response>\nr\n</tool_response><|im_end|>", "q2<|im_end|>"]);

    let mut steps = agent();
    steps.messages.truncate(5);
    assert_eq!(learnt(&Example::Chat(steps), &EncodeOptions { train_on: TrainOn::Completion, ..options.clone() }), [CALL, "a1<|im_end|>"]);

    let mut flagged = agent();
    (flagged.messages[1].train, flagged.messages[4].train) = (Some(true), Some(false));
    assert_eq!(learnt(&Example::Chat(flagged), &options), ["q1<|im_end|>", CALL, "a2<|im_end|>"]);
}

#[test]
fn prompts_and_text() {
    let options = EncodeOptions::default();
    let prompt = Example::Prompt { prompt: "1+1=".into(), completion: "2".into() };
    assert_eq!(learnt(&prompt, &options), ["2<|im_end|>"]);
    assert_eq!(learnt(&prompt, &EncodeOptions { train_on: TrainOn::All, ..options.clone() }), ["1+1=2<|im_end|>"]);
    assert_eq!(learnt(&Example::Text("iron".into()), &options), ["iron<|im_end|>"]);
    // Sets of running text have empty rows between its parts.
    let empty = encode(&Example::Text(String::new()), &bytes(), &Template::Qwen25, &options).unwrap();
    assert_eq!(empty, Outcome::Dropped(Dropped::Empty));
}

#[test]
fn a_prompt_of_messages_is_read_unless_all_is_learnt() {
    let said = |role, text: &str| Message { prompt: true, ..Message::new(role, text) };
    let prompt = vec![said(Role::User, "q1"), said(Role::Assistant, "a1"), said(Role::User, "q2")];
    let messages = [prompt, vec![Message::new(Role::Assistant, "a2")]].concat();
    let mut conversation = Conversation { messages, tools: vec![] };
    let with = |train_on| EncodeOptions { train_on, ..EncodeOptions::default() };
    let chat = Example::Chat(conversation.clone());
    for train_on in [TrainOn::Assistant, TrainOn::LastAssistant, TrainOn::Completion] {
        assert_eq!(learnt(&chat, &with(train_on)), ["a2<|im_end|>"]);
    }
    assert_eq!(learnt(&chat, &with(TrainOn::All)), [Template::Qwen25.render(&conversation, Default::default()).unwrap()]);
    // Nor are the ends of its turns, which two answers have in common.
    let ends = EncodeOptions { train_on_eos: TrainOnEos::All, ..EncodeOptions::default() };
    assert_eq!(learnt(&chat, &ends), ["a2<|im_end|>"]);
    let mut follow_up = conversation.clone();
    follow_up.messages.push(Message::new(Role::User, "q3"));
    assert_eq!(learnt(&Example::Chat(follow_up), &ends), ["a2<|im_end|>", "<|im_end|>"]);
    // What the row says of a turn is stronger.
    conversation.messages[1].train = Some(true);
    assert_eq!(learnt(&Example::Chat(conversation), &with(TrainOn::Assistant)), ["a1<|im_end|>", "a2<|im_end|>"]);
}

#[test]
fn a_token_over_the_border_of_two_pieces_is_not_learnt() {
    // "\n" of the frame and "\n" of the answer are one token here.
    let tokenizer = Tokenizer::byte_level(["a\n\n a\n\n"], 2).unwrap();
    let messages = vec![Message::new(Role::User, "q"), Message::new(Role::Assistant, "\nb")];
    let chat = Example::Chat(Conversation { messages, tools: vec![] });
    let Outcome::Kept(kept) = encode(&chat, &tokenizer, &Template::ChatMl, &EncodeOptions::default()).unwrap() else { panic!() };
    let learnt: Vec<u32> = kept[0].ids.iter().zip(&kept[0].trained).filter(|(_, trained)| **trained).map(|(&id, _)| id).collect();
    assert_eq!(tokenizer.decode(&learnt, false).unwrap(), "b<|im_end|>");
}

/// As `tokenizers` cuts the chat as a whole.
#[test]
fn special_tokens_that_strip_take_the_white_space_beside_them() {
    let dir = tempfile::tempdir().unwrap();
    bytes().save(dir.path()).unwrap();
    let path = dir.path().join("tokenizer.json");
    let plain: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let source = "{% for m in messages %}<|im_start|>\n{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>\n{% endif %}";
    let conversation = Conversation { messages: vec![Message::new(Role::User, "q "), Message::new(Role::Assistant, "ab ")], tools: vec![] };
    for (token, side, answer) in [
        ("<|im_start|>", "lstrip", "ab <|im_end|>"),
        ("<|im_start|>", "rstrip", "ab <|im_end|>"),
        ("<|im_end|>", "lstrip", "ab<|im_end|>"),
        ("<|im_end|>", "rstrip", "ab <|im_end|>"),
    ] {
        let mut json = plain.clone();
        let added = json["added_tokens"].as_array_mut().unwrap().iter_mut().find(|added| added["content"] == token).unwrap();
        added[side] = true.into();
        std::fs::write(&path, json.to_string()).unwrap();
        let tokenizer = Tokenizer::from_file(&path).unwrap();
        let template = Template::Jinja(Jinja::new(source, &tokenizer).unwrap());
        let chat = Example::Chat(conversation.clone());
        let Outcome::Kept(kept) = encode(&chat, &tokenizer, &template, &EncodeOptions::default()).unwrap() else { panic!() };
        let text = template.render(&conversation, Default::default()).unwrap();
        assert_eq!(kept[0].ids, tokenizer.encode(&text, true).unwrap(), "{token} {side}");
        let learnt: Vec<u32> = kept[0].ids.iter().zip(&kept[0].trained).filter(|(_, trained)| **trained).map(|(&id, _)| id).collect();
        assert_eq!(tokenizer.decode(&learnt, false).unwrap(), answer, "{token} {side}");
    }
}

#[test]
fn truncation() {
    let with = |truncation, max_seq_length| EncodeOptions { truncation, max_seq_length, ..EncodeOptions::default() };
    let chat = Example::Chat(agent());
    let whole = kept(&chat, &EncodeOptions::default());
    let n = whole.len();
    let start = kept(&chat, &with(Truncation::KeepStart, n - 5));
    assert_eq!((start.ids.as_slice(), start.cut), (&whole.ids[..n - 5], 5));
    let end = kept(&chat, &with(Truncation::KeepEnd, n - 5));
    assert_eq!((end.ids.as_slice(), end.trained.as_slice()), (&whole.ids[5..], &whole.trained[5..]));
    assert_eq!(kept(&chat, &with(Truncation::Split, n - 5)), start);
    let outcome = |example: &Example, options: &EncodeOptions| encode(example, &bytes(), &Template::Qwen25, options);
    let dropped = |reason| Outcome::Dropped(reason);
    assert_eq!(outcome(&chat, &with(Truncation::Drop, n - 1)).unwrap(), dropped(Dropped::TooLong { tokens: n }));
    assert_eq!(outcome(&chat, &with(Truncation::KeepStart, 10)).unwrap(), dropped(Dropped::NothingLeft { tokens: n }));
    assert!(
        matches!(outcome(&chat, &with(Truncation::Refuse, n - 1)), Err(Fault::TooLong { tokens, limit }) if (tokens, limit) == (n, n - 1))
    );
    assert!(outcome(&chat, &with(Truncation::Refuse, n)).is_ok());
    assert!(outcome(&chat, &with(Truncation::Drop, 1)).unwrap_err().to_string().contains("max_seq_length is 1"));
    let Outcome::Kept(parts) = outcome(&Example::Text("0123456789".into()), &with(Truncation::Split, 5)).unwrap() else { panic!() };
    // The eleventh token, the end of the text, would be alone and so cannot be learnt.
    assert_eq!(parts.iter().map(Encoded::len).collect::<Vec<_>>(), [5, 5]);
}

#[test]
fn nothing_to_learn_is_an_error() {
    let fault = |example: Example| encode(&example, &bytes(), &Template::Qwen25, &EncodeOptions::default()).unwrap_err().to_string();
    let question = Conversation { messages: vec![Message::new(Role::User, "q")], tools: vec![] };
    assert!(fault(Example::Chat(question)).contains("no message of the assistant"));
    assert!(fault(Example::Tokens { ids: vec![1, 2], trained: vec![true, false] }).contains("every label but the first is -100"));
    assert!(fault(Example::Tokens { ids: vec![5], trained: vec![true] }).contains("one token alone has nothing before it"));
    assert!(fault(Example::Tokens { ids: vec![1, 999], trained: vec![true, true] }).contains("`input_ids[1]` is 999"));
    let mut unlearnt = agent();
    unlearnt.messages.iter_mut().for_each(|message| message.train = Some(false));
    assert!(fault(Example::Chat(unlearnt)).contains("marked"));
}

#[test]
fn the_line_is_named_where_encoding_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    std::fs::write(&path, "\n{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}\n").unwrap();
    let dataset = Dataset::open(&path, &ReadOptions::default()).unwrap();
    let fault = encode(&dataset.get(0).unwrap(), &bytes(), &Template::ChatMl, &EncodeOptions::default()).unwrap_err();
    let error = fault.on_line(&path, dataset.line(0)).to_string();
    assert!(error.contains("a.jsonl:2: none of the 9 tokens is trained"), "{error}");
}

#[test]
fn a_batch_by_hand() {
    let example = |ids: &[u32], trained: &[bool]| Encoded { ids: ids.to_vec(), trained: trained.to_vec(), cut: 0 };
    // Padding has the id of a real token (9), and the first token of the second document is marked as learnt.
    let (a, b, c) = (example(&[1, 9, 3], &[false, true, true]), example(&[4, 5], &[true, true]), example(&[6, 7], &[false, true]));
    let batch = Batch::new(&[vec![&a, &b], vec![&c]], 9, 4);
    let i = IGNORE;
    let p = PADDING;
    assert_eq!((batch.rows, batch.seq), (2, 8));
    assert_eq!(batch.ids, [1, 9, 3, 4, 5, 9, 9, 9, 6, 7, 9, 9, 9, 9, 9, 9]);
    assert_eq!(batch.labels, [9, 3, i, 5, i, i, i, i, 7, i, i, i, i, i, i, i]);
    assert_eq!(batch.positions, [0, 1, 2, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(batch.documents, [0, 0, 0, 1, 1, p, p, p, 0, 0, p, p, p, p, p, p]);
    assert_eq!((batch.targets(), batch.padding()), (a.targets() + b.targets() + c.targets(), 9));
}

#[test]
fn grouping_and_packing_save_padding() {
    let lengths: Vec<usize> = (0..1000).map(|i| 10 + (draw(3)(i) % 500) as usize).collect();
    let report = Lengths { kept: lengths, ..Lengths::default() };
    let padding = |mode| report.padding(8, mode, 1, draw(0));
    let (shuffle, group, pack) = (padding(Mode::Shuffle), padding(Mode::GroupByLength), padding(Mode::Pack { capacity: 1024 }));
    assert!(shuffle > 0.3 && group < 0.05 && pack < 0.02, "{shuffle} {group} {pack}");
}

#[test]
fn the_longest_row_can_come_first() {
    let lengths = [5, 3, 9, 1, 10, 8, 4, 18, 2];
    let after = |mut batches: Vec<Vec<Vec<usize>>>| {
        longest_first(&mut batches, &lengths);
        batches
    };
    let row = |i: usize| vec![i];
    // 18 is the length of 7, and of 4 and 5 together; the first of them wins.
    let packed = vec![4, 5];
    assert_eq!(
        after(vec![vec![row(0), row(1)], vec![row(2), packed.clone()], vec![row(7)]]),
        [vec![packed.clone(), row(1)], vec![row(2), row(0)], vec![row(7)]]
    );
    assert_eq!(after(vec![vec![row(7), row(1)], vec![packed.clone()]]), [vec![row(7), row(1)], vec![packed]], "it is the first");
    // Not alone in the batch of fewer rows.
    assert_eq!(after(vec![vec![row(7)], vec![row(0), row(1)]]), [vec![row(7), row(1)], vec![row(0)]]);
    assert!(after(Vec::new()).is_empty());
}

#[test]
fn mixing_and_splitting() {
    let rows = mix(&[10, 100], &[2.5, 0.1], draw(1));
    let of = |set| rows.iter().filter(|row| row.0 == set).count();
    assert_eq!((of(0), of(1)), (25, 10));
    assert!((0..10).all(|row| (2..=3).contains(&rows.iter().filter(|&&r| r == (0, row)).count())));
    assert_ne!(rows, mix(&[10, 100], &[2.5, 0.1], draw(2)));
    let (train, valid) = split(10, 3, draw(0));
    let mut all = [train.clone(), valid.clone()].concat();
    all.sort_unstable();
    assert_eq!((train.len(), valid.len(), all), (7, 3, (0..10).collect()));
}

#[test]
fn sets_are_drawn_with_their_probabilities() {
    let (sizes, odds) = ([100, 1000, 300], [1.0, 2.0, 1.0]);
    let rows = interleave(&sizes, &odds, Stop::FirstExhausted, draw(1));
    let of = |rows: &[(usize, usize)], set| rows.iter().filter(|row| row.0 == set).count();
    // It ends with the last row of the first set that has none left; half of all rows are of the second.
    assert_eq!((rows.last().unwrap().0, of(&rows, 0)), (0, 100));
    let share = of(&rows, 1) as f64 / rows.len() as f64;
    assert!((0.43..0.57).contains(&share), "{share}");
    let mut seen = rows.clone();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), rows.len(), "no row is there twice");
    let all = interleave(&sizes, &odds, Stop::AllExhausted, draw(1));
    assert!((0..3).all(|set| (0..sizes[set]).all(|row| all.contains(&(set, row)))) && of(&all, 0) > 100);
    assert_eq!(all[..rows.len()], rows, "one goes on where the other ends");
    assert_ne!(rows, interleave(&sizes, &odds, Stop::FirstExhausted, draw(2)));
    assert!(interleave(&[1, 0], &[1.0, 1.0], Stop::AllExhausted, draw(1)).is_empty());
}

#[test]
fn the_preview() {
    let tokenizer = bytes();
    let messages = vec![Message::new(Role::User, "q\u{1b}[31m"), Message::new(Role::Assistant, "a")];
    let chat = Example::Chat(Conversation { messages, tools: vec![] });
    let Outcome::Kept(kept) = encode(&chat, &tokenizer, &Template::ChatMl, &EncodeOptions::default()).unwrap() else { panic!() };
    let plain = tokens(&kept[0], &tokenizer, Style::Plain).unwrap();
    assert_eq!(plain, "<|im_start|>user\nq\\u{1b}[31m<|im_end|>\n<|im_start|>assistant\n⟦a<|im_end|>⟧\n\n(28 tokens, 2 trained)\n");
    let colours = tokens(&kept[0], &tokenizer, Style::Ansi).unwrap();
    assert!(colours.contains("\u{1b}[1;32ma<|im_end|>\u{1b}[0m") && colours.contains("q\\u{1b}[31m"), "{colours:?}");

    let mut lengths = Lengths { kept: (1..=100).collect(), pairs: false, targets: 2525, truncated: 10, dropped: 25 };
    assert_eq!([0.5, 0.9, 0.99, 1.0].map(|q| lengths.quantile(q)), [50, 90, 99, 100]);
    lengths.push(&kept[0]);
    let report = lengths.report(128, 64, draw(0));
    for part in [
        "126, of which 101 kept",
        "truncated  7.9 %, dropped 19.8 %",
        "5078 an epoch, 2527 trained (49.8 %)",
        "p50 50, p90 90, p99 99, max 100",
    ] {
        assert!(report.contains(part), "{part:?} in\n{report}");
    }
    assert!(Lengths::default().report(128, 64, draw(0)).contains("max 0"));
}

#[test]
fn a_preview_of_pairs_counts_pairs() {
    // Both sides are in one batch, so one pair is two rows of 10 with 8 places of padding.
    let pairs = Lengths { kept: [10, 2].repeat(6), pairs: true, targets: 36, truncated: 2, dropped: 2 };
    assert_eq!(pairs.epoch(1, Mode::Shuffle, 1, draw(0)), "6 batches an epoch, 40.0 % padding");
    assert_eq!(pairs.epoch(4, Mode::Shuffle, 1, draw(0)), "2 batches an epoch, 40.0 % padding");
    let report = pairs.report(128, 1, draw(0));
    for part in ["pairs      8, of which 6 kept", "truncated  25.0 %, dropped 25.0 %", "72 an epoch, 36 trained", "40.0 % 40.0 % 40.0 %"] {
        assert!(report.contains(part), "{part:?} in\n{report}");
    }
    assert!(!report.contains("packing"), "{report}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(7), ..ProptestConfig::with_cases(200) })]

    #[test]
    fn an_epoch_has_every_example_once_and_rows_within_their_capacity(
        lengths in prop::collection::vec(1usize..100, 0..200), rows in 1usize..9, mode in 0..3, seed in 0u64..1000,
    ) {
        let mode = [Mode::Shuffle, Mode::GroupByLength, Mode::Pack { capacity: 100 }][mode as usize];
        let epoch = plan(&lengths, rows, mode, draw(seed));
        prop_assert_eq!(&epoch, &plan(&lengths, rows, mode, draw(seed)));
        let mut seen: Vec<usize> = epoch.iter().flatten().flatten().copied().collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
        prop_assert!(epoch.iter().all(|batch| (1..=rows).contains(&batch.len())));
        prop_assert!(epoch.iter().filter(|batch| batch.len() < rows).count() <= 1);
        let filled: Vec<usize> = epoch.iter().flatten().map(|row| row.iter().map(|&index| lengths[index]).sum()).collect();
        if let Mode::Pack { capacity } = mode {
            prop_assert!(filled.iter().all(|&sum| sum <= capacity));
            // No two rows could have been one, but for the bound that best-fit decreasing keeps.
            prop_assert!(filled.iter().filter(|&&sum| 2 * sum <= capacity).count() <= 1);
            prop_assert!(filled.len() * 9 <= 11 * lengths.iter().sum::<usize>().div_ceil(capacity).max(lengths.iter().filter(|&&l| 2 * l > capacity).count()) + 36);
        } else {
            prop_assert!(epoch.iter().flatten().all(|row| row.len() == 1));
        }
    }
}

#[test]
fn a_pair_is_two_examples_or_none() {
    let text = |completion: &str| Box::new(Example::Prompt { prompt: "1+1=".into(), completion: completion.into() });
    let pair = Example::Pair { chosen: text("2"), rejected: text("three") };
    let pairs = EncodeOptions { pairs: true, ..EncodeOptions::default() };
    let outcome = |example: &Example, options: &EncodeOptions| encode(example, &bytes(), &Template::Qwen25, options);
    let Outcome::Kept(both) = outcome(&pair, &pairs).unwrap() else { panic!() };
    assert_eq!(both.iter().map(Encoded::targets).collect::<Vec<_>>(), [2, 6], "the ends of text with them");
    let short = EncodeOptions { max_seq_length: 8, truncation: Truncation::Drop, ..pairs.clone() };
    assert_eq!(outcome(&pair, &short).unwrap(), Outcome::Dropped(Dropped::TooLong { tokens: 10 }));
    let ids = |last| Box::new(Example::Tokens { ids: vec![1, 2, 3, last], trained: vec![true; 4] });
    let split = EncodeOptions { max_seq_length: 2, truncation: Truncation::Split, ..pairs.clone() };
    let Outcome::Kept(both) = outcome(&Example::Pair { chosen: ids(4), rejected: ids(5) }, &split).unwrap() else { panic!() };
    assert_eq!(both.iter().map(|side| (side.len(), side.cut)).collect::<Vec<_>>(), [(2, 2); 2], "not four pieces");
    assert!(outcome(&pair, &EncodeOptions::default()).unwrap_err().to_string().contains("is a pair of answers"));
    assert!(outcome(&text("2"), &pairs).unwrap_err().to_string().contains("is no pair of answers"));
}
