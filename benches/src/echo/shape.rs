//! The calls of each size: arrays if the size is small and common, otherwise `Bytes`.

use bytes::Bytes;
use farcall::{PendingCall, RpcError};

use super::service::EchoPollClient;

/// How many bytes at each end of a long answer are compared in timed slices.
const END_BYTES: usize = 64;

/// A call that was started.
pub(crate) type Pending<T> = PendingCall<Result<T, RpcError>>;

/// How calls of one size use the service.
pub(crate) trait Shape {
    /// The result of a call.
    type Output: 'static;

    /// Calls and waits for the answer.
    fn call(&self, client: &mut EchoPollClient) -> Result<Self::Output, RpcError>;

    /// Starts a call.
    fn start(&self, client: &mut EchoPollClient) -> Result<Pending<Self::Output>, RpcError>;

    /// Whether the answer equals the request: all of it, or only the ends of a long one, which costs less than a
    /// call.
    fn is_right(&self, output: &Self::Output, all: bool) -> bool;
}

macro_rules! shape {
    ($type:ty, $call:ident, $start:ident) => {
        impl Shape for $type {
            type Output = Self;

            #[inline]
            fn call(&self, client: &mut EchoPollClient) -> Result<Self, RpcError> {
                client.$call(self.clone())
            }

            #[inline]
            fn start(&self, client: &mut EchoPollClient) -> Result<Pending<Self>, RpcError> {
                client.$start(self.clone())
            }

            #[inline]
            fn is_right(&self, output: &Self, all: bool) -> bool {
                if all || self.len() <= 2 * END_BYTES {
                    return self == output;
                }
                self.len() == output.len()
                    && self.first_chunk::<END_BYTES>() == output.first_chunk()
                    && self.last_chunk::<END_BYTES>() == output.last_chunk()
            }
        }
    };
}

shape!([u8; 8], echo_8, start_echo_8);
shape!([u8; 16], echo_16, start_echo_16);
shape!([u8; 32], echo_32, start_echo_32);
shape!([u8; 64], echo_64, start_echo_64);
shape!(Bytes, echo, start_echo);
