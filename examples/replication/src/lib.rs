//! A replicated log, and a small key-value store on it, whose primary writes into the memory of its backups.
//!
//! # The parts
//!
//! | module | idea |
//! |---|---|
//! | [`record`] | the bytes of a record: lsn, epochs, length, checksum |
//! | [`ring`] | where records lie in the memory that a backup lends, and who may reuse it when |
//! | [`log`] | the part of the log that is in memory |
//! | [`store`] | the state machine: keys, values, appended entries, and what each client has already done |
//! | [`level`] | how safe a write is, and what an acknowledgement proves |
//! | [`membership`] | who the members of an epoch are: the trait, an implementation in memory, and one as a service |
//! | [`node`] | the protocol, without I/O, threads or a clock: inputs in, actions out |
//! | [`replica`] | a replica as a server: what the node asks for is done with farcall |
//! | [`client`] | a client of the group, which finds the primary and repeats what is safe to repeat |
//!
//! # The protocol
//!
//! A *configuration* names the members of an *epoch* and its *primary*; the others are *backups*. [`membership`] decides which configuration
//! follows which, by comparing and swapping the epoch's number: there is one configuration for each epoch.
//!
//! **Writes.** Each backup lends a ring to the primary of its epoch. The primary gives each command the next *lsn*, and WRITEs the record into
//! all rings, together with its *commit index*; a READ of the backup's progress travels in the same batch. When the WRITEs have completed at
//! *all* members of the epoch, the record is committed: the primary applies and acknowledges it. No CPU of a backup is on that path. Backups
//! take the records out of their rings later, and apply what is committed.
//!
//! All members, and not a majority, because the members are chosen by another service: then f + 1 replicas survive f crashes, and every
//! member has every committed record, so that any of them can become the primary without an election. The price: one slow member slows down
//! writes until it is excluded from the next epoch (FaRM, SOSP'15, does the same).
//!
//! **Space** in all rings is reserved before a command gets its lsn. A record that has an lsn never meets a full ring. What a backup has taken
//! out of its ring it says in a word that the primary READs.
//!
//! **Reads** are answered by the primary when a round of one-sided operations, which began after the read arrived, has completed at all
//! backups: that proves that no later epoch had begun.
//!
//! **A new epoch** begins when a member suspects another one: a primary whose heartbeat word stands still, or a backup whose progress word does.
//! The member proposes the next configuration. If it is accepted, the new primary asks all members to *enter* the epoch. A member first
//! revokes what it has lent to the former primary, then takes all whole records out of its ring, then answers, with a new ring. A former primary
//! that was stopped and goes on later is refused by the memory of every member ([`Revoked`](farcall::memory::MemoryError::Revoked)), so it can
//! commit nothing and answer no read (Mu, OSDI'20, fences that way).
//!
//! **The tail.** Records that were not committed may differ among members. A record has the epoch in which it was first written (its *origin*).
//! A member that enters an epoch keeps what has the same lsn and origin as at the new primary, and cuts the rest, which cannot have been
//! committed. The new primary commits its own tail again.
//!
//! **Joining.** A new replica gets a snapshot and, in its ring, all records after it. When it has caught up, its acknowledgement is required
//! for each commit *before* it is proposed as a member: so every member of every configuration has every committed record. A replica that was
//! excluded or restarted joins as a new one.
//!
//! **At most once.** A command has the number of its client and a sequence number, and the store keeps the last result of each client. A command
//! that a client sends again is applied once, whoever is the primary.
//!
//! # States of a replica
//!
//! ```text
//!                 promoted, and asked to enter          proposes the next epoch
//!   learner ------------------------------> backup ------------------------> entering
//!      ^                                     ^   |                              |
//!      | joins as a new replica              |   | excluded                     | all members have entered
//!      |                                     |   v                              v
//!      +---------------------------------- removed <------ fenced, or ------- primary
//!                                                          excluded
//! ```
#![forbid(unsafe_code)]

pub mod client;
pub mod level;
pub mod log;
pub mod membership;
pub mod node;
mod planted;
pub mod record;
pub mod replica;
pub mod ring;
pub mod store;
#[cfg(test)]
mod tests;
