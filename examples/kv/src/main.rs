//! A key-value store over farcall, with YCSB and a demo that checks every answer.

fn main() {}
