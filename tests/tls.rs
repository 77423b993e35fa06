//! TLS at both ends: who is let in and what handlers see, who is refused, and what each is told.

#[path = "support/between.rs"]
mod between;
#[path = "support/certificates.rs"]
mod certificates;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use between::{Between, Toward};
use certificates::{Authority, name, names, uri};
use farcall::ping::PingPollClient;
use farcall::tls::{ClientTls, ServerTls, TlsError};
use farcall::{
    Authentication, BindError, CallContext, ConnectError, Key, RefusalReason, RpcError,
    RunningServer, Server, ServerBuilder,
};

const BOUND: Duration = Duration::from_secs(20);

/// Tells callers who they are, and gives back what they send.
#[farcall::service]
trait Mirror {
    fn who(&self) -> Option<String>;
    fn echo(&self, bytes: farcall::Bytes) -> farcall::Bytes;
}

#[farcall::service]
trait Admin {
    fn stop(&self) -> bool;
}

#[derive(Clone)]
struct Here;

impl Mirror for Here {
    fn who(&self) -> Option<String> {
        let identity = CallContext::current().and_then(|context| context.identity());
        identity.map(|identity| identity.name().to_owned())
    }

    fn echo(&self, bytes: farcall::Bytes) -> farcall::Bytes {
        bytes
    }
}

impl Admin for Here {
    fn stop(&self) -> bool {
        true
    }
}

const TCP: &str = "tcp://127.0.0.1:0";

/// One address for each backend whose handshake is on TCP.
fn addresses() -> Vec<String> {
    let backends = ["write_imm", "datagram", "send_recv", "rfp", "scale"];
    let rdma = backends.map(|backend| format!("rdma://127.0.0.1:0?device=shm&backend={backend}"));
    rdma.into_iter().chain([TCP.to_owned()]).collect()
}

fn builder() -> ServerBuilder {
    Server::builder().service(MirrorServer::new(Here)).service(AdminServer::new(Here))
}

/// What both ends trust, and a server at 127.0.0.1 and `localhost`.
struct Site {
    authority: Authority,
}

impl Site {
    fn new() -> Site {
        Site { authority: Authority::new("here") }
    }

    fn server_tls(&self) -> ServerTls {
        let certificate = self.authority.issue(names(&["127.0.0.1", "localhost"]));
        ServerTls::new(certificate, self.authority.trusted()).unwrap()
    }

    fn serve(&self, address: &str) -> RunningServer {
        builder().tls(self.server_tls()).listen(address).unwrap()
    }

    /// A client with this name.
    fn client(&self, of: &str) -> ClientTls {
        ClientTls::new(self.authority.issue(name(of)), self.authority.trusted()).unwrap()
    }
}

fn connect(server: &RunningServer, tls: &ClientTls) -> Result<MirrorPollClient, ConnectError> {
    MirrorPollClient::connect(server.address()).tls(tls.clone()).wait()
}

