//! The RPC backends of farcall, each written once against verbs.
