//! The exit codes of the programs, and the trait by which an error carries its own.
//!
//! Whoever makes an error knows whose fault it is; whoever prints it does not. So every error type that can end a program says which code it
//! ends it with, and an error that wraps another one asks that one: nobody looks through a chain of causes for a type.

use std::error::Error;

/// Why a program ended, as a script sees it. Success is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Something failed while running.
    Failed = 1,
    /// The input or the command line is wrong.
    Usage = 2,
    /// The work is done, and its result could not be saved.
    FinalSave = 3,
    /// Training diverged.
    Diverged = 4,
    /// The device failed or was lost: another attempt, or another device, may do.
    Device = 5,
}

impl Exit {
    /// The process's exit code.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// What another process of these programs ended with; a code that is none of theirs is a failure.
    pub fn of(code: i32) -> Self {
        let known = [Self::Usage, Self::FinalSave, Self::Diverged, Self::Device];
        known.into_iter().find(|exit| i32::from(exit.code()) == code).unwrap_or(Self::Failed)
    }
}

/// An error that knows the code it ends a program with.
pub trait Coded: Error {
    /// That code.
    fn exit(&self) -> Exit;
}
