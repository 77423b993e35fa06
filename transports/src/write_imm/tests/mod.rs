//! Both ends in one thread, polled by hand, in virtual time.

mod calls;
mod hostile;
mod large;
mod lives;
mod pair;
