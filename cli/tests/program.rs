//! The built program as users run it. Every wait is bounded.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farcall::memory::{Memory, MemoryServer, Rights, Until};
use farcall::{Authentication, Key, MoveEvent, RunningServer, Server};
use rustix::process::{Pid, Signal, kill_process};

/// Longer than any test, even on two busy cores.
const BOUND: Duration = Duration::from_secs(60);

#[farcall::service]
trait Nothing {
    /// Never called.
    fn nothing(&self);
}

#[derive(Clone)]
struct Idle;

impl Nothing for Idle {
    fn nothing(&self) {}
}

fn serve(address: &str) -> RunningServer {
    Server::builder().service(NothingServer::new(Idle)).listen(address).unwrap()
}

fn fresh() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("shm://farcall-cli-test-{}-{next}", std::process::id())
}

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farcall"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finish(mut child: Child) -> Output {
    let deadline = Instant::now() + BOUND;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("it had not ended after {BOUND:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = finish(program(arguments).spawn().unwrap());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn info_lists_devices_backends_and_limits() {
    let (code, out, _) = run(&["info"]);
    assert_eq!(code, Some(0));
    for told in ["shm: ", "backend write_imm", "runs", "locked memory", "huge pages", "open files"]
    {
        assert!(out.contains(told), "{told}: {out}");
    }
    let (code, out, _) = run(&["info", "shm", "--json"]);
    assert_eq!(code, Some(0));
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["devices"][0]["name"], "shm");
    assert_eq!(report["devices"][0]["backends"][0]["runs"], true);
    assert!(report["system"]["cores"].as_u64() > Some(0));
}

#[test]
fn info_shows_the_cores_of_nodes_and_of_server_threads() {
    let this = std::process::id();
    let pinned = farcall::numa::Pinning::EachCore.cores(1).unwrap();
    let builder = Server::builder().service(NothingServer::new(Idle)).pin(pinned.clone());
    let server = builder.listen(fresh()).unwrap();
    let (code, out, _) = run(&["info", "shm", "--json"]);
    assert_eq!(code, Some(0));
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let servers = report["layout"]["servers"].as_array().unwrap();
    let own = servers.iter().find(|it| it["pid"] == this).unwrap_or_else(|| panic!("{out}"));
    let threads = own["threads"].as_array().unwrap();
    // Other tests of this process serve, too; they do not pin.
    let is_pinned = |it: &&serde_json::Value| it["cores"] == serde_json::json!(pinned);
    assert!(threads.iter().any(|it| is_pinned(&it)), "{out}");
    assert!(
        threads.iter().all(|it| it["far"].as_array().unwrap().is_empty()),
        "no RDMA device: {out}"
    );
    let (_, out, _) = run(&["info"]);
    assert!(out.contains(&format!("server {this}")), "{out}");
    if !farcall::numa::Layout::read().nodes().is_empty() {
        assert!(out.contains("NUMA node 0"), "{out}");
    }
    server.shutdown();
}

