//! Benchmarks of farcall, as ratios against the limit measured in the same run.

fn main() {}
