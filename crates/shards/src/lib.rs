//! Samples in tar archives (shards), as WebDataset lays them out: the files of a sample follow each other and share a name up to its first dot, its key
//! (`000123.jpg`, `000123.txt`); what follows the dot is a file's kind.
//!
//! A folder of shards has an index beside them, which says where each file of each sample lies, how long it is and what its CRC-32C is. It is written last, so
//! a folder that has one is complete. Whatever is read is compared with it, header and contents, and a fault is told with file and byte; nothing is ever
//! guessed. A sample is known by its number, counted over all shards, so an order is a list of numbers, and a place in it says shard and offset.
//!
//! It knows no images, no chats and no tensors. It refuses names of files that are paths, files of 4 GiB or more, and an index that does not agree with what
//! lies beside it.

mod error;
mod index;
mod order;
mod read;
mod tar;
mod walk;
mod write;

pub use error::{ShardError, ShardFault};
pub use index::INDEX;
pub use order::Order;
pub use read::Shards;
pub use walk::write_index;
pub use write::Writer;
