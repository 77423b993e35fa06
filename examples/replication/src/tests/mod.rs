//! Tests of the whole protocol, in virtual time: many lives of a group, each from a seed.

mod history;
mod linearizable;
mod peers;
mod replica;
mod seeds;
mod world;
