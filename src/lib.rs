//! RPC over RDMA for Rust, at the speed of the memory it crosses.
#![forbid(unsafe_code)]

pub use bytes::Bytes;
pub use farcall_core::{CallError, RpcError};
pub use farcall_macros::service;

/// What generated code names; not for use by hand.
#[doc(hidden)]
pub mod __private {
    pub use core::fmt;
    pub use core::future::Future;
    pub use std::clone::Clone;
    pub use std::convert::From;
    pub use std::marker::{Send, Sync};
    pub use std::option::Option;
    pub use std::result::Result::{self, Err, Ok};
    pub use std::sync::Arc;

    pub use farcall_core::codec::{As, Decode, Fixed, Opt, Raw, Reader, Seq, Serde, Whole};
    pub use farcall_core::service::{
        Answer, Method, MethodDescription, ServiceDescription, Travels, read_result, read_value,
    };
    pub use farcall_core::transport::Message;
    pub use farcall_core::{CallError, RpcError};
}
