//! In the steady state neither end makes a system call: a seccomp filter ends the program at the first.

use std::{env, mem::zeroed, process::Command};

use farcall_core::{Connection, ConnectionOptions, IdlePolicy, PollClient, Server};
use farcall_transports::Address;
use farcall_transports_conformance::backends;

/// From now on the calling thread may only write and end the program. Any other system call traps.
fn forbid_system_calls() {
    const ALLOWED: [libc::c_long; 2] = [libc::SYS_write, libc::SYS_exit_group];
    let filter =
        |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let give = |verdict: u32| filter(libc::BPF_RET | libc::BPF_K, 0, 0, verdict);
    let mut program = [
        // The number of the system call is the first word of what the filter sees.
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 2, 0, ALLOWED[0] as u32),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, ALLOWED[1] as u32),
        give(libc::SECCOMP_RET_TRAP),
        give(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: plain numbers for the first; for the second a filter that lives until the call returns.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(done, "set a seccomp filter: {}", std::io::Error::last_os_error());
}

/// Prints the number of the system call, and ends the program.
extern "C" fn trapped(_: libc::c_int, info: *const libc::c_void, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a `siginfo_t`, whose part for SIGSYS begins after 16 bytes with an
    // address of eight and the number of four. Only `write` and `exit_group` are called here.
    unsafe {
        let mut number = info.cast::<u8>().add(24).cast::<i32>().read();
        let mut text = *b"system call    0 in the steady state\n";
        for digit in (12..16).rev() {
            if number > 0 || digit == 15 {
                text[digit] = b'0' + (number % 10) as u8;
            }
            number /= 10;
        }
        libc::write(2, text.as_ptr().cast(), text.len());
        libc::_exit(2);
    }
}

fn catch_traps() {
    // SAFETY: an empty action is a valid value; the handler has the shape that SA_SIGINFO asks for
    // and does only what a handler may.
    let done = unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = trapped as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut())
    };
    assert_eq!(done, 0, "catch SIGSYS");
}

#[farcall::service]
trait Steady {
    /// A call that travels in one cache line.
    fn small(&self, bytes: [u8; 32]) -> [u8; 32];
    /// A call that fills half a slot.
    fn medium(&self, bytes: &[u8]) -> [u8; 2048];
    /// The server's thread makes no system call after the end of this turn.
    fn forbid(&self);
}

struct Handler;

impl Steady for Handler {
    fn small(&self, bytes: [u8; 32]) -> [u8; 32] {
        bytes
    }

    fn medium(&self, bytes: &[u8]) -> [u8; 2048] {
        bytes.try_into().unwrap_or([0; 2048])
    }

    fn forbid(&self) {
        forbid_system_calls();
    }
}

const WINDOW: usize = 32;

fn calls(client: &mut SteadyPollClient, rounds: u32) {
    for round in 0..rounds {
        let mark = round as u8;
        assert_eq!(client.small([mark; 32]), Ok([mark; 32]));
        assert_eq!(client.medium(&[mark; 2048]), Ok([mark; 2048]));
        let mut window = [const { None }; WINDOW];
        for pending in &mut window {
            *pending = Some(client.start_small([mark; 32]).expect("the window has room"));
        }
        for pending in window.iter_mut().flatten() {
            let answer = loop {
                client.poll();
                if let Some(answer) = client.take(pending) {
                    break answer;
                }
                std::hint::spin_loop();
            };
            assert_eq!(answer, Ok([mark; 32]));
        }
    }
}

/// Set in a child of these tests, to the backend over which it calls.
const CHILD: &str = "FARCALL_NO_SYSTEM_CALLS_CHILD";

fn call_in_peace(backend: &str) -> ! {
    catch_traps();
    let name = format!("shm://no-system-calls-{}?backend={backend}", std::process::id());
    let address: Address = name.parse().expect("an address");
    let _server = Server::builder()
        .service(SteadyServer::new(Handler))
        .threads(1)
        .idle(IdlePolicy::SPIN)
        .serve(&address)
        .expect("listen");
    let options = ConnectionOptions::default().idle(IdlePolicy::SPIN);
    let connection = Connection::connect(&address, SteadyPollClient::DESCRIPTION, &options);
    let mut client = SteadyPollClient::from_connection(connection.expect("connect"));
    calls(&mut client, 20);
    client.forbid().expect("the server's thread has a filter");
    forbid_system_calls();
    calls(&mut client, 40);
    // SAFETY: ends the program without a destructor: those make system calls. The server still runs.
    unsafe { libc::_exit(0) }
}

fn call_the_kernel() -> ! {
    catch_traps();
    forbid_system_calls();
    std::thread::yield_now();
    // SAFETY: ends the program without a destructor.
    unsafe { libc::_exit(0) }
}

/// Runs a test of this program again, as a child that may be ended at any moment.
fn run(test: &str, backend: &str) -> std::process::Output {
    let program = env::current_exe().expect("the path of this program");
    Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, backend)
        .output()
        .expect("run the child")
}

#[test]
fn calls_make_no_system_call_in_the_steady_state() {
    if let Ok(backend) = env::var(CHILD) {
        call_in_peace(&backend);
    }
    // A socket is a system call away.
    let on_device = backends::ALL.iter().filter(|backend| !backend.runs_on_stream());
    // The first response that `rfp` sends is no steady state: each way of its responses alone.
    let kinds = on_device.flat_map(|backend| match backend.name {
        "rfp" => vec!["rfp&responses=fetched", "rfp&responses=sent"],
        name => vec![name],
    });
    for backend in kinds {
        let output = run("calls_make_no_system_call_in_the_steady_state", backend);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{backend}: {}: {said}", output.status);
    }
}

#[test]
fn a_system_call_would_be_noticed() {
    if env::var_os(CHILD).is_some() {
        call_the_kernel();
    }
    let output = run("a_system_call_would_be_noticed", backends::ALL[0].name);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("system call   {}", libc::SYS_sched_yield)), "{said}");
}
