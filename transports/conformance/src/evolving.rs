//! A service in two versions, for pairs of old and new ends.

use crate::service::Handlers;

/// Under this number [`Handlers`] count the runs of `counted_once` and `counted_often`.
pub const RUNS: u64 = 1 << 59;

/// The older version.
pub mod v1 {
    /// How to look up.
    #[derive(Clone, Debug, PartialEq, farcall::Grow)]
    pub struct Options {
        /// How many at most.
        pub limit: u32,
    }

    /// What was found.
    #[derive(Clone, Debug, PartialEq, farcall::Grow)]
    pub enum Found {
        /// As many.
        Some(Vec<Options>),
        /// What only newer ends know.
        #[rpc(unknown)]
        Unknown,
    }

    /// What both ends were built from at first.
    #[farcall::service]
    pub trait Evolving {
        /// Is the same in both versions.
        fn kept(&self, number: u64) -> u64;
        /// Exists in this version only.
        fn removed(&self, number: u64) -> u64;
        /// Has another argument in the newer version, of the same name.
        fn reshaped(&self, number: u32) -> u64;
        /// Is idempotent in the newer version only.
        fn counted_once(&self) -> u64;
        /// Is idempotent in this version only.
        #[rpc(idempotent)]
        fn counted_often(&self) -> u64;
        /// Has a second argument in the newer version. Alone, the byte string is the whole message.
        fn widened(&self, bytes: &[u8]) -> u64;
        /// Answers with what it got. The types have more in the newer version.
        fn grown(&self, options: Options, found: Found) -> (Options, Found);
    }
}

/// The newer version.
pub mod v2 {
    /// How to look up.
    #[derive(Clone, Debug, PartialEq, farcall::Grow)]
    pub struct Options {
        /// How many at most.
        pub limit: u32,
        /// Is not there in the older version.
        #[rpc(since = 2, default = "any".to_owned())]
        pub colour: String,
    }

    /// What was found.
    #[derive(Clone, Debug, PartialEq, farcall::Grow)]
    pub enum Found {
        /// As many.
        Some(Vec<Options>),
        /// Is not there in the older version.
        #[rpc(since = 2)]
        Elsewhere(String),
        /// What only newer ends know.
        #[rpc(unknown)]
        Unknown,
    }

    /// What newer ends are built from.
    #[farcall::service]
    pub trait Evolving {
        /// Is the same in both versions.
        fn kept(&self, number: u64) -> u64;
        /// Exists in this version only.
        fn added(&self, number: u64) -> u64;
        /// Has another argument in the older version, of the same name.
        fn reshaped(&self, number: u64) -> u64;
        /// Is idempotent in this version only.
        #[rpc(idempotent)]
        fn counted_once(&self) -> u64;
        /// Is idempotent in the older version only.
        fn counted_often(&self) -> u64;
        /// Has one argument less in the older version.
        fn widened(&self, bytes: &[u8], #[rpc(since = 2, default = 10)] factor: u64) -> u64;
        /// Answers with what it got. The types have less in the older version.
        fn grown(&self, options: Options, found: Found) -> (Options, Found);
    }
}

impl v1::Evolving for Handlers {
    fn kept(&self, number: u64) -> u64 {
        number + 1
    }

    fn removed(&self, number: u64) -> u64 {
        number + 2
    }

    fn reshaped(&self, number: u32) -> u64 {
        u64::from(number) + 3
    }

    fn counted_once(&self) -> u64 {
        self.count(RUNS)
    }

    fn counted_often(&self) -> u64 {
        self.count(RUNS)
    }

    fn widened(&self, bytes: &[u8]) -> u64 {
        sum(bytes)
    }

    fn grown(&self, options: v1::Options, found: v1::Found) -> (v1::Options, v1::Found) {
        (options, found)
    }
}

impl v2::Evolving for Handlers {
    fn kept(&self, number: u64) -> u64 {
        number + 1
    }

    fn added(&self, number: u64) -> u64 {
        number + 4
    }

    fn reshaped(&self, number: u64) -> u64 {
        number + 5
    }

    fn counted_once(&self) -> u64 {
        self.count(RUNS)
    }

    fn counted_often(&self) -> u64 {
        self.count(RUNS)
    }

    fn widened(&self, bytes: &[u8], factor: u64) -> u64 {
        sum(bytes) * factor
    }

    fn grown(&self, options: v2::Options, found: v2::Found) -> (v2::Options, v2::Found) {
        (options, found)
    }
}

/// What `widened` makes of its bytes.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}
