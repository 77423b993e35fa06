//! System calls that end the program: seccomp filters for single threads, and programs to set them in.

#![allow(dead_code, reason = "no test uses all of it")]

use std::mem::zeroed;
use std::process::{Command, Output};

const TRAP: u32 = libc::SECCOMP_RET_TRAP;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// From now on the calling thread may make only these system calls. Any other traps.
pub(crate) fn allow_only(calls: &[libc::c_long]) {
    set_filter(calls, (ALLOW, TRAP));
}

/// From now on these system calls of the calling thread trap.
pub(crate) fn forbid(calls: &[libc::c_long]) {
    set_filter(calls, (TRAP, ALLOW));
}

fn set_filter(calls: &[libc::c_long], (verdict, of_others): (u32, u32)) {
    let filter = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    // The number of the system call is the first word of what the filter sees.
    let mut program = vec![filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (at, call) in calls.iter().enumerate() {
        // Over the calls that follow, and the verdict of others.
        let jump = (calls.len() - at) as u8;
        program.push(filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jump, *call as u32));
    }
    program.push(filter(libc::BPF_RET | libc::BPF_K, 0, of_others));
    program.push(filter(libc::BPF_RET | libc::BPF_K, 0, verdict));
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
        let mut text = *b"system call    0 that is forbidden  \n";
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

/// Traps end the program from now on.
pub(crate) fn catch_traps() {
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

/// Runs a test of this program again, as a child that may be ended at any moment, with this variable set.
pub(crate) fn run(test: &str, (variable, value): (&str, &str)) -> Output {
    let program = std::env::current_exe().expect("the path of this program");
    Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(variable, value)
        .output()
        .expect("run the child")
}
