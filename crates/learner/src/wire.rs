//! What ranks tell each other, as bytes: MessagePack, which has every float as it is.

use bellows_ranks::Exchange;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::LearnError;

/// What every rank says.
///
/// # Errors
/// A rank that is gone, or says something else.
pub(crate) fn tell<T: Serialize + DeserializeOwned>(others: &dyn Exchange, mine: &T) -> Result<Vec<T>, LearnError> {
    let all = others.gather(&pack(mine)?)?;
    all.iter().enumerate().map(|(rank, bytes)| unpack(rank, bytes)).collect()
}

pub(crate) fn pack<T: Serialize>(value: &T) -> Result<Vec<u8>, LearnError> {
    rmp_serde::to_vec_named(value).map_err(|e| LearnError::Config(format!("what ranks tell each other cannot be written: {e}")))
}

/// What `rank` has said.
pub(crate) fn unpack<T: DeserializeOwned>(rank: usize, bytes: &[u8]) -> Result<T, LearnError> {
    rmp_serde::from_slice(bytes).map_err(|e| LearnError::Rank { rank, reason: format!("it says something else than this one: {e}") })
}
