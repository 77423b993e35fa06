//! What a developer of farcall runs: checks, tests, tools.

fn main() {}
