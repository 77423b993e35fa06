//! Properties of the simulated rack beyond those of every device: runs are repeatable, faults do what they
//! say, actors get their turns, and time advances as documented.

mod actors;
mod datagrams;
mod dynamic;
mod faults;
mod landing;
mod one_sided;
mod persistence;
mod publications;
mod repeatable;
mod rig;
mod timing;
