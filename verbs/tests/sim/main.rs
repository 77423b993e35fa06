//! What the simulated rack owes its experimenter, beyond what every device must do: that a run is the same
//! again, that faults do what they say, that actors have their turns, and that time passes as told.

mod actors;
mod datagrams;
mod faults;
mod landing;
mod persistence;
mod repeatable;
mod rig;
mod timing;
