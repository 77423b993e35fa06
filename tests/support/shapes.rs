//! A service with methods of every kind.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, farcall::Shape)]
pub(crate) struct Point {
    pub(crate) x: i32,
    pub(crate) y: i32,
}

#[derive(Debug, Serialize, Deserialize, farcall::Shape)]
pub(crate) struct Key<'a> {
    pub(crate) name: &'a str,
    #[serde(with = "serde_bytes")]
    pub(crate) bytes: &'a [u8],
}

#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize, farcall::Shape)]
pub(crate) enum Refusal {
    #[error("no such key")]
    NoSuchKey,
    #[error("{0} is not allowed")]
    NotAllowed(String),
}

/// Methods of every kind.
#[farcall::service]
pub(crate) trait Shapes {
    fn nothing(&self);
    fn one(&self, a: u8) -> u8;
    #[allow(clippy::too_many_arguments)]
    fn eight(
        &self,
        a: u8,
        b: i16,
        c: u32,
        d: i64,
        e: &str,
        f: &[u8],
        g: Option<bool>,
        h: Vec<String>,
    ) -> String;
    fn sum(&self, numbers: &[u32]) -> u64;
    fn lend(&self, point: &Point) -> Point;
    fn view(&self, key: Key<'_>) -> usize;
    fn borrowed_within(&self, parts: (&[u8], Option<&str>), rest: Vec<&str>) -> usize;
    #[allow(clippy::too_many_arguments)]
    fn bytes(
        &self,
        a: &[u8],
        b: Vec<u8>,
        c: Bytes,
        d: ByteBuf,
        e: [u8; 4],
        f: Option<Bytes>,
        g: &[Bytes],
        h: (Bytes, u32),
    ) -> Bytes;
    fn echo_slice(&self, data: &[u8]) -> Vec<u8>;
    fn echo_bytes(&self, data: Bytes) -> Bytes;
    fn echo_array(&self, data: [u8; 32]) -> [u8; 32];
    fn find(&self, key: &[u8]) -> Result<Option<Bytes>, Refusal>;
    fn check(&self, fine: bool) -> Result<(), String>;
    fn raw_error(&self) -> Result<u8, Bytes>;
    fn many(&self, n: u32) -> Vec<Bytes>;
    fn pair(&self) -> (Bytes, u64);
    async fn later(&self, data: Bytes) -> Bytes;
    async fn later_or_not(&self, yields: u32) -> Result<u32, Refusal>;
    async fn nothing_later(&self);
    fn panics(&self) -> u8;
    async fn panics_later(&self);
    fn r#type(&self, r#in: u32) -> u32;
    #[rpc(id = 7, idempotent)]
    fn named_by_number(&self) -> u8;
    fn poll(&self) -> u8;
    fn take(&self, n: u32) -> u32;
}

#[derive(Default)]
pub(crate) struct Implementation {
    /// How often a method without a result has run.
    pub(crate) calls: AtomicUsize,
}

impl Shapes for Implementation {
    fn nothing(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
    fn one(&self, a: u8) -> u8 {
        a + 1
    }
    fn eight(
        &self,
        a: u8,
        b: i16,
        c: u32,
        d: i64,
        e: &str,
        f: &[u8],
        g: Option<bool>,
        h: Vec<String>,
    ) -> String {
        format!("{a} {b} {c} {d} {e} {f:?} {g:?} {h:?}")
    }
    fn sum(&self, numbers: &[u32]) -> u64 {
        numbers.iter().copied().map(u64::from).sum()
    }
    fn lend(&self, point: &Point) -> Point {
        Point { x: point.y, y: point.x }
    }
    fn view(&self, key: Key<'_>) -> usize {
        key.name.len() + key.bytes.len()
    }
    fn borrowed_within(&self, parts: (&[u8], Option<&str>), rest: Vec<&str>) -> usize {
        parts.0.len() + parts.1.map_or(0, str::len) + rest.concat().len()
    }
    fn bytes(
        &self,
        a: &[u8],
        b: Vec<u8>,
        c: Bytes,
        d: ByteBuf,
        e: [u8; 4],
        f: Option<Bytes>,
        g: &[Bytes],
        h: (Bytes, u32),
    ) -> Bytes {
        let mut all = [a, &b, &c, &d, &e, &f.unwrap_or_default(), &g.concat(), &h.0].concat();
        all.push(h.1 as u8);
        all.into()
    }
    fn echo_slice(&self, data: &[u8]) -> Vec<u8> {
        data.to_vec()
    }
    fn echo_bytes(&self, data: Bytes) -> Bytes {
        data
    }
    fn echo_array(&self, data: [u8; 32]) -> [u8; 32] {
        data
    }
    fn find(&self, key: &[u8]) -> Result<Option<Bytes>, Refusal> {
        match key {
            b"" => Err(Refusal::NoSuchKey),
            b"none" => Ok(None),
            key => Ok(Some(Bytes::copy_from_slice(key))),
        }
    }
    fn check(&self, fine: bool) -> Result<(), String> {
        fine.then_some(()).ok_or_else(|| "not fine".to_owned())
    }
    fn raw_error(&self) -> Result<u8, Bytes> {
        Err(Bytes::from_static(b"raw"))
    }
    fn many(&self, n: u32) -> Vec<Bytes> {
        (0..n).map(|i| Bytes::from(vec![i as u8; i as usize])).collect()
    }
    fn pair(&self) -> (Bytes, u64) {
        (Bytes::from_static(b"pair"), 2)
    }
    async fn later(&self, data: Bytes) -> Bytes {
        data
    }
    async fn later_or_not(&self, yields: u32) -> Result<u32, Refusal> {
        for _ in 0..yields {
            yield_once().await;
        }
        if yields.is_multiple_of(2) {
            Ok(yields)
        } else {
            Err(Refusal::NotAllowed(yields.to_string()))
        }
    }
    async fn nothing_later(&self) {
        yield_once().await;
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
    fn panics(&self) -> u8 {
        panic!("as it was asked to")
    }
    async fn panics_later(&self) {
        yield_once().await;
        panic!("as it was asked to")
    }
    fn r#type(&self, r#in: u32) -> u32 {
        r#in * 2
    }
    fn named_by_number(&self) -> u8 {
        7
    }
    fn poll(&self) -> u8 {
        1
    }
    fn take(&self, n: u32) -> u32 {
        n
    }
}

async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}
