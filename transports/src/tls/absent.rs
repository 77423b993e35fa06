//! What is left of TLS in a build without it.

use std::os::fd::OwnedFd;

use farcall_core::Identity;
use farcall_core::transport::{BindTls, DialTls};

use super::Failure;
use crate::contract::Stream;

/// There is none.
#[derive(Debug)]
pub(crate) enum Session {}

fn absent() -> Failure {
    Failure("this build has no TLS; build farcall with its feature `tls`".into())
}

/// Whether these are settings for TLS: here none are.
pub(crate) fn knows(_: &BindTls) -> Result<(), Failure> {
    Err(absent())
}

/// There is none.
pub(crate) fn client_session(_: &DialTls, _: &str) -> Result<Session, Failure> {
    Err(absent())
}

/// There is none.
pub(crate) fn server_session(_: &BindTls) -> Result<Session, Failure> {
    Err(absent())
}

impl Session {
    pub(crate) fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub(crate) fn take_records(&mut self, _: &[u8]) -> Result<(), Failure> {
        match *self {}
    }

    pub(crate) fn records(&mut self) -> Vec<u8> {
        match *self {}
    }

    pub(crate) fn read(&mut self, _: &mut [u8]) -> usize {
        match *self {}
    }

    pub(crate) fn write(&mut self, _: &[u8]) -> Result<(), Failure> {
        match *self {}
    }

    pub(crate) fn identity(&self) -> Result<Option<Identity>, Failure> {
        match *self {}
    }

    pub(crate) fn binding(&self) -> Result<[u8; 32], Failure> {
        match *self {}
    }

    pub(crate) fn into_stream(self, _: OwnedFd) -> Stream {
        match self {}
    }
}
