//! Quotas: how many calls, how much CPU time and how many connections one client may have.
//!
//! A client is an identity, where clients are authenticated, and otherwise a connection. Each has an account: two buckets, of calls
//! and of CPU time, that hold what the client may use in one second, and fill again in a second. A call of a client whose bucket is
//! empty is refused before it runs. The connections of one identity have one account, whichever server threads they belong to.
//!
//! A thread of a server without quotas has nothing of this: its requests take another way through the dispatcher.

mod accounts;
mod bucket;
mod limits;

#[cfg(test)]
mod tests;

pub(super) use accounts::{Account, Accounts, SharedAccounts};
pub use limits::ClientQuota;