#[test]
fn an_unknown_device_is_an_error_that_lists_the_known_ones() {
    let (code, _, err) = run(&["info", "nosuch0"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("nosuch0") && err.contains("shm"), "{err}");
}

#[test]
fn info_of_a_server_shows_what_it_has_refused() {
    let address = fresh();
    let server = serve(&address);
    let (code, out, err) = run(&["info", server.address()]);
    assert_eq!((code, out.contains("refused so far     0")), (Some(0), true), "{out}{err}");
    // The server has no such backend.
    let (code, _, err) = run(&["ping", &format!("{address}?backend=datagram")]);
    assert_eq!(code, Some(2), "{err}");
    let (_, out, err) = run(&["info", server.address()]);
    assert!(
        out.contains("refused so far     1") && out.contains("backend          1"),
        "{out}{err}"
    );
    let (_, out, err) = run(&["info", server.address(), "--json"]);
    let report: serde_json::Value = serde_json::from_str(&out).expect(&err);
    assert_eq!(
        (&report["refusals"]["backend"], &report["refusals"]["full"]),
        (&1.into(), &0.into())
    );
}

#[test]
fn info_of_a_server_shows_the_memory_that_it_lends() {
    let memory = Memory::new().unwrap();
    let region = memory.region(8192).unwrap();
    region.lend(..64, Rights::READ, Until::REVOKED).unwrap();
    let service = MemoryServer::new(memory);
    let server = Server::builder().service(service).listen(fresh()).unwrap();
    let (code, out, err) = run(&["info", server.address()]);
    assert_eq!(code, Some(0), "{err}");
    for told in ["1 regions of 1 MiB, 1 lends, 0 lanes", "the oldest lend  for", "to everyone"] {
        assert!(out.contains(told), "{told}: {out}");
    }
    let (_, out, _) = run(&["info", server.address(), "--json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["memory"]["bytes"], 8192, "{out}");
    server.shutdown();
}

#[test]
fn info_of_a_server_shows_who_is_connected_and_why() {
    let address = format!("{}?backend=hybrid&exclude=scale", fresh());
    let file = std::env::temp_dir().join(format!("farcall-cli-alice-{}", std::process::id()));
    std::fs::write(&file, "07".repeat(32)).unwrap();
    let alice = || Key::from_file("alice", &file).unwrap();
    let key = format!("alice:{}", file.display());
    let authentication = Authentication::new().key(alice());
    let builder = Server::builder().service(NothingServer::new(Idle));
    let server = builder.authenticate(authentication).listen(&address).unwrap();
    let info = |more: &[&str]| {
        let pinned = format!("{address}&pin=send_recv");
        run(&[&["info", &pinned, "--key-file", &key], more].concat())
    };
    let (code, out, err) = info(&[]);
    assert_eq!(code, Some(0), "{out}{err}");
    // The program's own.
    for told in
        ["connections        1", "send_recv        1", "connection   who", "0.1", "alice", "first"]
    {
        assert!(out.contains(told), "{told}: {out}");
    }
    let client = NothingClient::connect(&*address).key(alice());
    let client = client.wait().unwrap();
    let deadline = Instant::now() + BOUND;
    // Until it has tried all backends, at least once.
    while client.channel().metrics().moves(MoveEvent::Tried) < 3 {
        assert!(Instant::now() < deadline, "it does not move");
        client.nothing().wait().unwrap();
    }
    let (_, out, err) = info(&["--json"]);
    let report: serde_json::Value = serde_json::from_str(&out).expect(&err);
    let connections = &report["connections"];
    let listed = connections["listed"].as_array().unwrap();
    let moving = listed.iter().find(|it| it["lanes_so_far"].as_u64() >= Some(4)).expect(&out);
    assert_eq!((&moving["thread"], &moving["identity"]), (&0.into(), &"alice".into()));
    let lane = moving["lanes"].as_array().unwrap().last().unwrap();
    assert!(lane["open_for_micros"].as_u64() < Some(BOUND.as_micros() as u64), "{lane}");
    let trials =
        connections["lanes_opened"].as_array().unwrap().iter().filter(|it| it[1] == "trial");
    assert!(trials.map(|it| it[2].as_u64().unwrap()).sum::<u64>() >= 3, "{connections}");
    std::fs::remove_file(file).unwrap();
    server.shutdown();
}

#[test]
fn a_server_need_not_say_what_it_has_refused() {
    let server = Server::builder().service(NothingServer::new(Idle)).remote_info(false);
    let server = server.listen(fresh()).unwrap();
    let (code, out, err) = run(&["info", server.address()]);
    assert_eq!((code, out.contains("does not say")), (Some(0), true), "{out}{err}");
    let (_, out, err) = run(&["info", server.address(), "--json"]);
    let report: serde_json::Value = serde_json::from_str(&out).expect(&err);
    assert!(report["refusals"].is_null() && report["connections"].is_null(), "{report}");
}

#[test]
fn every_server_answers_pings() {
    for address in [fresh(), "rdma://127.0.0.1:0?device=shm".to_owned()] {
        let server = serve(&address);
        let (code, out, err) =
            run(&["ping", server.address(), "--count", "3", "--interval", "0.01"]);
        assert_eq!(code, Some(0), "{out}{err}");
        for told in ["1: ", "3: ", "3 sent, 3 answered, 0 lost", "p50", "p99.9"] {
            assert!(out.contains(told), "{told}: {out}");
        }
        let all = ["ping", server.address(), "-c", "1000", "-i", "0", "-s", "10000", "--json"];
        let (code, out, err) = run(&all);
        assert_eq!(code, Some(0), "{out}{err}");
        let summary: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&summary["answered"], &summary["size"]), (&1000.into(), &10_000.into()));
        let nanos = |name: &str| summary[name].as_u64().unwrap();
        // A cache line alone takes 100 ns for a round trip.
        assert!(nanos("min_ns") > 100 && nanos("max_ns") < BOUND.as_nanos() as u64, "{summary}");
        assert!(nanos("min_ns") <= nanos("p50_ns") && nanos("p50_ns") <= nanos("max_ns"));
        server.shutdown();
    }
}

#[test]
fn a_program_proves_itself_with_the_secret_of_a_file() {
    let file = std::env::temp_dir().join(format!("farcall-cli-key-{}", std::process::id()));
    std::fs::write(&file, [7; 32]).unwrap();
    let keys = Authentication::new().key(Key::from_file("probe", &file).unwrap());
    let authentication = keys.server_name("eu-1");
    let builder = Server::builder().service(NothingServer::new(Idle));
    let server = builder.authenticate(authentication).listen(fresh()).unwrap();
    let ping = |key: &str| {
        let key = format!("{key}:{}", file.display());
        run(&["ping", server.address(), "-c", "1", "--key-file", &key])
    };
    let (code, out, err) = ping("probe");
    assert_eq!(code, Some(0), "{out}{err}");
    let (code, _, err) = ping("other");
    assert!(code == Some(2) && err.contains("no key of that name"), "{err}");
    let key = format!("probe:{}", file.display());
    let (code, out, err) = run(&["info", server.address(), "--key-file", &key]);
    assert!(code == Some(0) && out.contains("not_permitted    1"), "{out}{err}");
    let ping_named = |name: &str| {
        let ping = ["ping", server.address(), "-c", "1", "--key-file", &key];
        run(&[&ping[..], &["--server-name", name]].concat())
    };
    let (code, out, err) = ping_named("eu-1");
    assert_eq!(code, Some(0), "{out}{err}");
    let (code, _, err) = ping_named("eu-2");
    assert!(code == Some(2) && err.contains("wants the server \"eu-2\""), "{err}");
    let (code, _, err) = run(&["ping", server.address(), "-c", "1"]);
    assert!(code == Some(2) && err.contains("only clients with a key"), "{err}");
    let (_, _, err) = run(&["ping", server.address(), "--key-file", "probe:/nosuch"]);
    assert!(err.contains("the key file /nosuch"), "{err}");
    std::fs::remove_file(&file).unwrap();
    server.shutdown();
}

#[cfg(feature = "tls")]
#[test]
fn a_ping_shows_its_certificate() {
    use farcall::tls::{Authorities, Certificate, ServerTls};
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let issue = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        [params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem()]
    };
    let ([chain, key], [of_client, key_of_client]) = (issue("kv.example"), issue("probe.example"));
    let trusted = Authorities::from_pem(authority.pem()).unwrap();
    let tls = ServerTls::new(Certificate::from_pem(chain, key).unwrap(), trusted).unwrap();
    let authentication =
        Authentication::new().permit(|identity, _| identity.name() == "probe.example");
    let builder = Server::builder().service(NothingServer::new(Idle)).tls(tls);
    let server = builder.authenticate(authentication).listen("tcp://127.0.0.1:0").unwrap();
    let file = |what: &str, text: &str| {
        let name = format!("farcall-cli-{what}-{}.pem", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let ca = file("ca", &authority.pem());
    let (certificate, key) = (file("cert", &of_client), file("key", &key_of_client));
    let ping = |options: &[&str]| run(&[&["ping", server.address(), "-c", "1"], options].concat());
    let own = ["--tls-cert", &certificate, "--tls-key", &key];
    let (code, out, err) =
        ping(&[&["--tls-ca", &ca, "--tls-name", "kv.example"], &own[..]].concat());
    assert_eq!(code, Some(0), "{out}{err}");
    let (code, _, err) = ping(&[&["--tls-ca", &ca], &own[..]].concat());
    assert!(code == Some(2) && err.contains("is for") && err.contains("kv.example"), "{err}");
    let (code, _, err) = ping(&["--tls-ca", &ca, "--tls-name", "kv.example"]);
    assert!(code == Some(2) && err.contains("only ends with a certificate"), "{err}");
    let (code, _, err) = ping(&[]);
    assert!(code == Some(2) && err.contains("speaks TLS only"), "{err}");
    let (code, _, err) = ping(&own);
    assert!(code == Some(2) && err.contains("--tls-ca"), "{err}");
    [ca, certificate, key].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    server.shutdown();
}

#[test]
fn a_ping_without_a_server_is_an_error_with_a_hint() {
    let (code, _, err) = run(&["ping", &fresh()]);
    assert_eq!(code, Some(2));
    assert!(err.contains("no server at shm://") && err.contains("start the server"), "{err}");
    let (code, _, err) = run(&["ping", "nowhere"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("`nowhere` has no scheme"), "{err}");
}

/// A running ping and its output lines.
fn start(arguments: &[&str]) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = program(arguments).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    (child, lines)
}

#[test]
fn a_stopped_ping_prints_its_summary() {
    let server = serve(&fresh());
    let (child, mut lines) = start(&["ping", server.address(), "--interval", "0.02"]);
    assert!(lines.any(|line| line.starts_with("3: ")));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(lines.any(|line| line.contains(" 0 lost")));
    assert_eq!(finish(child).status.code(), Some(0));
    server.shutdown();
}

#[test]
fn pings_resume_when_the_server_is_back() {
    let address = fresh();
    let server = serve(&address);
    let (child, mut lines) = start(&["ping", &address, "--interval", "0.02"]);
    assert!(lines.any(|line| line.starts_with("2: ")));
    server.shutdown();
    assert!(lines.any(|line| line.contains("no server at")));
    let server = serve(&address);
    assert!(lines.any(|line| line.ends_with("us") || line.ends_with("ns")));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(lines.any(|line| line.contains(" answered, ") && !line.contains(" 0 lost")));
    assert_eq!(finish(child).status.code(), Some(1));
    server.shutdown();
}

/// The verdict on a change, by the exit status, and what is printed.
#[test]
fn compat_says_what_a_change_breaks() {
    #[farcall::service(name = "Bank")]
    #[expect(dead_code)]
    trait Old {
        fn pay(&self, account: u64, amount: u64);
        fn total(&self) -> u64;
    }
    #[farcall::service(name = "Bank")]
    #[expect(dead_code)]
    trait More {
        fn pay(&self, account: u64, amount: u64);
        fn total(&self) -> u64;
        fn close(&self);
    }
    #[farcall::service(name = "Bank", reserved = ["total"])]
    #[expect(dead_code)]
    trait Swapped {
        fn pay(&self, amount: u64, account: u64);
    }
    let folder = std::env::temp_dir().join(format!("farcall-compat-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let old = file("old.lock", farcall::lock::text::<OldClient>());
    let more = file("more.lock", farcall::lock::text::<MoreClient>());
    let swapped = file("swapped.lock", farcall::lock::text::<SwappedClient>());
    let broken = file("broken.lock", "a text".to_owned());

    let (code, out, _) = run(&["compat", &old, &old]);
    assert_eq!((code, out.contains("nothing changed")), (Some(0), true), "{out}");
    let (code, out, _) = run(&["compat", &old, &more]);
    assert_eq!((code, out.contains("close is added")), (Some(0), true), "{out}");
    let (code, ..) = run(&["compat", "--any-order", &old, &more]);
    assert_eq!(code, Some(1));
    let (code, out, _) = run(&["compat", &old, &swapped]);
    assert_eq!(code, Some(1));
    assert!(out.contains("- pay { account: u64, amount: u64, -> () }"), "{out}");
    assert!(out.contains("+ pay { amount: u64, account: u64, -> () }"), "{out}");
    assert!(out.contains("total is removed (old clients fail at new servers)"), "{out}");
    let (code, _, errors) = run(&["compat", &old, &broken]);
    assert_eq!((code, errors.contains("line 1")), (Some(2), true), "{errors}");
    std::fs::remove_dir_all(&folder).unwrap();
}
