//! Methods that get new arguments: old and new ends, both clients, over `shm://`.

use farcall::{
    Bytes, CallError, ConnectError, MethodMismatch, RpcError, RunningServer, Server, ServiceClient,
    Shape,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Shape)]
struct Limits {
    rows: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { rows: 10 }
    }
}

mod v1 {
    use super::*;

    #[farcall::service]
    pub(crate) trait Kv {
        /// A byte string alone is the whole message.
        fn get(&self, key: &[u8]) -> String;
        fn count(&self) -> String;
        async fn scan(&self, prefix: Bytes, reverse: bool) -> Result<String, u8>;
    }
}

mod v2 {
    use super::*;

    #[farcall::service]
    pub(crate) trait Kv {
        fn get(&self, key: &[u8], #[rpc(since = 2, default = 7)] version: u64) -> String;
        fn count(&self, #[rpc(since = 2)] prefix: &[u8]) -> String;
        async fn scan(
            &self,
            prefix: Bytes,
            reverse: bool,
            #[rpc(since = 2, default = Bytes::from_static(b"!"))] end: Bytes,
        ) -> Result<String, u8>;
    }
}

mod v3 {
    use super::*;

    #[farcall::service]
    pub(crate) trait Kv {
        fn get(
            &self,
            key: &[u8],
            #[rpc(since = 2, default = 7)] version: u64,
            #[rpc(since = 3)] tags: &[String],
            #[rpc(since = 3, default = "de")] language: &str,
        ) -> String;
        fn count(
            &self,
            #[rpc(since = 2)] prefix: &[u8],
            #[rpc(since = 5)] limits: &Limits,
        ) -> String;
        async fn scan(
            &self,
            prefix: Bytes,
            reverse: bool,
            #[rpc(since = 2, default = Bytes::from_static(b"!"))] end: Bytes,
        ) -> Result<String, u8>;
    }
}

/// Version 1 of `get` is no longer served, and all arguments are there from the beginning.
mod v4 {
    #[farcall::service(require = ["get"])]
    pub(crate) trait Kv {
        #[rpc(since = 2)]
        fn get(&self, key: &[u8], version: u64, #[rpc(since = 4)] strict: bool) -> String;
    }
}

/// Answers with what it was called with.
struct Echo;

impl v1::Kv for Echo {
    fn get(&self, key: &[u8]) -> String {
        format!("{key:?}")
    }

    fn count(&self) -> String {
        String::from("all")
    }

    async fn scan(&self, prefix: Bytes, reverse: bool) -> Result<String, u8> {
        Ok(format!("{prefix:?} {reverse}"))
    }
}

impl v2::Kv for Echo {
    fn get(&self, key: &[u8], version: u64) -> String {
        format!("{key:?} {version}")
    }

    fn count(&self, prefix: &[u8]) -> String {
        format!("{prefix:?}")
    }

    async fn scan(&self, prefix: Bytes, reverse: bool, end: Bytes) -> Result<String, u8> {
        Ok(format!("{prefix:?} {reverse} {end:?}"))
    }
}

impl v3::Kv for Echo {
    fn get(&self, key: &[u8], version: u64, tags: &[String], language: &str) -> String {
        format!("{key:?} {version} {tags:?} {language}")
    }

    fn count(&self, prefix: &[u8], limits: &Limits) -> String {
        format!("{prefix:?} {}", limits.rows)
    }

