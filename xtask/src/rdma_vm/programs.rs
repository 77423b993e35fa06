//! The programs of this workspace that the virtual machine contains.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::archive::Archive;
use super::base::Base;
use super::libraries;
use super::protocol::Token;
use crate::run::{self, cargo};

/// A program that the virtual machine can contain.
struct Source {
    name: &'static str,
    package: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Program,
    Example,
}

const SOURCES: &[Source] = &[
    program("device-conformance", "farcall-verbs-conformance"),
    program("backend-conformance", "farcall-transports-conformance"),
    program("farcall", "farcall-cli"),
    program("farcall-kv", "farcall-kv"),
    program("farcall-persist", "farcall-persist"),
    program("farcall-bench", "farcall-bench"),
    Source { name: "write_latency", package: "farcall-verbs", kind: Kind::Example },
    Source { name: "memory_on_device", package: "farcall", kind: Kind::Example },
];

const fn program(name: &'static str, package: &'static str) -> Source {
    Source { name, package, kind: Kind::Program }
}

/// A built program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
}

/// The profile that they are built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Optimized, but fast to build.
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

/// Builds the programs that `command` names.
pub(crate) fn build_named(profile: Profile, command: &[String]) -> Result<Vec<Program>> {
    let sources = named(command);
    if sources.is_empty() { Ok(Vec::new()) } else { build(profile, sources) }
}

/// Builds all programs.
pub(crate) fn build_all() -> Result<Vec<Program>> {
    build(Profile::Vm, SOURCES.iter().collect())
}

/// Cargo's options to build with that profile. Always all packages and features: they determine the features of shared
/// dependencies, which would otherwise be built again for another selection.
pub(crate) fn selection(profile: Profile) -> Vec<String> {
    let packages: BTreeSet<&str> = SOURCES.iter().map(|source| source.package).collect();
    let mut features: Vec<String> = packages.iter().map(|name| format!("{name}/ibverbs")).collect();
    if profile == Profile::Vm {
        // Not in what benchmarks run.
        features.extend(["farcall-verbs-conformance/faults", "farcall-bench/sim"].map(Into::into));
    }
    let usual = ["--locked", "--target-dir", "target", "--profile", profile.name()];
    let packages = packages.into_iter().flat_map(|package| ["--package", package]);
    let selection = usual.into_iter().chain(packages).map(str::to_owned);
    selection.chain(["--features".to_owned(), features.join(",")]).collect()
}

fn build(profile: Profile, sources: Vec<&'static Source>) -> Result<Vec<Program>> {
    let mut build = cargo();
    build.args(["build", "--quiet"]).args(selection(profile));
    for source in &sources {
        build.args([if source.kind == Kind::Example { "--example" } else { "--bin" }, source.name]);
    }
    run::run(&mut build)?;
    let folder = run::root().join("target").join(profile.name());
    let path = |source: &Source| match source.kind {
        Kind::Program => folder.join(source.name),
        Kind::Example => folder.join("examples").join(source.name),
    };
    let built = sources.into_iter().map(|source| Program { name: source.name, path: path(source) });
    Ok(built.collect())
}

/// The programs that appear in `command`. No others can be run.
fn named(command: &[String]) -> Vec<&'static Source> {
    let part_of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let words: Vec<&str> =
        command.iter().flat_map(|word| word.split(|c| !part_of_a_name(c))).collect();
    SOURCES.iter().filter(|source| words.contains(&source.name)).collect()
}

/// The archive with `programs` in /bin, their libraries that `base` does not contain, `command` as a script,
/// and the token of the run.
pub(crate) fn archive(
    programs: &[Program],
    base: &Base,
    command: &[String],
    token: &Token,
) -> Result<Vec<u8>> {
    let mut archive = Archive::new();
    let mut libraries = BTreeSet::new();
    for Program { name, path } in programs {
        let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        archive.file(&format!("/bin/{name}"), 0o755, &content);
        libraries.extend(libraries::of(path)?);
    }
    for path in libraries.iter().filter(|path| !base.has(path)) {
        let content = fs::read(path).with_context(|| format!("cannot read {path}"))?;
        archive.file(path, 0o755, &content);
    }
    archive.file("/command", 0o644, script(command).as_bytes());
    archive.file("/token", 0o600, token.as_str().as_bytes());
    Ok(archive.finish())
}

/// One word is a script; several are a program and its arguments.
fn script(command: &[String]) -> String {
    match command {
        [script] => format!("{script}\n"),
        words => {
            let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            format!("exec {}\n", words.join(" "))
        }
    }
}

/// Quotes `word` for the shell.
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

    fn names(command: &[&str]) -> Vec<&'static str> {
        named(&words(command)).iter().map(|source| source.name).collect()
    }

    #[test]
    fn programs_named_by_the_command_are_included() {
        assert_eq!(names(&["ibv_devinfo"]), [""; 0]);
        assert_eq!(names(&["farcall-kv", "serve"]), ["farcall-kv"]);
        assert_eq!(names(&["x=1; (farcall-kv demo)&farcall-bench limit;"]).len(), 2);
        assert_eq!(names(&["echo farcall-kvs not-farcall-kv farcall_kv"]), [""; 0]);
    }

    #[test]
    fn one_word_is_a_script() {
        assert_eq!(run_by_sh(&["echo a; echo $((1 + 1))"]), "a\n2\n");
    }

    #[test]
    fn several_words_are_passed_on_unchanged() {
        let odd = ["it's", "$HOME", "a b", "", "\"", "*", "\\", "`id`", "two\nlines"];
        let mut command = vec!["printf", "[%s]"];
        command.extend(odd);
        let expected: String = odd.iter().map(|word| format!("[{word}]")).collect();
        assert_eq!(run_by_sh(&command), expected);
    }
}
