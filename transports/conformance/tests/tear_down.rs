//! Clients that come and go cost a server thread nothing that its other clients notice.

mod seccomp;

use std::env;
use std::time::{Duration, Instant};

use farcall_core::{Connection, ConnectionOptions, IdlePolicy, PollClient, Server};
use farcall_transports::Address;

#[farcall::service]
trait Steady {
    fn echo(&self, bytes: [u8; 32]) -> [u8; 32];
    /// The server's thread neither maps nor unmaps memory after the end of this turn, and opens and closes nothing. It may use the
    /// sockets that it has, if they are its transport.
    fn forbid(&self, has_sockets: bool);
    /// Nanoseconds of a processor that the server's thread has used.
    fn processor_time(&self) -> u64;
}

struct Handler;

impl Steady for Handler {
    fn echo(&self, bytes: [u8; 32]) -> [u8; 32] {
        bytes
    }

    fn processor_time(&self) -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    fn forbid(&self, has_sockets: bool) {
        let mut forbidden = vec![
            libc::SYS_munmap,
            libc::SYS_mremap,
            libc::SYS_close,
            libc::SYS_shutdown,
            libc::SYS_mmap,
            libc::SYS_memfd_create,
            libc::SYS_ftruncate,
            libc::SYS_fcntl,
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_clone3,
            libc::SYS_clone,
        ];
        if !has_sockets {
            // With sockets, a client's comes into the thread's set and out of it by one call each.
            forbidden.extend([libc::SYS_epoll_ctl, libc::SYS_sendmsg, libc::SYS_recvmsg]);
        }
        seccomp::forbid(&forbidden);
    }
}

const BACKENDS: [&str; 6] = ["write_imm", "send_recv", "rfp", "scale", "datagram", "tcp"];

/// Set in a child of these tests, to the backend over which it calls.
const CHILD: &str = "FARCALL_TEAR_DOWN_CHILD";

const BOUND: Duration = Duration::from_secs(20);

fn connect(address: &Address) -> SteadyPollClient {
    let options = ConnectionOptions::default().idle(IdlePolicy::SPIN);
    let connection = Connection::connect(address, SteadyPollClient::DESCRIPTION, &options);
    SteadyPollClient::from_connection(connection.expect("connect"))
}

/// Where a server with this backend listens.
fn address_of(backend: &str, what: &str) -> Address {
    let name = match backend {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        _ => format!("shm://tear-down-{what}-{}?backend={backend}", std::process::id()),
    };
    name.parse().expect("an address")
}

fn let_clients_come_and_go(backend: &str) -> ! {
    seccomp::catch_traps();
    let address = address_of(backend, "system-calls");
    let server = Server::builder()
        .service(SteadyServer::new(Handler))
        .threads(1)
        .idle(IdlePolicy::SPIN)
        .serve(&address)
        .expect("listen");
    let address: Address = server.address().parse().expect("an address");
    let mut client = connect(&address);
    client.forbid(backend == "tcp").expect("the server's thread has a filter");
    for round in 0..6 {
        // More at a time with each round: what grows at the server with the number of clients is not made there either.
        let mut others: Vec<_> = (0..=round).map(|_| connect(&address)).collect();
        for client in others.iter_mut().chain([&mut client]) {
            assert_eq!(client.echo([round; 32]), Ok([round; 32]));
        }
        drop(others);
        let deadline = Instant::now() + BOUND;
        while server.connections() > 1 {
            assert!(Instant::now() < deadline, "a client that has left is still there");
            assert_eq!(client.echo([round; 32]), Ok([round; 32]));
        }
    }
    assert_eq!(client.echo([9; 32]), Ok([9; 32]));
    // SAFETY: ends the program without a destructor: the server's thread has to unmap what it has.
    unsafe { libc::_exit(0) }
}

#[test]
fn clients_that_come_and_go_map_and_close_nothing_on_the_server_thread() {
    if let Ok(backend) = env::var(CHILD) {
        let_clients_come_and_go(&backend);
    }
    for backend in BACKENDS {
        let test = "clients_that_come_and_go_map_and_close_nothing_on_the_server_thread";
        let output = seccomp::run(test, (CHILD, backend));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{backend}: {}: {said}", output.status);
    }
}

/// How long clients that come and go hold the server thread. It sleeps in between, so that the time of its processor says it on a busy
/// machine too.
#[test]
#[ignore = "a measurement, to be run in a release build"]
fn processor_time_of_the_server_thread_per_client() {
    const CLIENTS: u64 = 200;
    for backend in BACKENDS {
        let address = address_of(backend, "time");
        let server = Server::builder().service(SteadyServer::new(Handler)).threads(1);
        let server = server.idle(IdlePolicy::PARK).serve(&address).expect("listen");
        let address: Address = server.address().parse().expect("an address");
        let mut client = connect(&address);
        let mut come_and_go = |clients| {
            let before = client.processor_time().expect("a time");
            for _ in 0..clients {
                drop(connect(&address));
                let deadline = Instant::now() + BOUND;
                while server.connections() > 1 {
                    assert!(Instant::now() < deadline, "a client that has left is still there");
                    std::thread::yield_now();
                }
            }
            client.processor_time().expect("a time") - before
        };
        come_and_go(20);
        println!("{backend}: {} us", come_and_go(CLIENTS) / CLIENTS / 1000);
    }
}
