//! A lock file, read.

use super::write::{MAY_GROW, TITLE};

/// A lock file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    pub(super) service: String,
    pub(super) reserved: Vec<u32>,
    pub(super) methods: Vec<Method>,
    pub(super) types: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Method {
    pub(super) id: u32,
    pub(super) shape: u64,
    pub(super) idempotent: bool,
    /// Its name, arguments and results.
    pub(super) part: Part,
}

/// A name, and the lines below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: String,
    /// It is a type that may grow.
    pub(super) grows: bool,
    pub(super) lines: Vec<String>,
}

/// Why a text is not a lock file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}; write the file again with FARCALL_UPDATE_LOCK=1")]
pub struct ParseError {
    /// The line, from 1 on.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

impl Lock {
    /// Reads a lock file.
    ///
    /// # Errors
    /// Says which line is not one of a lock file.
    pub fn parse(text: &str) -> Result<Lock, ParseError> {
        let mut lines = text.lines().enumerate();
        match lines.next() {
            Some((_, first)) if first == TITLE => {}
            _ => return Err(ParseError { line: 1, what: "not the first line of a lock file" }),
        }
        let mut service: Option<String> = None;
        let mut lock =
            Lock { service: String::new(), reserved: vec![], methods: vec![], types: vec![] };
        let mut last = Last::Nothing;
        for (index, line) in lines {
            let error = |what| ParseError { line: index + 1, what };
            if let Some(below) = line.strip_prefix("  ") {
                let part = match last {
                    Last::Nothing => None,
                    Last::Method => lock.methods.last_mut().map(|method| &mut method.part),
                    Last::Type => lock.types.last_mut(),
                };
                part.ok_or(error("not below a method or a type"))?.lines.push(below.to_owned());
            } else if let Some(name) = line.strip_prefix("type ") {
                lock.types.push(Part::new(name));
                last = Last::Type;
            } else if let Some(rest) = line.strip_prefix("method ") {
                let method = Method::parse(rest).ok_or(error("not a method with id and shape"))?;
                lock.methods.push(method);
                last = Last::Method;
            } else if let Some(rest) = line.strip_prefix("reserved ") {
                let id = rest.split(' ').next().and_then(|id| hexadecimal(id, 8));
                lock.reserved.push(id.ok_or(error("not a reserved id"))? as u32);
            } else if let Some(name) = line.strip_prefix("service ") {
                if service.replace(name.to_owned()).is_some() {
                    return Err(error("a second service"));
                }
            } else if !line.is_empty() {
                return Err(error("not a line of a lock file"));
            }
        }
        lock.service = service.ok_or(ParseError { line: 1, what: "it names no service" })?;
        Ok(lock)
    }
}

/// What the lines that follow belong to.
enum Last {
    Nothing,
    Method,
    Type,
}

impl Part {
    fn new(name: &str) -> Part {
        let first = name.strip_suffix(MAY_GROW);
        let grows = first.is_some();
        Part { name: first.unwrap_or(name).to_owned(), grows, lines: Vec::new() }
    }
}

impl Method {
    /// The name without the version.
    pub(super) fn method_name(&self) -> &str {
        self.part.name.split('@').next().unwrap_or_default()
    }

    /// `get 0x4e10e23b shape 0x0123456789abcdef idempotent`
    fn parse(line: &str) -> Option<Method> {
        let words: Vec<&str> = line.split(' ').collect();
        let (name, id, shape, flags) = match words.as_slice() {
            [name, id, "shape", shape, flags @ ..] => (name, id, shape, flags),
            _ => return None,
        };
        let idempotent = match flags {
            [] => false,
            ["idempotent"] => true,
            _ => return None,
        };
        let (id, shape) = (hexadecimal(id, 8)? as u32, hexadecimal(shape, 16)?);
        Some(Method { id, shape, idempotent, part: Part::new(name) })
    }
}

/// A number of exactly so many hexadecimal digits.
fn hexadecimal(text: &str, digits: usize) -> Option<u64> {
    let text = text.strip_prefix("0x").filter(|text| text.len() == digits)?;
    let sound = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if sound { u64::from_str_radix(text, 16).ok() } else { None }
}