    async fn scan(&self, prefix: Bytes, reverse: bool, end: Bytes) -> Result<String, u8> {
        Ok(format!("{prefix:?} {reverse} {end:?}"))
    }
}

impl v4::Kv for Echo {
    fn get(&self, key: &[u8], version: u64, strict: bool) -> String {
        format!("{key:?} {version} {strict}")
    }
}

fn serve(name: &str, version: u32) -> RunningServer {
    let builder = match version {
        1 => Server::builder().service(v1::KvServer::new(Echo)),
        2 => Server::builder().service(v2::KvServer::new(Echo)),
        3 => Server::builder().service(v3::KvServer::new(Echo)),
        _ => Server::builder().service(v4::KvServer::new(Echo)),
    };
    builder.listen(format!("shm://{name}-{}", std::process::id())).unwrap()
}

fn text(answer: &str) -> Result<String, RpcError> {
    Ok(answer.to_owned())
}

/// What a call ends with whose new argument the server does not know.
fn newer(method: &str) -> RpcError {
    let why = MethodMismatch::NewerArgument;
    RpcError::NoSuchMethod { method: format!("Kv.{method}").into(), why }
}

#[test]
fn a_new_server_fills_in_the_arguments_that_an_old_client_does_not_know() {
    let server = serve("new-server", 3);
    let client = v1::KvClient::connect(server.address()).wait().unwrap();
    let mut polled = v1::KvPollClient::connect(server.address()).wait().unwrap();
    for key in [&b""[..], b"\x01k", &[7; 300]] {
        let expected = text(&format!("{key:?} 7 [] de"));
        assert_eq!(client.get(key).wait(), expected);
        assert_eq!(polled.get(key), expected);
    }
    assert_eq!(client.count().wait(), text("[] 10"));
    let scanned = client.scan(Bytes::from_static(b"p"), true).wait();
    assert_eq!(scanned.unwrap(), r#"b"p" true b"!""#);
    let client = v2::KvClient::connect(server.address()).wait().unwrap();
    assert_eq!(client.get(b"k", 9).wait(), text("[107] 9 [] de"));
    assert_eq!(client.count(b"k").wait(), text("[107] 10"));
}

#[test]
fn an_old_server_gets_a_new_clients_call_without_arguments_at_their_defaults() {
    let server = serve("old-server", 1);
    let client = v3::KvClient::connect(server.address()).wait().unwrap();
    let mut polled = v3::KvPollClient::connect(server.address()).wait().unwrap();
    for key in [&b""[..], b"\x01k", &[7; 300]] {
        assert_eq!(client.get(key, 7, &[], "de").wait(), text(&format!("{key:?}")));
        assert_eq!(polled.get(key, 7, &[], "de"), text(&format!("{key:?}")));
    }
    assert_eq!(client.count(b"", &Limits::default()).wait(), text("all"));
    let scan = |end| client.scan(Bytes::from_static(b"p"), true, Bytes::from_static(end)).wait();
    assert_eq!(scan(b"!").unwrap(), r#"b"p" true"#);
    assert_eq!(scan(b"?").unwrap_err(), CallError::Rpc(newer("scan@2")));
}

#[test]
fn a_call_with_an_argument_that_the_server_does_not_know_fails_without_being_sent() {
    let server = serve("refused", 1);
    let client = v3::KvClient::connect(server.address()).wait().unwrap();
    let mut polled = v3::KvPollClient::connect(server.address()).wait().unwrap();
    let tags = ["red".to_owned()];
    for (version, tags, language) in [(8, &[][..], "de"), (7, &tags, "de"), (7, &[], "en")] {
        assert_eq!(client.get(b"k", version, tags, language).wait(), Err(newer("get@3")));
        assert_eq!(polled.get(b"k", version, tags, language), Err(newer("get@3")));
    }
    let limited = client.count(b"", &Limits { rows: 3 }).wait();
    assert_eq!(limited, Err(newer("count@5")));
    assert!(!newer("get@3").may_have_run());
    let snapshot = server.metrics().snapshot();
    assert_eq!(snapshot.method("Kv", "get").unwrap().calls(), 0);
}

/// The newest version that both ends know.
#[test]
fn a_server_between_old_and_new_gets_what_it_knows() {
    let server = serve("between", 2);
    let client = v3::KvClient::connect(server.address()).wait().unwrap();
    assert_eq!(client.get(b"k", 8, &[], "de").wait(), text("[107] 8"));
    assert_eq!(client.get(b"k", 8, &[], "en").wait(), Err(newer("get@3")));
    assert_eq!(client.count(b"k", &Limits::default()).wait(), text("[107]"));
    let snapshot = server.metrics().snapshot();
    assert_eq!(snapshot.method("Kv", "get@2").unwrap().calls(), 1);
    assert_eq!(snapshot.method("Kv", "get").unwrap().calls(), 0);
}

#[test]
fn a_version_that_is_no_longer_served_is_missing_for_old_clients_only() {
    let server = serve("dropped", 4);
    let refused = v1::KvClient::connect(server.address()).wait().unwrap_err();
    assert!(matches!(refused, ConnectError::IncompatibleService { .. }), "{refused}");
    let client = v2::KvClient::connect(server.address()).wait().unwrap();
    assert_eq!(client.get(b"k", 8).wait(), text("[107] 8 false"));
    assert!(matches!(client.count(b"").wait(), Err(RpcError::NoSuchMethod { .. })));
    // Version 3 is of another branch: version 2 is what both know.
    let client = v3::KvClient::connect(server.address()).wait().unwrap();
    assert_eq!(client.get(b"k", 8, &[], "de").wait(), text("[107] 8 false"));
}

#[test]
fn a_version_can_be_required() {
    let server = serve("required", 2);
    let connect = |method: &'static str| {
        v3::KvClient::connect(server.address()).require(&[method]).wait().err()
    };
    assert!(connect("get").is_none() && connect("get@2").is_none());
    let refused = connect("get@3").expect("the server has version 2");
    assert!(refused.to_string().contains("Kv.get@3 is not there"), "{refused}");
    let unknown = connect("get@4").expect("the client has version 3");
    assert!(unknown.to_string().contains("Kv.get@4 is required"), "{unknown}");
    // Its trait requires `get`.
    let old = serve("required-old", 1);
    let refused = v4::KvClient::connect(old.address()).wait().unwrap_err();
    assert!(refused.to_string().contains("Kv.get@"), "{refused}");
}

#[test]
fn a_version_has_an_id_of_its_own_and_the_first_has_that_of_the_name() {
    let ids = |description: &'static farcall::ServiceDescription| -> Vec<(&str, u32)> {
        description.methods.iter().map(|method| (method.name, method.id)).collect()
    };
    let (one, three) = (ids(v1::KvClient::DESCRIPTION), ids(v3::KvClient::DESCRIPTION));
    assert!(one.iter().all(|method| three.contains(method)));
    let names: Vec<_> = three.iter().map(|(name, _)| *name).collect();
    let versions = ["get@3", "count@5", "scan@2", "get@2", "get", "count@2", "count", "scan"];
    assert_eq!(names, versions);
}

#[test]
fn a_lock_file_has_each_version_and_says_what_a_new_argument_breaks() {
    use farcall::lock::{Compatibility, Lock, Verdict, text};
    let lock = |text: String| Lock::parse(&text).unwrap();
    let (old, new) = (lock(text::<v1::KvClient>()), lock(text::<v2::KvClient>()));
    let upgrade = Compatibility::of(&old, &new);
    assert!(upgrade.keeps_old_clients() && !upgrade.keeps_old_servers());
    assert!(upgrade.changes().iter().all(|change| change.verdict == Verdict::NewClients));
    let told = upgrade.to_string();
    assert!(
        told.contains(
            "get@2 is added; at old servers, clients call an older version, and fail if a newer argument is not at its \
             default (new clients fail at old servers)"
        ),
        "{told}"
    );
    let dropped = Compatibility::of(&new, &lock(text::<v4::KvClient>())).to_string();
    assert!(dropped.contains("get is no longer served in this version"), "{dropped}");
    assert!(dropped.contains("reserved = [\"scan\"]"), "{dropped}");
}
