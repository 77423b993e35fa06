//! Generated code in unusual crates: all lints denied, common names shadowed, the facade renamed.

#![deny(
    warnings,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    missing_debug_implementations
)]
#![deny(clippy::all, clippy::pedantic)]

/// A crate with strict lints and complete documentation.
pub mod documented {
    use bytes::Bytes;

    /// What can be wrong.
    #[derive(Debug, serde::Serialize, serde::Deserialize, farcall::Shape)]
    pub struct Wrong;

    /// A store.
    #[farcall::service]
    pub trait Store: Send + Sync {
        /// The value of a key.
        ///
        /// # Errors
        /// If there is something [`Wrong`].
        fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Wrong>;

        /// All entries with this prefix; see [`get`](Self::get).
        async fn scan(&self, prefix: Bytes, limit: u64) -> Vec<Bytes>;

        /// How many there were.
        #[deprecated(note = "count what `scan` gives")]
        fn count(&self) -> usize;

        /// Nothing at all.
        fn nothing(&self);
    }

    /// A store with nothing in it.
    #[derive(Debug)]
    pub struct Empty;

    impl Store for Empty {
        fn get(&self, _key: &[u8]) -> Result<Option<Bytes>, Wrong> {
            Err(Wrong)
        }

        async fn scan(&self, _prefix: Bytes, _limit: u64) -> Vec<Bytes> {
            Vec::new()
        }

        fn count(&self) -> usize {
            0
        }

        fn nothing(&self) {}
    }
}

/// Shadows names of the prelude, and names that generated code uses.
mod shadowed {
    #![allow(dead_code)]

    struct Ok;
    struct Err;
    struct Some;
    struct None;
    struct Arc;
    struct Bytes;
    struct Message;
    struct Reply;
    struct Channel;
    struct Connection;
    trait Clone {}
    trait From {}
    trait Send {}
    trait Sync {}
    trait Future {}
    trait Debug {}
    mod core {}
    mod std {}
    mod farcall {}

    #[derive(serde::Serialize, serde::Deserialize, ::farcall::Shape)]
    struct S {
        part: u8,
    }

    #[derive(serde::Serialize, serde::Deserialize, ::farcall::Shape)]
    struct _S;

    #[::farcall::service]
    trait Shadow {
        fn message(&self, reply: u8, message: S, reader: _S, service: &[u8], method: u32) -> u8;
        async fn answer(&self, value: u8, why: S, answer: u32) -> S;
        fn fallible(&self, f: [u8; 2]) -> ::core::result::Result<u8, S>;
        fn channel(&self, channel: u8, connection: u8);
    }
}

/// A service without methods is useless but allowed.
mod empty {
    #[farcall::service]
    #[expect(dead_code)]
    trait Nothing {}
}

/// The facade under another name.
mod renamed {
    mod deeper {
        pub(crate) use farcall as rpc;
    }

    #[deeper::rpc::service(crate = deeper::rpc, name = "another")]
    #[expect(dead_code)]
    trait Renamed {
        fn get(&self) -> Value;
    }

    #[derive(serde::Serialize, serde::Deserialize, deeper::rpc::Shape)]
    #[rpc(crate = deeper::rpc)]
    struct Value {
        value: u8,
    }
}

/// A service defined by a macro.
mod made {
    macro_rules! store_of {
        ($name:ident, $value:ty) => {
            #[farcall::service]
            #[expect(dead_code)]
            trait $name {
                fn get(&self, key: &[u8]) -> Option<$value>;
                fn put(&self, key: &[u8], value: $value) -> Result<$value, String>;
            }
        };
    }

    store_of!(Numbers, u64);
    store_of!(Texts, String);
    store_of!(Blobs, Vec<u8>);
}

/// Clients and servers can go where threads and executors want them.
#[test]
fn clients_and_servers_are_send() {
    fn is_send_and_sync<T: Send + Sync + Clone + std::fmt::Debug + 'static>() {}
    fn is_send<T: Send + std::fmt::Debug + 'static>() {}
    is_send_and_sync::<documented::StoreClient>();
    is_send_and_sync::<documented::StoreServer<documented::Empty>>();
    is_send::<documented::StorePollClient>();
}
