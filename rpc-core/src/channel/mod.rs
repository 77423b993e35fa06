//! The client for any executor and for blocking callers. A caller that waits drives the connection; an I/O thread does when no
//! caller waits.
//!
//! A call is written into a *job*, a box that travels: from the caller to the one who drives, who copies the arguments into a slot
//! of the transport and sends them, and back with the answer. A caller that drives carries its own job; others leave theirs in a
//! lock-free queue, and get them back through the job's *ticket*. Jobs are reused, so the steady state allocates nothing.
//!
//! Who drives has taken the channel's I/O out of its `baton`. A blocking caller drives until its call has ended, and puts
//! the I/O back while it yields its core. A task takes a turn each
//! time that it is polled; if its call goes on, it is polled again at once for some microseconds (it *attends*), and other tasks leave
//! their calls to its next turn, so that they share doorbells and completions. A caller whose call takes long leaves it to the I/O
//! thread, which sleeps until the device has an event. While callers drive, the I/O thread naps, and looks every few milliseconds whether
//! they still do: a task that is not polled any more does not hold up the calls of others for longer.
//!
//! When the server is gone, the I/O thread dials again at the next call.

mod arguments;
mod baton;
mod block;
mod call;
mod connecting;
mod drive;
mod driven;
mod driver;
mod endpoint;
mod handle;
mod io;
mod job;
mod options;
mod parking;
mod redial;
mod shared;
mod thread;
mod ticket;
mod waking;

#[cfg(test)]
mod tests;

pub use call::Call;
pub use connecting::{Connecting, Dialling};
pub use driven::ChannelDriver;
pub use endpoint::Endpoint;
pub use handle::Channel;
pub use options::{ChannelOptions, ReconnectPolicy};
