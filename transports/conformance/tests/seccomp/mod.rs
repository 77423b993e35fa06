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

/// Prints the number of the system call and its arguments, and ends the program.
extern "C" fn trapped(_: libc::c_int, info: *const libc::c_void, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a `siginfo_t`, whose part for SIGSYS begins after 16 bytes with an
    // address of eight and the number of four, and the registers of the system call.
    // Only `write` and `exit_group` are called here.
    unsafe {
        let number = info.cast::<u8>().add(24).cast::<i32>().read();
        print(b"system call that is forbidden: ", number as u64);
        for argument in arguments(context) {
            print(b"  argument ", argument);
        }
        libc::_exit(2);
    }
}

/// Prints a number after a text, as a signal handler may.
unsafe fn print(text: &[u8], number: u64) {
    let (mut digits, mut left, mut at) = ([b'\n'; 21], number, 20);
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    // SAFETY: two buffers of these lengths.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len());
        libc::write(2, digits[at..].as_ptr().cast(), digits.len() - at);
    }
}

/// The arguments of the system call that has trapped.
#[cfg(target_arch = "x86_64")]
unsafe fn arguments(context: *mut libc::c_void) -> [u64; 6] {
    use libc::{REG_R8, REG_R9, REG_R10, REG_RDI, REG_RDX, REG_RSI};
    // SAFETY: the context of a signal handler, which lives as long as that runs.
    let registers = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    [REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9].map(|at| registers[at as usize] as u64)
}

/// Known on x86-64 only.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn arguments(_: *mut libc::c_void) -> [u64; 0] {
    []
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
