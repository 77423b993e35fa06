//! RPC over RDMA for Rust, at the speed of the memory it crosses.