/// Why the server does not let this client in, or the client does not take the server.
#[track_caller]
fn refuse(server: &RunningServer, tls: &ClientTls) -> String {
    match connect(server, tls) {
        Err(error @ ConnectError::NotPermitted { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Waits until the server has refused so many for TLS.
#[track_caller]
fn expect_refusals(server: &RunningServer, reason: RefusalReason, expected: u64) {
    let deadline = Instant::now() + BOUND;
    let refused =
        || server.metrics().refusals().find(|(of, _)| *of == reason).map_or(0, |(_, n)| n);
    while refused() < expected {
        assert!(Instant::now() < deadline, "{} of {expected}", refused());
        std::thread::yield_now();
    }
    assert_eq!(refused(), expected);
}

#[test]
fn over_every_backend_clients_with_a_certificate_connect_and_handlers_see_them() {
    let site = Site::new();
    for address in addresses() {
        let server = site.serve(&address);
        let (alice, bob) = (site.client("alice.example"), site.client("bob.example"));
        let (mut alice, mut bob) =
            (connect(&server, &alice).unwrap(), connect(&server, &bob).unwrap());
        for len in [0, 1, 100, 5_000, 200_000, 3 << 20] {
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            assert!(alice.echo(bytes.clone().into()).unwrap() == bytes, "{address}: {len}");
            assert_eq!(alice.who().unwrap().as_deref(), Some("alice.example"), "{address}");
            assert_eq!(bob.who().unwrap().as_deref(), Some("bob.example"), "{address}");
        }
    }
}

#[test]
fn the_name_of_a_client_is_its_uri_or_else_its_dns_name() {
    let site = Site::new();
    let server = site.serve(TCP);
    let mut both = name("billing.example");
    both.subject_alt_names.extend(uri("spiffe://here/billing").subject_alt_names);
    for (params, expected) in [
        (uri("spiffe://here/billing"), "spiffe://here/billing"),
        (names(&["a.example", "b.example"]), "a.example"),
        (both, "spiffe://here/billing"),
    ] {
        let tls = ClientTls::new(site.authority.issue(params), site.authority.trusted()).unwrap();
        assert_eq!(connect(&server, &tls).unwrap().who().unwrap().as_deref(), Some(expected));
    }
    let long = format!("spiffe://here/{}", "a".repeat(255));
    for (params, why) in
        [(names(&[]), "neither a URI nor a DNS name"), (uri(&long), "255 are the most")]
    {
        let tls = ClientTls::new(site.authority.issue(params), site.authority.trusted()).unwrap();
        let error = refuse(&server, &tls);
        assert!(error.contains(why), "{error}");
    }
    expect_refusals(&server, RefusalReason::NotPermitted, 2);
}

#[test]
fn a_callback_decides_which_certificate_may_use_which_service() {
    let site = Site::new();
    for address in [TCP, "rdma://127.0.0.1:0?device=shm"] {
        let authentication = Authentication::new()
            .permit(|identity, service| service == "Mirror" || identity.name() == "root.example");
        let server =
            builder().tls(site.server_tls()).authenticate(authentication).listen(address).unwrap();
        let admin = |of| AdminPollClient::connect(server.address()).tls(site.client(of)).wait();
        assert!(connect(&server, &site.client("alice.example")).unwrap().who().is_ok());
        assert!(admin("root.example").unwrap().stop().unwrap());
        let error = admin("alice.example").unwrap_err();
        assert!(matches!(error, ConnectError::NotPermitted { .. }), "{error}");
        assert!(error.to_string().contains("alice.example may not use Admin"), "{error}");
        let ping = |of| PingPollClient::connect(server.address()).tls(site.client(of)).wait();
        assert!(ping("root.example").is_ok());
        let error = ping("alice.example").unwrap_err().to_string();
        assert!(error.contains("alice.example may not use farcall.ping"), "{error}");
        expect_refusals(&server, RefusalReason::NotPermitted, 2);
    }
}

/// With keys, the name of the key is who the client is, and TLS is asked for all the same.
#[test]
fn keys_within_tls_name_the_client() {
    let site = Site::new();
    let key = |secret| Key::new("alice", [secret; 32]).unwrap();
    let certificate = site.authority.issue(name("127.0.0.1"));
    let server_only =
        ServerTls::without_client_certificates(site.authority.issue(names(&["127.0.0.1"])))
            .unwrap();
    let both = ServerTls::new(certificate, site.authority.trusted()).unwrap();
    for tls in [server_only, both] {
        let keys = Authentication::new().key(key(1));
        let server = builder().tls(tls).authenticate(keys).listen(TCP).unwrap();
        let connect = |secret| {
            let connecting = MirrorPollClient::connect(server.address());
            connecting.tls(site.client("billing.example")).key(key(secret)).wait()
        };
        assert_eq!(connect(1).unwrap().who().unwrap().as_deref(), Some("alice"));
        assert!(matches!(connect(2), Err(ConnectError::NotPermitted { .. })));
        let without_tls = MirrorPollClient::connect(server.address()).key(key(1)).wait();
        assert!(matches!(without_tls, Err(ConnectError::NotPermitted { .. })));
    }
}

#[test]
fn a_server_that_asks_for_no_certificate_knows_nobody() {
    let site = Site::new();
    let certificate = site.authority.issue(name("127.0.0.1"));
    let tls = ServerTls::without_client_certificates(certificate).unwrap();
    let server = builder().tls(tls.clone()).listen(TCP).unwrap();
    let anonymous = ClientTls::without_certificate(site.authority.trusted()).unwrap();
    assert_eq!(connect(&server, &anonymous).unwrap().who().unwrap(), None);
    assert_eq!(connect(&server, &site.client("a.example")).unwrap().who().unwrap(), None);
    // Then nothing tells whom to permit what.
    let permits = Authentication::new().permit(|_, _| true);
    let error = builder().tls(tls).authenticate(permits).listen(TCP).unwrap_err();
    assert!(matches!(error, BindError::Authentication { .. }), "{error}");
    assert!(error.to_string().contains("ServerBuilder::tls"), "{error}");
}

#[test]
fn a_client_takes_only_the_right_server() {
    let site = Site::new();
    let client = site.client("alice.example");
    let of = |certificate| {
        let tls = ServerTls::new(certificate, site.authority.trusted()).unwrap();
        builder().tls(tls).listen(TCP).unwrap()
    };
    let mut expired = name("127.0.0.1");
    expired.not_before = rcgen::date_time_ymd(2000, 1, 1);
    expired.not_after = rcgen::date_time_ymd(2001, 1, 1);
    let mut early = name("127.0.0.1");
    early.not_before = rcgen::date_time_ymd(3000, 1, 1);
    early.not_after = rcgen::date_time_ymd(3001, 1, 1);
    let mut of_clients = name("127.0.0.1");
    of_clients.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let stranger = Authority::new("elsewhere");
    for (certificate, wanted) in [
        (
            stranger.issue(name("127.0.0.1")),
            ["no authority that this end trusts", "give ClientTls"],
        ),
        (site.authority.issue(expired), ["has expired", "renew it"]),
        (site.authority.issue(early), ["not valid yet", "clock"]),
        (site.authority.issue(of_clients), ["extended key usage", "server"]),
        (site.authority.issue(name("kv.example")), ["kv.example", "not for \"127.0.0.1\""]),
        (site.authority.issue(name("kv.example")), ["not for", "ClientTls::server_name"]),
    ] {
        let server = of(certificate);
        let error = refuse(&server, &client);
        assert!(wanted.iter().all(|part| error.contains(part)), "{error}");
        expect_refusals(&server, RefusalReason::Tls, 1);
    }
    // The name may be said instead of taken from the address.
    let server = of(site.authority.issue(name("kv.example")));
    let named = client.clone().server_name("kv.example").unwrap();
    assert!(connect(&server, &named).unwrap().who().is_ok());
    assert!(
        refuse(&server, &client.server_name("other.example").unwrap()).contains("other.example")
    );
}

#[test]
fn a_server_takes_only_the_right_clients_and_tells_them_why() {
    let site = Site::new();
    let server = site.serve(TCP);
    let stranger = Authority::new("elsewhere");
    let mut expired = name("alice.example");
    expired.not_before = rcgen::date_time_ymd(2000, 1, 1);
    expired.not_after = rcgen::date_time_ymd(2001, 1, 1);
    let with = |certificate| ClientTls::new(certificate, site.authority.trusted()).unwrap();
    for (count, (tls, wanted)) in [
        (
            ClientTls::without_certificate(site.authority.trusted()).unwrap(),
            ["lets in only ends with a certificate", "ClientTls::new"],
        ),
        (
            with(stranger.issue(name("alice.example"))),
            ["trusts no authority", "have it trust this one"],
        ),
        (with(site.authority.issue(expired)), ["has expired", "renew it"]),
    ]
    .into_iter()
    .enumerate()
    {
        let error = refuse(&server, &tls);
        assert!(wanted.iter().all(|part| error.contains(part)), "{error}");
        expect_refusals(&server, RefusalReason::Tls, count as u64 + 1);
    }
    assert!(connect(&server, &site.client("alice.example")).is_ok());
}

#[test]
fn tls_at_one_end_only_is_told_as_such() {
    let site = Site::new();
    for address in [TCP, "rdma://127.0.0.1:0?device=shm"] {
        let secured = site.serve(address);
        let error = MirrorPollClient::connect(secured.address()).wait().unwrap_err();
        assert!(matches!(error, ConnectError::NotPermitted { .. }), "{error}");
        assert!(error.to_string().contains("give the client `tls`"), "{error}");
        expect_refusals(&secured, RefusalReason::Tls, 1);

        let plain = builder().listen(address).unwrap();
        let error = refuse(&plain, &site.client("alice.example"));
        assert!(error.contains("the server has no TLS"), "{error}");
        expect_refusals(&plain, RefusalReason::Tls, 1);
    }
}

#[test]
fn shm_has_no_tls_at_either_end() {
    let site = Site::new();
    let address = format!("shm://tls-{}", std::process::id());
    let error = builder().tls(site.server_tls()).listen(&address).unwrap_err();
    assert!(matches!(error, BindError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("shm:// has no TLS"), "{error}");
    let server = builder().listen(&address).unwrap();
    let error = connect(&server, &site.client("alice.example")).unwrap_err();
    assert!(matches!(error, ConnectError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("use tcp:// or rdma://"), "{error}");
}

/// A server that reads the time of another cannot do so through TLS.
#[test]
fn a_server_with_tls_follows_no_other_servers_time() {
    let address =
        "rdma://127.0.0.1:0?device=shm&backend=scale&groups=2&slices_of=rdma://127.0.0.1:1";
    let error = builder().tls(Site::new().server_tls()).listen(address).unwrap_err();
    assert!(matches!(error, BindError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("slices_of"), "{error}");
}

/// What no TLS is, or only the beginning of one, from a socket by hand.
#[test]
fn peers_that_are_none_take_no_room_and_are_counted() {
    let site = Site::new();
    let handshake_timeout = Duration::from_millis(300);
    let server =
        builder().tls(site.server_tls()).handshake_timeout(handshake_timeout).listen(TCP).unwrap();
    let (_, port) = server.address().split_once("://").unwrap();
    let (port, _) = port.split_once('?').unwrap_or((port, ""));
    let say = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(port).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let hear = |mut stream: TcpStream| {
        let mut answer = Vec::new();
        // A reset is an end too.
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    // Another protocol. It learns no more than that this is TLS.
    let answer = hear(say(b"GET / HTTP/1.1\r\n\r\n"));
    assert!(answer.len() <= 7, "{answer:?}");
    expect_refusals(&server, RefusalReason::Tls, 1);
    // A hello of TLS 1.2 alone: the alert is protocol_version.
    assert_eq!(hear(say(&hello_of_tls_1_2())), [0x15, 3, 3, 0, 2, 2, 0x46]);
    expect_refusals(&server, RefusalReason::Tls, 2);
    // Half a hello, then silence; and one whose sender has gone.
    let begun = Instant::now();
    assert!(hear(say(&hello_of_tls_1_2()[..20])).is_empty());
    assert!(begun.elapsed() < BOUND);
    expect_refusals(&server, RefusalReason::NoHandshake, 1);
    let gone = say(&[0x16]);
    gone.shutdown(Shutdown::Write).unwrap();
    assert!(hear(gone).is_empty());
    expect_refusals(&server, RefusalReason::NoHandshake, 2);
    // A record whose end never comes, byte by byte: the whole handshake has one deadline.
    let mut dripping = say(&[0x16, 3, 1, 0x40, 0]);
    let begun = Instant::now();
    while dripping.write_all(&[0]).is_ok() {
        assert!(begun.elapsed() < BOUND);
        std::thread::park_timeout(Duration::from_millis(5));
    }
    // On a busy machine an honest handshake may take longer than this server allows.
    let mut honest = std::iter::repeat_with(|| connect(&server, &site.client("alice.example")));
    assert!(honest.by_ref().take(20).flatten().next().unwrap().who().is_ok());
}

/// The hello of a client that has nothing newer than TLS 1.2, after RFC 5246, section 7.4.1.2.
fn hello_of_tls_1_2() -> Vec<u8> {
    // TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, the group secp256r1, ecdsa_secp256r1_sha256.
    let extensions = [&[0, 10, 0, 4, 0, 2, 0, 23][..], &[0, 13, 0, 4, 0, 2, 4, 3]].concat();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0xc0, 0x2b, 1, 0, 0, extensions.len() as u8]);
    body.extend(extensions);
    let message = [&[1, 0, 0, body.len() as u8][..], &body].concat();
    [&[0x16, 3, 1, 0, message.len() as u8][..], &message].concat()
}

#[test]
fn a_byte_that_somebody_changes_in_the_handshake_connects_nobody() {
    let site = Site::new();
    for address in [TCP, "rdma://127.0.0.1:0?device=shm"] {
        let server = site.serve(address);
        let connect = |change: Option<_>| {
            let between = Arc::new(Between { change, ..Between::default() });
            let connecting = MirrorPollClient::connect(between.listen(&server));
            // A length that was changed lets the ends wait for what never comes.
            let timeout = if change.is_some() { Duration::from_secs(1) } else { BOUND };
            let connected = connecting.tls(site.client("a.example")).dial_timeout(timeout).wait();
            assert_eq!(between.has_changed.load(SeqCst), change.is_some(), "{change:?}");
            connected
        };
        assert!(connect(None).unwrap().who().is_ok(), "{address}");
        for toward in [Toward::Server, Toward::Client] {
            // In the hellos, and in what follows them.
            for at in [50, 100, 500, 700] {
                let error = connect(Some((toward, at))).unwrap_err();
                let is_meant = match &error {
                    // An end has found out, or waits for more.
                    ConnectError::NotPermitted { reason, .. } => reason.contains("TLS"),
                    ConnectError::TimedOut { .. } => true,
                    _ => false,
                };
                assert!(is_meant, "{address}: byte {at} toward {toward:?}: {error}");
            }
        }
        assert!(connect(None).unwrap().who().is_ok(), "{address}");
    }
}

#[test]
fn a_byte_that_somebody_changes_in_a_call_ends_the_connection() {
    let site = Site::new();
    let server = site.serve(TCP);
    let mut other = connect(&server, &site.client("b.example")).unwrap();
    for toward in [Toward::Server, Toward::Client] {
        let between = Arc::new(Between::default());
        let tls = site.client("a.example");
        let mut client =
            MirrorPollClient::connect(between.listen(&server)).tls(tls).wait().unwrap();
        for _ in 0..3 {
            assert_eq!(client.who().unwrap().as_deref(), Some("a.example"));
        }
        *between.change_next.lock().unwrap() = Some(toward);
        let error = client.who().unwrap_err();
        let expected = match toward {
            Toward::Server => matches!(error, RpcError::PeerGone { .. }),
            Toward::Client => matches!(error, RpcError::PeerMisbehaved { .. }),
        };
        assert!(expected, "{toward:?}: {error:?}");
        expect_refusals(&server, RefusalReason::BrokeProtocol, 1);
        assert_eq!(other.who().unwrap().as_deref(), Some("b.example"));
    }
}

#[test]
fn an_async_client_connects_again_within_tls_and_certificates_can_be_replaced() {
    let site = Site::new();
    let tls = site.server_tls();
    let server = builder().tls(tls.clone()).listen(TCP).unwrap();
    let address = server.address().to_owned();
    let client_tls = site.client("alice.example");
    let client = MirrorClient::connect(&address).tls(client_tls.clone()).wait().unwrap();
    let who = || client.who().wait();
    assert_eq!(who().unwrap().as_deref(), Some("alice.example"));
    // Another authority at both ends: connections that exist stay as they are.
    let next = Site::new();
    assert!(tls.replace(&next.server_tls()));
    assert_eq!(who().unwrap().as_deref(), Some("alice.example"));
    let error = refuse(&server, &site.client("bob.example"));
    assert!(error.contains("no authority that this end trusts"), "{error}");
    client_tls.replace(&next.client("carol.example"));
    server.shutdown();
    let _again = builder().tls(tls.clone()).listen(&address).unwrap();
    let deadline = Instant::now() + BOUND;
    loop {
        match who() {
            Ok(who) => break assert_eq!(who.as_deref(), Some("carol.example")),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
    let certificate = next.authority.issue(name("127.0.0.1"));
    let other_kind = ServerTls::without_client_certificates(certificate).unwrap();
    assert!(!tls.replace(&other_kind));
}

#[test]
fn files_that_are_not_what_they_should_be_are_told() {
    use farcall::tls::{Authorities, Certificate};
    let site = Site::new();
    let [chain, key] = site.authority.issue_pem(name("a.example"));
    let [_, other] = site.authority.issue_pem(name("a.example"));
    let why = |error: TlsError| error.to_string();
    assert!(why(Authorities::from_pem("").unwrap_err()).contains("no certificate"));
    assert!(why(Certificate::from_pem(&chain, &chain).unwrap_err()).contains("no private key"));
    assert!(why(Certificate::from_pem(&key, &key).unwrap_err()).contains("no certificate"));
    let missing = std::env::temp_dir().join("nosuch").join("farcall.pem");
    let error = Certificate::from_pem_files(&missing, &missing).unwrap_err();
    assert!(
        matches!(&error, TlsError::File { path, .. } if *path == missing.display().to_string())
    );
    let mixed = Certificate::from_pem(&chain, &other).unwrap();
    assert!(!format!("{mixed:?}").contains("48, 1"), "no key is printed");
    let error = ServerTls::new(mixed, site.authority.trusted()).unwrap_err();
    assert!(why(error).contains("are they of one pair?"));
    let files = ["chain", "key", "authority"].map(|what| {
        std::env::temp_dir().join(format!("farcall-{what}-{}.pem", std::process::id()))
    });
    for (file, text) in files.iter().zip([&chain, &key, &site.authority.pem()]) {
        std::fs::write(file, text).unwrap();
    }
    let certificate = Certificate::from_pem_files(&files[0], &files[1]).unwrap();
    let authorities = Authorities::from_pem_file(&files[2]).unwrap();
    let named = ClientTls::new(certificate, authorities).unwrap().server_name("no name");
    assert!(matches!(named, Err(TlsError::ServerName(name)) if name == "no name"));
    files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
}
