//! The calls of each size: arrays where the size is small and common, `Bytes` for all others.

use bytes::Bytes;
use farcall::{PendingCall, RpcError};

use super::service::EchoPollClient;

/// How much of each end of a long answer is compared while the time counts.
const END_BYTES: usize = 64;

/// A call that was started.
pub(crate) type Pending<T> = PendingCall<Result<T, RpcError>>;

/// One size's way to call the service.
pub(crate) trait Shape {
    /// What a call answers.
    type Output: 'static;

    /// Calls and waits for the answer.
    fn call(&self, client: &mut EchoPollClient) -> Result<Self::Output, RpcError>;

    /// Starts a call.
    fn start(&self, client: &mut EchoPollClient) -> Result<Pending<Self::Output>, RpcError>;

    /// Is it what was sent? All of it, or of a long one only its ends, which costs no more than a call.
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
