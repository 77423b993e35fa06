//! The proof: crashes at every operation of the disk, thousands of seeds, planted bugs, damage, files of a fixed format.

mod crashes;
mod damage;
mod faults;
mod golden;
mod seeds;
mod story;
mod threads;
mod transactions;
mod waiting;
