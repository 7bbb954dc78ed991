//! The crate from outside: files PyTorch wrote, files that break a rule, and damaged files.

#[cfg(test)]
mod blocks;
#[cfg(test)]
mod checkpoint;
#[cfg(test)]
mod common;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod gguf;
#[cfg(test)]
mod gguf_hostile;
#[cfg(test)]
mod pt;
#[cfg(test)]
mod refusals;
