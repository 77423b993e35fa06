//! How a server learns the time of another: questions and answers in, times out. It asks nobody itself.

mod follower;
mod samples;

pub use follower::{ASK_EVERY, Follower};
pub use samples::ClockSample;
