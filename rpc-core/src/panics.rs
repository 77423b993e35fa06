//! Code of users on threads that others need: wakers, destructors, handlers, subscribers of the log. A panic there goes no further, nor
//! does one of the destructor of what it panicked with.

use core::any::Any;
use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What code of a user has panicked with.
pub struct Panic(Option<Box<dyn Any + Send>>);

impl Panic {
    /// What a thread has panicked with.
    pub fn of_thread(payload: Box<dyn Any + Send>) -> Panic {
        Panic(Some(payload))
    }

    /// The panic's message, if it is a text.
    pub fn text(&self) -> Option<&str> {
        let payload = self.0.as_ref()?;
        let text = payload.downcast_ref::<&str>().copied();
        text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
    }
}

impl Drop for Panic {
    fn drop(&mut self) {
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(self.0.take()))) {
            // It could go on like this for ever.
            core::mem::forget(again);
        }
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Panic").field(&self.text()).finish()
    }
}

/// Runs code of a user.
///
/// # Errors
/// It panicked.
#[inline]
pub fn catch<R>(work: impl FnOnce() -> R) -> Result<R, Panic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| Panic(Some(payload)))
}

/// Runs code of a user; `None` if it panicked. The log then says what the thread was `doing`.
#[inline]
pub fn contain<R>(doing: &str, work: impl FnOnce() -> R) -> Option<R> {
    catch(work).map_err(|panic| report(doing, &panic)).ok()
}

#[cold]
fn report(doing: &str, panic: &Panic) {
    // A subscriber of the log is a user's code, too.
    let _ = catch(|| {
        let panic = panic.text().unwrap_or("(its message is no text)");
        tracing::error!(panic, "{doing} panicked; the thread goes on");
    });
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::panic::panic_any;

    /// Panics with itself when it is dropped, so many times.
    pub(crate) struct Bomb(pub(crate) u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Bomb(self.0 - 1));
            }
        }
    }

    #[test]
    fn what_panics_when_it_is_dropped_goes_no_further() {
        for panics in [0, 1, 5] {
            assert!(catch(|| panic_any(Bomb(panics))).is_err());
            assert_eq!(contain("a test", || panic_any(Bomb(panics))), None::<()>);
        }
        assert_eq!(contain("a test", || 7), Some(7));
    }

    #[test]
    fn the_message_of_a_panic_is_known_if_it_is_text() {
        let text =
            |panic: Result<(), Panic>| panic.expect_err("it panics").text().map(str::to_owned);
        assert_eq!(text(catch(|| panic!("number {}", 7))).as_deref(), Some("number 7"));
        assert_eq!(text(catch(|| panic!("text"))).as_deref(), Some("text"));
        assert_eq!(text(catch(|| panic_any(7_u8))), None);
    }
}
