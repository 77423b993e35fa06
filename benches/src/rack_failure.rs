//! The first failure among the actors of a rack, which ends the measurement.

use anyhow::{Result, bail};
use farcall::rack::sim::{Next, Turn};

/// The first failure, if there was one.
#[derive(Debug, Default)]
pub(crate) struct Failure(Option<String>);

impl Failure {
    /// The actor's turn. One that has failed takes no further turns.
    pub(crate) fn turn(&mut self, turn: Result<Turn>) -> Turn {
        turn.unwrap_or_else(|error| {
            self.0.get_or_insert(format!("{error:#}"));
            Turn::then(Next::Never)
        })
    }

    /// # Errors
    /// What has failed, of `whom`.
    pub(crate) fn check(&self, whom: &str) -> Result<()> {
        match &self.0 {
            Some(failure) => bail!("{whom} failed: {failure}"),
            None => Ok(()),
        }
    }
}
