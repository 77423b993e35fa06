//! What the log says of a handler that panicked.

use core::any::Any;

/// The panic's message, and what to do about it where that is known.
pub(super) fn describe(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("(its message is no text)");
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
    use std::panic::catch_unwind;

    #[test]
    fn a_missing_tokio_runtime_is_known_by_its_panic() {
        let panic = catch_unwind(|| drop(tokio::time::sleep(core::time::Duration::ZERO)));
        let why = describe(&*panic.expect_err("there is no runtime"));
        assert!(why.contains("ServerBuilder::tokio"), "{why}");
    }

    #[test]
    fn other_panics_are_described_by_their_message() {
        let panic = catch_unwind(|| panic!("number {}", 7)).expect_err("it panics");
        assert_eq!(describe(&*panic), "number 7");
        assert_eq!(describe(&*catch_unwind(|| panic!("text")).expect_err("it panics")), "text");
        let panic = catch_unwind(|| std::panic::panic_any(7_u8)).expect_err("it panics");
        assert_eq!(describe(&*panic), "(its message is no text)");
    }
}
