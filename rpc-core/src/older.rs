//! Calls at a server that knows only an older version of their method, with fewer arguments.
//!
//! A call is encoded in the newest version. The arguments of an older version are a part of these bytes: those in front. They
//! are sent alone if the other arguments have their defaults. Otherwise the call fails, because the server would run it
//! without something that its caller asked for.

use core::ops::Range;
use std::sync::Arc;

use crate::client::unencodable;
use crate::codec::{self, EncodeError, Payload, Reader};
use crate::compatibility::MethodMismatch;
use crate::error::RpcError;
use crate::service::{Method, OlderVersion};

/// Most older versions of a method: each has an argument less, and a method has at most eight.
const MAX_OLDER_VERSIONS: usize = 8;

/// Where the arguments of each older version end, in the bytes of all arguments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends([usize; MAX_OLDER_VERSIONS]);

impl Ends {
    pub(crate) fn of<M: Method, P: Payload + ?Sized>(arguments: &P) -> Result<Ends, EncodeError> {
        const { assert!(M::OLDER.len() <= MAX_OLDER_VERSIONS) };
        let mut ends = Ends::default();
        for (end, count) in ends.0.iter_mut().zip(M::OLDER) {
            *end = arguments.size_of_first(*count)?;
        }
        Ok(ends)
    }

    #[cfg(test)]
    pub(crate) fn at<const N: usize>(places: [usize; N]) -> Ends {
        let mut ends = Ends::default();
        ends.0[..N].copy_from_slice(&places);
        ends
    }
}

/// An older version of a method, which is the newest that the server of a connection knows.
#[derive(Debug)]
pub(crate) struct Older {
    /// `Service.method`, in the newest version.
    method: Arc<str>,
    /// The older version's id.
    pub(crate) id: u32,
    /// Its place among the older versions.
    pub(crate) index: usize,
    /// The server runs a call of it at most once, whatever the client declares.
    pub(crate) at_most_once: bool,
    is_whole: bool,
    /// What the arguments that it lacks must be.
    defaults: Vec<u8>,
}

impl Older {
    /// `None`: no call can be sent in this version.
    pub(crate) fn new(
        method: Arc<str>,
        index: usize,
        version: &OlderVersion,
        at_most_once: bool,
    ) -> Option<Older> {
        let defaults = (version.defaults)().ok()?;
        let OlderVersion { id, is_whole, .. } = *version;
        let fits = index < MAX_OLDER_VERSIONS;
        fits.then_some(Older { method, id, index, at_most_once, is_whole, defaults })
    }

    /// The part of a call's arguments that the older version has.
    ///
    /// # Errors
    /// [`RpcError::NoSuchMethod`]: another argument does not have its default.
    pub(crate) fn part(&self, arguments: &[u8], ends: &Ends) -> Result<Range<usize>, RpcError> {
        let end = ends.0[self.index];
        if arguments[end..] != self.defaults {
            let why = MethodMismatch::NewerArgument;
            return Err(RpcError::NoSuchMethod { method: self.method.clone(), why });
        }
        let mut known = Reader::borrowed(&arguments[..end]);
        if self.is_whole {
            known.take_length().expect("a byte string begins with its length");
        }
        Ok(end - known.remaining()..end)
    }

    /// The arguments of a call of method `M` in the older version, in a buffer that is used for each call.
    ///
    /// # Errors
    /// As [`part`](Self::part), and if the arguments cannot be encoded.
    pub(crate) fn encode<'b, M: Method, P: Payload + ?Sized>(
        &self,
        arguments: &P,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], RpcError> {
        let encoded = codec::encoded_len(arguments).and_then(|len| {
            buffer.resize(len, 0);
            codec::encode(arguments, buffer)?;
            Ends::of::<M, P>(arguments)
        });
        let ends = encoded.map_err(|error| unencodable(M::NAME, error))?;
        Ok(&buffer[self.part(buffer, &ends)?])
    }
}
