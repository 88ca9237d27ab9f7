//! What is wrong with a flag.

use thiserror::Error;

/// A flag, or two flags together, that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("--{flag}: {problem}")]
pub struct ConfigError {
    /// The flag without its dashes.
    pub flag: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl ConfigError {
    pub(crate) fn new(flag: &'static str, problem: impl Into<String>) -> Self {
        Self { flag, problem: problem.into() }
    }
}

/// Refuses what a flag says, if it is wrong.
pub(super) fn refuse(
    is_wrong: bool,
    flag: &'static str,
    problem: impl Into<String>,
) -> Result<(), ConfigError> {
    if is_wrong { Err(ConfigError::new(flag, problem)) } else { Ok(()) }
}
