//! Which rank of a run this process is, where another process has said so: in the last words of its command line, or in the environment.

use std::sync::OnceLock;

use crate::words::{RANK, last_words};

/// Which rank a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Which it is on its machine, and how many there are.
    local: (usize, usize),
    /// Where rank 0 waits.
    pub(crate) address: String,
    /// Rank 0 has started it.
    started: bool,
}

impl Place {
    /// That of a process whose last word is `1/4@127.0.0.1:4711`.
    fn of_word(word: &str) -> Option<Self> {
        let (numbers, address) = word.split_once('@')?;
        let (rank, ranks) = numbers.split_once('/')?;
        let (rank, ranks) = (rank.parse().ok()?, ranks.parse().ok()?);
        Some(Self { rank, ranks, local: (rank, ranks), address: address.into(), started: true })
    }

    /// That of a process whom the environment says so; `None` where it names no other rank.
    fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let number = |name: &str| match variable(name) {
            Some(text) => {
                text.trim().parse::<usize>().map(Some).map_err(|_| format!("{name} in the environment is {text:?}, and no number"))
            }
            None => Ok(None),
        };
        let needed = |name: &str| {
            format!("WORLD_SIZE is in the environment and {name} is not: every rank needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT")
        };
        let Some(ranks) = number("WORLD_SIZE")?.filter(|&ranks| ranks > 1) else { return Ok(None) };
        let rank = number("RANK")?.ok_or_else(|| needed("RANK"))?;
        if rank >= ranks {
            return Err(format!("RANK is {rank} of WORLD_SIZE {ranks} in the environment: they count from 0"));
        }
        let host = variable("MASTER_ADDR").ok_or_else(|| needed("MASTER_ADDR"))?;
        let port = number("MASTER_PORT")?.ok_or_else(|| needed("MASTER_PORT"))?;
        let local = (number("LOCAL_RANK")?.unwrap_or(0), number("LOCAL_WORLD_SIZE")?.unwrap_or(1).max(1));
        Ok(Some(Self { rank, ranks, local, address: format!("{host}:{port}"), started: false }))
    }
}

/// Which rank this process is, if somebody else has said so: before it has started others itself.
pub(crate) fn told() -> Result<Option<Place>, String> {
    static TOLD: OnceLock<Option<Place>> = OnceLock::new();
    if let Some(place) = TOLD.get() {
        return Ok(place.clone());
    }
    let place = match last_words(RANK) {
        Some(word) => Place::of_word(&word.to_string_lossy()),
        None => Place::of_environment(|name| std::env::var(name).ok())?,
    };
    Ok(TOLD.get_or_init(|| place).clone())
}

/// Which rank this process is: 0, if it is the only one or has started the others.
pub(crate) fn rank() -> usize {
    told().ok().flatten().map_or(0, |place| place.rank)
}

/// Whether rank 0 has started this process.
pub(crate) fn is_started() -> bool {
    told().ok().flatten().is_some_and(|place| place.started)
}

/// Of so many ranks: which this is on its machine, and how many are there.
pub fn local_rank(ranks: usize) -> (usize, usize) {
    told().ok().flatten().map_or((0, ranks), |place| place.local)
}

/// What stands before all that this process has to say, where it is not the one that speaks for all.
pub(crate) fn prefix() -> String {
    match rank() {
        0 => String::new(),
        rank => format!("rank {rank}: "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_which_rank_it_is() {
        let started = Place { rank: 1, ranks: 4, local: (1, 4), address: "127.0.0.1:4711".into(), started: true };
        assert_eq!(Place::of_word("1/4@127.0.0.1:4711"), Some(started));
        assert_eq!(["1/4", "x/4@a:1", ""].map(Place::of_word), [None, None, None]);
        let of = |pairs: &'static [(&str, &str)]| {
            Place::of_environment(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string()))
        };
        assert_eq!(of(&[("RANK", "3")]), Ok(None));
        assert_eq!(of(&[("WORLD_SIZE", "1"), ("RANK", "0")]), Ok(None), "alone");
        let all = of(&[
            ("WORLD_SIZE", "4"),
            ("RANK", "3"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "29500"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
        ]);
        assert_eq!(all, Ok(Some(Place { rank: 3, ranks: 4, local: (1, 2), address: "a:29500".into(), started: false })));
        assert!(of(&[("WORLD_SIZE", "4"), ("RANK", "4")]).unwrap_err().contains("count from 0"));
        assert!(of(&[("WORLD_SIZE", "4"), ("RANK", "0")]).unwrap_err().contains("MASTER_ADDR is not"));
        assert!(of(&[("WORLD_SIZE", "many")]).unwrap_err().contains("no number"));
    }
}
