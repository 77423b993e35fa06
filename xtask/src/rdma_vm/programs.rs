//! The programs of this project that the virtual machine carries.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::archive::Archive;
use super::protocol::Token;
use crate::run::{self, cargo};

/// Packages, all of whose programs are carried.
const PACKAGES: &[&str] =
    &["farcall-verbs-conformance", "farcall-transports-conformance", "farcall-kv", "farcall-bench"];

/// Their programs.
const PROGRAMS: &[&str] =
    &["device-conformance", "farcall-conformance-peer", "farcall-kv", "farcall-bench"];

/// A program, as built.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
}

/// How they are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Optimized, and built soon.
    Vm,
    /// As users build it.
    Release,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Profile::Vm => "vm",
            Profile::Release => "release",
        }
    }
}

/// Builds the programs, and says where each is.
pub(crate) fn build(profile: Profile) -> Result<Vec<Program>> {
    let mut build = cargo();
    build.args(["build", "--quiet", "--locked", "--target-dir", "target"]);
    build.args(["--profile", profile.name(), "--bins"]);
    PACKAGES.iter().for_each(|package| {
        build.args(["--package", package]);
    });
    run::run(&mut build)?;
    let folder = run::root().join("target").join(profile.name());
    Ok(PROGRAMS.iter().map(|name| Program { name, path: folder.join(name) }).collect())
}

/// The archive with `programs` in /bin, `command` as a script, and the token of the run.
pub(crate) fn archive(programs: &[Program], command: &[String], token: &Token) -> Result<Vec<u8>> {
    let mut archive = Archive::new();
    for Program { name, path } in programs {
        let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        archive.file(&format!("/bin/{name}"), 0o755, &content);
    }
    archive.file("/command", 0o644, script(command).as_bytes());
    archive.file("/token", 0o600, token.as_str().as_bytes());
    Ok(archive.finish())
}

/// One word is a script by itself, several are a program and its arguments.
fn script(command: &[String]) -> String {
    match command {
        [script] => format!("{script}\n"),
        words => {
            let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            format!("exec {}\n", words.join(" "))
        }
    }
}

/// `word` as the shell reads it back, whatever is in it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn run_by_sh(command: &[&str]) -> String {
        let output = Command::new("sh").args(["-c", &script(&words(command))]).output();
        String::from_utf8(output.expect("sh is everywhere").stdout).expect("we printed text")
    }

    #[test]
    fn one_word_is_a_script() {
        assert_eq!(run_by_sh(&["echo a; echo $((1 + 1))"]), "a\n2\n");
    }

    #[test]
    fn several_words_are_passed_on_as_they_are() {
        let odd = ["it's", "$HOME", "a b", "", "\"", "*", "\\", "`id`", "two\nlines"];
        let mut command = vec!["printf", "[%s]"];
        command.extend(odd);
        let expected: String = odd.iter().map(|word| format!("[{word}]")).collect();
        assert_eq!(run_by_sh(&command), expected);
    }
}
