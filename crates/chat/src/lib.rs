//! From a file of conversations to token ids with a trained/masked flag.
//!
//! A row of a data set ([`Dataset`]) is an [`Example`]; a [`Template`] renders a chat into pieces that know who says them; [`encode`] turns
//! them into token ids of a [`Tokenizer`], each learnt or only read; [`plan`](plan::plan) lays out an epoch; a [`Batch`] is what the model
//! takes. There is no tensor library in here, and nothing draws random numbers, starts threads or prints.
//!
//! Special tokens written in the data are text: nobody can forge a turn by writing `<|im_end|>` into a message.

mod batch;
mod conversation;
mod encode;
mod error;
mod formats;
pub mod plan;
pub mod preview;
mod shard;
mod template;
mod tokenizer;

pub use batch::{Batch, IGNORE, PADDING};
pub use conversation::{Conversation, Example, Message, Role, ToolCall};
pub use encode::{Dropped, EncodeOptions, Encoded, Outcome, TrainOn, TrainOnEos, Truncation, encode, encode_prompt};
pub use error::{ChatError, Fault};
pub use formats::{Dataset, ReadOptions, Splits, files, in_part};
pub use shard::{index_shards, shard};
pub use template::{Jinja, Part, Piece, RenderOptions, Template};
pub use tokenizer::{DecodeStream, Place, Token, TokenType, Tokenizer, Vocabulary};
