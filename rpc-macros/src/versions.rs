//! The versions of a method: later ones have more arguments.

use syn::{Error, Result};

use crate::hash;
use crate::model::Argument;

/// The versions of a method.
pub(crate) struct Versions {
    /// The one that the trait shows.
    pub(crate) newest: Version,
    /// The others, the newest of them first.
    pub(crate) older: Vec<Version>,
}

/// A version of a method.
pub(crate) struct Version {
    /// From 1 on.
    pub(crate) number: u32,
    /// The id on the wire.
    pub(crate) id: u32,
    /// How many of the arguments it has.
    pub(crate) arguments: usize,
    /// A client does not connect to a server without it or a newer one.
    pub(crate) required: bool,
}

impl Versions {
    /// The versions of a method with these arguments, of which `oldest` is the oldest that is still served. `id` is the id of
    /// version 1.
    pub(crate) fn new(
        service: &str,
        id: u32,
        oldest: Option<u32>,
        arguments: &[Argument],
    ) -> Result<Self> {
        let version = |number, arguments| {
            let id = if number == 1 { id } else { hash::version_id(service, id, number) };
            Version { number, id, arguments, required: false }
        };
        let mut newest = version(oldest.unwrap_or(1), 0);
        let mut older = Vec::new();
        for argument in arguments {
            let since = argument.since.unwrap_or(oldest.unwrap_or(1));
            check(argument, since, &newest, oldest)?;
            if since > newest.number {
                let arguments = newest.arguments;
                older.insert(0, std::mem::replace(&mut newest, version(since, arguments)));
            }
            newest.arguments += 1;
        }
        Ok(Self { newest, older })
    }

    /// The newest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Version> {
        std::iter::once(&self.newest).chain(&self.older)
    }

    /// The newest first.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Version> {
        std::iter::once(&mut self.newest).chain(&mut self.older)
    }
}

/// Refuses an argument that comes after newer ones.
fn check(argument: &Argument, since: u32, newest: &Version, oldest: Option<u32>) -> Result<()> {
    let name = &argument.ident;
    let error = |message: String| Err(Error::new_spanned(name, message));
    if argument.since.is_some() && oldest.is_some_and(|oldest| since <= oldest) {
        return error(format!(
            "the method begins with version {}, which has `{name}`: take `since = {since}` away from it",
            oldest.unwrap_or(1)
        ));
    }
    if since < newest.number {
        let number = newest.number;
        return error(format!(
            "`{name}` comes after an argument of version {number}: older versions must have the first arguments; put it \
             before that one if it is older, or give it `#[rpc(since = N)]` with {number} or more",
        ));
    }
    Ok(())
}
