//! A key-value store over farcall.
