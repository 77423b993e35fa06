//! Who may call: keys at both ends, over every backend, and what handlers see of them.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farcall::ping::PingPollClient;
use farcall::{
    Authentication, BindError, CallContext, ConnectError, Key, RunningServer, Server, ServerBuilder,
};

const BOUND: Duration = Duration::from_secs(20);

/// Tells callers who they are.
#[farcall::service(any_thread)]
trait Mirror {
    fn who(&self) -> Option<String>;
    /// Asks again after the handler has waited.
    async fn who_later(&self) -> Option<String>;
    /// Runs so long that an idle thread takes further calls.
    fn who_after(&self, micros: u64) -> (Option<String>, String);
}

#[farcall::service]
trait Admin {
    fn stop(&self) -> bool;
}

#[derive(Clone)]
struct Here;

fn caller() -> Option<String> {
    let identity = CallContext::current().and_then(|context| context.identity());
    identity.map(|identity| identity.name().to_owned())
}

impl Mirror for Here {
    fn who(&self) -> Option<String> {
        caller()
    }

    async fn who_later(&self) -> Option<String> {
        let woken = Arc::new(AtomicBool::new(false));
        std::future::poll_fn(|cx| {
            if woken.swap(true, Ordering::AcqRel) {
                return std::task::Poll::Ready(());
            }
            let waker = cx.waker().clone();
            thread::spawn(move || waker.wake());
            std::task::Poll::Pending
        })
        .await;
        caller()
    }

    fn who_after(&self, micros: u64) -> (Option<String>, String) {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_micros(micros) {
            std::hint::spin_loop();
        }
        (caller(), format!("{:?}", thread::current().id()))
    }
}

impl Admin for Here {
    fn stop(&self) -> bool {
        true
    }
}

fn key(name: &str, secret: u8) -> Key {
    Key::new(name, [secret; 32]).unwrap()
}

fn builder() -> ServerBuilder {
    Server::builder().service(MirrorServer::new(Here)).service(AdminServer::new(Here))
}

fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("farcall-auth-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A server that knows these keys, on shared memory.
fn serve(keys: &[Key]) -> RunningServer {
    let authentication = keys.iter().cloned().fold(Authentication::new(), Authentication::key);
    builder().authenticate(authentication).listen(format!("shm://{}", unique())).unwrap()
}

fn connect(server: &RunningServer, key: Option<Key>) -> Result<MirrorPollClient, ConnectError> {
    let connecting = MirrorPollClient::connect(server.address());
    match key {
        Some(key) => connecting.key(key).wait(),
        None => connecting.wait(),
    }
}

/// One address for each backend, and each kind of socket.
fn addresses() -> Vec<String> {
    let backends = ["write_imm", "datagram", "send_recv", "rfp", "scale"];
    let shm = backends.map(|backend| format!("shm://{}?backend={backend}", unique()));
    let others = ["rdma://127.0.0.1:0?device=shm", "tcp://127.0.0.1:0"].map(str::to_owned);
    shm.into_iter().chain(others).collect()
}

#[test]
fn over_every_backend_clients_with_a_key_connect_and_handlers_see_them() {
    for address in addresses() {
        let keys = Authentication::new().key(key("alice", 1)).key(key("bob", 2));
        let server = builder().authenticate(keys).listen(&address).unwrap();
        let connect = |key| MirrorPollClient::connect(server.address()).key(key).wait().unwrap();
        let (mut alice, mut bob) = (connect(key("alice", 1)), connect(key("bob", 2)));
        for _ in 0..3 {
            assert_eq!(alice.who().unwrap().as_deref(), Some("alice"), "{address}");
            assert_eq!(bob.who().unwrap().as_deref(), Some("bob"), "{address}");
            assert_eq!(alice.who_later().unwrap().as_deref(), Some("alice"), "{address}");
        }
        // Another client gets the place of one that left.
        drop(alice);
        let mut again = connect(key("bob", 2));
        assert_eq!(again.who().unwrap().as_deref(), Some("bob"), "{address}");

        for stranger in [Some(key("alice", 2)), Some(key("carol", 1)), None] {
            let connecting = MirrorPollClient::connect(server.address());
            let refused = match stranger {
                Some(key) => connecting.key(key).wait(),
                None => connecting.wait(),
            };
            let error = refused.unwrap_err();
            assert!(matches!(error, ConnectError::NotPermitted { .. }), "{address}: {error}");
        }
        server.shutdown();
    }
}

#[test]
fn refusals_name_the_mend_and_tell_strangers_no_names() {
    let server = serve(&[key("alice", 1)]);
    let refuse = |key| connect(&server, key).unwrap_err().to_string();
    let none = refuse(None);
    assert!(none.contains("only clients with a key") && none.contains("`key`"), "{none}");
    let wrong = refuse(Some(key("alice", 9)));
    assert!(wrong.contains("no key of that name with that secret"), "{wrong}");
    assert_eq!(refuse(Some(key("nosuch", 9))), wrong);

    let open = builder().listen(format!("shm://{}", unique())).unwrap();
    let error = connect(&open, Some(key("alice", 1))).unwrap_err();
    assert!(matches!(error, ConnectError::NotPermitted { .. }), "{error}");
    assert!(error.to_string().contains("asks for no key"), "{error}");
    assert_eq!(connect(&open, None).unwrap().who().unwrap(), None, "it authenticates nobody");
}

#[test]
fn a_callback_decides_which_identity_may_use_which_service() {
    let authentication = Authentication::new()
        .key(key("alice", 1))
        .key(key("root", 2))
        .permit(|identity, service| service == "Mirror" || identity.name() == "root");
    let address = format!("shm://{}", unique());
    let server = builder().authenticate(authentication).listen(address).unwrap();
    let admin = |key| AdminPollClient::connect(server.address()).key(key).wait();
    assert!(connect(&server, Some(key("alice", 1))).is_ok());
    assert!(admin(key("root", 2)).unwrap().stop().unwrap());
    let error = admin(key("alice", 1)).unwrap_err();
    assert!(matches!(error, ConnectError::NotPermitted { .. }), "{error}");
    assert!(error.to_string().contains("alice may not use Admin"), "{error}");
    // Built-in services are asked for as others are.
    let ping = |key| PingPollClient::connect(server.address()).key(key).wait();
    assert!(ping(key("root", 2)).is_ok());
    let error = ping(key("alice", 1)).unwrap_err().to_string();
    assert!(error.contains("alice may not use farcall.ping"), "{error}");
}

#[test]
fn a_secret_is_replaced_while_clients_have_the_old_one() {
    let (old, new) = (key("alice", 1), key("alice", 2));
    let both = serve(&[old.clone(), new.clone()]);
    for key in [&old, &new] {
        let mut client = connect(&both, Some(key.clone())).unwrap();
        assert_eq!(client.who().unwrap().as_deref(), Some("alice"));
    }
    let after = serve(std::slice::from_ref(&new));
    let error = connect(&after, Some(old)).unwrap_err().to_string();
    assert!(error.contains("no key of that name with that secret"), "{error}");
    assert!(connect(&after, Some(new)).is_ok());
}

#[test]
fn an_async_client_connects_again_with_its_key() {
    let address = format!("shm://{}", unique());
    let listen = || {
        let authentication = Authentication::new().key(key("alice", 1));
        builder().authenticate(authentication).listen(&address).unwrap()
    };
    let server = listen();
    let client = MirrorClient::connect(&address).key(key("alice", 1)).wait().unwrap();
    assert_eq!(client.who().wait().unwrap().as_deref(), Some("alice"));
    server.shutdown();
    let _next = listen();
    let deadline = Instant::now() + BOUND;
    loop {
        match client.who().wait() {
            Ok(who) => break assert_eq!(who.as_deref(), Some("alice")),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

#[test]
fn a_call_that_another_thread_runs_has_its_own_callers_identity() {
    let authentication = Authentication::new().key(key("alice", 1)).key(key("bob", 2));
    let server = builder()
        .threads(2)
        .work_stealing(true)
        .authenticate(authentication)
        .listen(format!("shm://{}", unique()))
        .unwrap();
    let names = [("alice", 1), ("bob", 2)];
    let callers = names.map(|(name, secret)| {
        // Two connections of each, so that one thread has both.
        [0, 1].map(|_| (name, connect(&server, Some(key(name, secret))).unwrap()))
    });
    let mut threads_of = std::collections::BTreeMap::<usize, std::collections::BTreeSet<_>>::new();
    let deadline = Instant::now() + BOUND;
    let mut callers: Vec<_> = callers.into_iter().flatten().collect();
    // Until some connection's calls have run on both threads.
    while threads_of.values().all(|threads| threads.len() < 2) {
        assert!(Instant::now() < deadline, "no call was given away");
        for (index, (name, client)) in callers.iter_mut().enumerate() {
            let mut started: Vec<_> =
                (0..4).map(|_| client.start_who_after(200).unwrap()).collect();
            while let Some(call) = started.pop() {
                let (who, thread) = client.connection().wait(call).unwrap().unwrap();
                assert_eq!(who.as_deref(), Some(*name));
                threads_of.entry(index).or_default().insert(thread);
            }
        }
    }
}

/// Somebody on the way, who leads all clients to this server. Gives the address that they dial.
fn detour(server: &RunningServer) -> String {
    let place = server.address().strip_prefix("tcp://").unwrap();
    let target = place.split('?').next().unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(&target).unwrap());
            let pairs = [(&client, &server), (&server, &client)];
            for (mut from, mut to) in
                pairs.map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
            {
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    address
}

#[test]
fn servers_with_one_key_cannot_be_exchanged_on_the_way_if_the_client_names_one() {
    let named = |name: &str| {
        let keys = Authentication::new().key(key("alice", 1)).server_name(name);
        builder().authenticate(keys).listen("tcp://127.0.0.1:0").unwrap()
    };
    let servers = [named("eu-1"), named("eu-2")];
    let [right, wrong] = servers.each_ref().map(detour);
    let connect = |address: &str, key| MirrorClient::connect(address).key(key).wait();
    for address in [&right, &wrong] {
        let client = connect(address, key("alice", 1)).unwrap();
        assert!(client.who().wait().is_ok(), "the key alone does not tell {address}");
    }
    let for_one = key("alice", 1).for_server("eu-1").unwrap();
    let client = connect(&right, for_one.clone()).unwrap();
    assert_eq!(client.who().wait().unwrap().as_deref(), Some("alice"));
    let error = connect(&wrong, for_one.clone()).unwrap_err();
    assert!(matches!(error, ConnectError::NotPermitted { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("wants the server \"eu-1\"") && text.contains("is \"eu-2\""), "{text}");
    // A server without a name is none that was asked for.
    let unnamed = serve(&[key("alice", 1)]);
    let error = connect(unnamed.address(), for_one).unwrap_err();
    assert!(error.to_string().contains("has no name"), "{error}");
}

#[test]
fn an_authentication_without_a_key_does_not_listen() {
    let address = format!("shm://{}", unique());
    let error = builder().authenticate(Authentication::new()).listen(address).unwrap_err();
    assert!(matches!(error, BindError::Authentication { .. }), "{error}");
    assert!(error.to_string().contains("no key"), "{error}");
}
