//! Lock files: what the clients of a service rely on, as text that is committed and reviewed.
//!
//! A lock file has the id, the shape and the types of each method. A test compares it with the program
//! ([`assert_unchanged`]), so that a change of a service is seen where it is made. `farcall compat OLD NEW` compares two
//! lock files ([`Compatibility`]), such as those of two releases.

mod compare;
mod growth;
mod parse;
#[cfg(test)]
mod tests;
mod write;

use std::path::Path;
use std::{env, fs};

pub use self::compare::{Change, Compatibility, Verdict};
pub use self::parse::{Lock, ParseError};
use crate::service::ServiceClient;

/// The environment variable that makes [`assert_unchanged`] write the file.
const UPDATE: &str = "FARCALL_UPDATE_LOCK";

/// The lock file of a service, which is named by its client.
pub fn text<C: ServiceClient>() -> String {
    write::text(C::DESCRIPTION, C::RESERVED)
}

/// Compares the lock file of a service with the program. Call it in a test: the path is relative to the folder of the
/// package.
///
/// With `FARCALL_UPDATE_LOCK=1` in the environment, it writes the file instead.
///
/// # Panics
/// If the file is missing or differs. The message says what the change breaks.
#[track_caller]
pub fn assert_unchanged<C: ServiceClient>(path: impl AsRef<Path>) {
    let path = path.as_ref();
    let text = text::<C>();
    if env::var_os(UPDATE).is_some_and(|value| value == "1") {
        if let Err(why) = fs::write(path, text) {
            panic!("writing {}: {why}", path.display());
        }
        return;
    }
    let mend = format!("run the test again with {UPDATE}=1 and commit the file");
    match fs::read_to_string(path) {
        Ok(committed) if committed == text => {}
        Ok(committed) => {
            let changes = differences(&committed, &text);
            panic!(
                "{} has changed since {} was written:\n{changes}\nIf that is intended, {mend}.",
                C::DESCRIPTION.name,
                path.display()
            )
        }
        Err(why) => panic!("reading {}: {why}; {mend}", path.display()),
    }
}

fn differences(committed: &str, now: &str) -> String {
    match (Lock::parse(committed), Lock::parse(now)) {
        (Ok(old), Ok(new)) => Compatibility::of(&old, &new).to_string(),
        (Err(why), _) | (_, Err(why)) => why.to_string(),
    }
}
