//! The messages from a machine to the host: lines of its console with the token of this run.
//!
//! Everything else on the console is output of COMMAND or the kernel. The token is random and removed from
//! the machine before COMMAND starts, so that no output is mistaken for a status by accident.

use std::fs::File;
use std::io::Read;

use anyhow::{Context, Result};

/// Precedes the token, so that it is easy to find in `init` and here.
const MARK: &str = "rdma-vm:";

/// Identifies the lines of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

impl Token {
    pub(crate) fn random() -> Result<Token> {
        let mut bytes = [0; 12];
        File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut bytes))
            .context("cannot read /dev/urandom")?;
        Ok(Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Splits a message to the host from output that precedes it on the same line.
    pub(crate) fn parse<'a>(&self, line: &'a str) -> Line<'a> {
        let line = line.trim_end_matches(['\r', '\n']);
        let mark = format!("{MARK}{}:", self.0);
        let Some(at) = line.find(&mark) else { return Line { output: line, event: None } };
        let (output, event) = (&line[..at], &line[at + mark.len()..]);
        Line { output, event: Event::parse(event) }
    }
}

/// One line of the console.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// What COMMAND or the kernel printed.
    pub(crate) output: &'a str,
    pub(crate) event: Option<Event>,
}

/// A message of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// It waits for permission to start COMMAND.
    Up,
    /// COMMAND has exited with this status.
    Exit(u8),
    /// It cannot boot, for this reason.
    Broken(String),
}

impl Event {
    fn parse(text: &str) -> Option<Event> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        match word {
            "up" if rest.is_empty() => Some(Event::Up),
            "exit" => rest.parse().ok().map(Event::Exit),
            "broken" => Some(Event::Broken(rest.to_owned())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token("abc".into())
    }

    #[test]
    fn a_status_is_read_from_a_line_with_the_token() {
        let line = token().parse("rdma-vm:abc:exit 3\r\n").event;
        assert_eq!(line, Some(Event::Exit(3)));
        assert_eq!(token().parse("rdma-vm:abc:up").event, Some(Event::Up));
        let broken = token().parse("rdma-vm:abc:broken no rxe").event;
        assert_eq!(broken, Some(Event::Broken("no rxe".into())));
    }

    #[test]
    fn output_without_a_newline_before_the_status_is_kept() {
        let line = token().parse("99 %rdma-vm:abc:exit 0\n");
        assert_eq!(line, Line { output: "99 %", event: Some(Event::Exit(0)) });
    }

    #[test]
    fn a_line_without_the_token_is_output() {
        for line in ["exit 0", "rdma-vm:exit 0", "rdma-vm:abd:exit 0", "abc:exit 0", ""] {
            assert_eq!(token().parse(line), Line { output: line, event: None });
        }
    }

    #[test]
    fn an_incomplete_status_is_ignored() {
        for line in ["exit", "exit ", "exit x", "exit 256", "exit -1", "exit 0 0", "up 1", ""] {
            assert_eq!(token().parse(&format!("rdma-vm:abc:{line}")).event, None, "{line}");
        }
    }

    #[test]
    fn tokens_differ_from_run_to_run() -> Result<()> {
        assert_ne!(Token::random()?, Token::random()?);
        Ok(())
    }
}
