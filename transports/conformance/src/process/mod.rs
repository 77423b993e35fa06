//! Other processes of the suite: a server or clients behind a pipe, controlled by lines of text.

mod driven;
mod driver;
mod far;
pub mod pid_namespace;

pub use driven::main;
pub use driver::Peer;
pub use far::serve;
