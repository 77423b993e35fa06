//! A server thread, and clients that are driven by hand, datagram by datagram: what no client of ours would send.

mod by_hand;
mod false_server;
mod hostile;
mod idempotent;
mod lives;
mod lost_kinds;
mod requests;
mod strangers;
