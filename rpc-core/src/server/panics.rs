//! What the log says of a handler that panicked.

use crate::panics::Panic;

/// The panic's message, and what to do about it where that is known.
pub(super) fn describe(panic: &Panic) -> String {
    let text = panic.text().unwrap_or("(its message is no text)");
    match text {
        _ if lacks_tokio(text) => format!(
            "{text}; give the server threads a tokio runtime with `ServerBuilder::tokio(handle)` (feature `tokio`), one \
             that is not shut down"
        ),
        _ => text.to_owned(),
    }
}

/// tokio panicked because there is no runtime, or none that runs.
fn lacks_tokio(text: &str) -> bool {
    text.contains("Tokio 1.x")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panics::catch;

    #[test]
    fn a_missing_tokio_runtime_is_known_by_its_panic() {
        let panic = catch(|| drop(tokio::time::sleep(core::time::Duration::ZERO)));
        let why = describe(&panic.expect_err("there is no runtime"));
        assert!(why.contains("ServerBuilder::tokio"), "{why}");
    }

    #[test]
    fn other_panics_are_described_by_their_message() {
        assert_eq!(describe(&catch(|| panic!("number {}", 7)).expect_err("it panics")), "number 7");
        let panic = catch(|| std::panic::panic_any(7_u8)).expect_err("it panics");
        assert_eq!(describe(&panic), "(its message is no text)");
    }
}
