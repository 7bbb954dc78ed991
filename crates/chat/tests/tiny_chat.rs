//! datasets/tiny-chat, as the quick start uses it: read, encoded with the small tokenizer, laid out, and fair.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::path::Path;

use bellows_chat::{Dataset, EncodeOptions, Example, Message, Outcome, ReadOptions, Splits, Template, Tokenizer, encode};

fn chats(dataset: &Dataset) -> Vec<Vec<Message>> {
    let messages = |example| match example {
        Example::Chat(conversation) => conversation.messages,
        other => panic!("{other:?}"),
    };
    dataset.iter().map(|example| messages(example.unwrap())).collect()
}

#[test]
fn it_is_clean_short_and_answerable() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../datasets/tiny-chat");
    let splits = Splits::open(&dir, &ReadOptions::default()).unwrap();
    let (train, valid) = (chats(&splits.train[0]), chats(&splits.valid[0]));
    assert_eq!((train.len(), valid.len()), (180, 32));
    let texts: Vec<&str> = train.iter().flatten().map(|message| message.content.as_str()).collect();
    let tokenizer = Tokenizer::byte_level(texts.iter().copied(), 300).unwrap();
    for example in splits.train[0].iter().chain(splits.valid[0].iter()) {
        let Outcome::Kept(kept) = encode(&example.unwrap(), &tokenizer, &Template::ChatMl, &EncodeOptions::default()).unwrap() else {
            panic!()
        };
        assert!(kept[0].len() <= 128, "{}", kept[0].len());
    }
    let lines: BTreeSet<Vec<&str>> = train.iter().map(|chat| chat.iter().map(|m| m.content.as_str()).collect()).collect();
    assert_eq!(lines.len(), train.len(), "a chat is there twice");
    for chat in &valid {
        assert!(!lines.contains(&chat.iter().map(|m| m.content.as_str()).collect::<Vec<_>>()), "{chat:?} is in both");
        assert!(chat.iter().skip(1).step_by(2).all(|answer| texts.contains(&answer.content.as_str())), "{chat:?}: an answer never heard");
    }
}
