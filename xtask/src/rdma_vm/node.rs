//! One virtual machine: a QEMU process that does not outlive this process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread;

use anyhow::{Context, Result};

use super::kernel::Kernel;

/// The configuration of a virtual machine.
pub(crate) struct Blueprint<'a> {
    pub(crate) kernel: &'a Kernel,
    /// The folder of the run, which contains `initrd` and the sockets between the machines.
    pub(crate) folder: &'a Path,
    pub(crate) nodes: u8,
    /// See [`clock`](super::clock).
    pub(crate) counter_khz: Option<u64>,
}

impl Blueprint<'_> {
    /// The command for one boot of a machine.
    pub(crate) fn qemu(&self, life: Life) -> Command {
        let number = life.number;
        let mut qemu = mortal("qemu-system-x86_64");
        // Paths of sockets may have 108 bytes, so use relative ones.
        qemu.current_dir(self.folder);
        // An existing /dev/kvm may not work, and all measurements are for software emulation.
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "2G"]);
        // Two machines with a CPU each need as much of a small computer as one with two. Also, rxe of 6.12 may use a
        // queue pair after it is freed if a packet arrives on one CPU while another destroys the queue pair.
        qemu.args(["-smp", if self.nodes == 1 { "2" } else { "1" }]);
        qemu.args(["-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot"]);
        qemu.arg("-kernel").arg(&self.kernel.image).args(["-initrd", "initrd"]);
        qemu.arg("-append").arg(self.kernel_arguments(life));
        if self.nodes == 2 {
            let peer = 3 - number;
            qemu.arg("-netdev").arg(format!(
                "dgram,id=wire,local.type=unix,local.path=node-{number},\
                 remote.type=unix,remote.path=node-{peer}"
            ));
            qemu.arg("-device").arg(format!(
                "virtio-net-pci,netdev=wire,host_mtu=4200,mac=52:54:00:00:00:0{number}"
            ));
        } else {
            qemu.args(["-nic", "none"]);
        }
        qemu
    }

    fn kernel_arguments(&self, Life { number, boot }: Life) -> String {
        // Tests provoke errors that rxe logs; keep them off the console.
        let mut arguments = "console=ttyS0 panic=-1 loglevel=3 mitigations=off".to_owned();
        // Run rxe's work on the CPU that queued it. Otherwise the kernel moves it between CPUs, with an interrupt
        // for each packet, and calls take twice as long in some runs.
        arguments.push_str(" workqueue.default_affinity_scope=cpu");
        // On a busy computer emulated timers look broken: the kernel must neither check them nor measure with them.
        arguments.push_str(" no_timer_check tsc=reliable");
        if let Some(khz) = self.counter_khz {
            arguments.push_str(&format!(" tsc_early_khz={khz}"));
        }
        let nodes = self.nodes;
        arguments
            .push_str(&format!(" FARCALL_NODE={number} FARCALL_NODES={nodes} FARCALL_BOOT={boot}"));
        arguments
    }
}

/// A command for `program` that the kernel kills when the thread that started it ends for any reason. If that
/// thread has ended already, the program is not started.
fn mortal(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "sh", "-c", r#"[ "$PPID" = "$0" ] && exec "$@""#]);
    command.arg(std::process::id().to_string()).arg(program);
    command
}

/// A machine and one of its boots: after a power cut it can boot again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) number: u8,
    pub(crate) boot: u32,
}

/// An event on a machine's console.
#[derive(Debug)]
pub(crate) enum ConsoleEvent {
    Line(Life, String),
    /// The process has closed its output: it has ended or is about to.
    Closed(Life),
}

/// A running machine. Dropping it cuts its power.
#[derive(Debug)]
pub(crate) struct Node {
    process: Child,
    keyboard: Option<ChildStdin>,
}

impl Node {
    /// Starts `command`, whose output goes to `console`.
    pub(crate) fn power_on(
        mut command: Command,
        life: Life,
        console: SyncSender<ConsoleEvent>,
    ) -> Result<Node> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command
            .spawn()
            .with_context(|| format!("cannot start `{}`", command.get_program().display()))?;
        let keyboard = process.stdin.take();
        let output = process.stdout.take();
        let node = Node { process, keyboard };
        let output = output.context("the process has no output")?;
        thread::Builder::new()
            .name(format!("console {}", life.number))
            .spawn(move || listen(BufReader::new(output), life, &console))
            .context("cannot start a thread")?;
        Ok(node)
    }

    /// Lets `init` continue, which waits for this.
    pub(crate) fn go(&mut self) {
        if let Some(keyboard) = &mut self.keyboard {
            // A machine that has ended does not read this; its console reports that.
            let _ = keyboard.write_all(b"go\n").and_then(|()| keyboard.flush());
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Kill it if it has not ended already, and wait for it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn listen(mut output: impl BufRead, life: Life, console: &SyncSender<ConsoleEvent>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match output.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line).into_owned();
                if console.send(ConsoleEvent::Line(life, text)).is_err() {
                    return;
                }
            }
        }
    }
    // The run may have ended, and then there is no receiver.
    let _ = console.send(ConsoleEvent::Closed(life));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use super::*;

    /// Set in the process that is to be killed.
    const TO_BE_KILLED: &str = "XTASK_TEST_TO_BE_KILLED";

    /// The prefix of the id of the process that must not outlive it.
    const STARTED: &str = "started ";

    #[test]
    fn a_machine_does_not_outlive_us_even_if_we_are_killed() {
        if std::env::var_os(TO_BE_KILLED).is_some() {
            let mut sleep = mortal("sleep");
            sleep.arg("60").stdout(Stdio::null()).stderr(Stdio::null());
            let mut machine = sleep.spawn().expect("it is on every machine");
            println!("\n{STARTED}{}", machine.id());
            let status = machine.wait();
            panic!("it is to run until this process is killed: {status:?}");
        }
        let name = "rdma_vm::node::tests::a_machine_does_not_outlive_us_even_if_we_are_killed";
        let mut us = Command::new(std::env::current_exe().expect("this program has a file"))
            .args(["--exact", "--nocapture", name])
            .env(TO_BE_KILLED, "1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs already");
        let output = BufReader::new(us.stdout.take().expect("it is piped"));
        let machine = output
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix(STARTED)?.parse::<u32>().ok())
            .expect("it tells whom it started");
        assert!(runs(machine));
        us.kill().expect("it is ours");
        us.wait().expect("it is ours");
        let end = Instant::now() + Duration::from_secs(30);
        while runs(machine) {
            assert!(Instant::now() < end, "process {machine} still runs");
            thread::yield_now();
        }
    }

    /// Whether the process exists and is not a zombie.
    fn runs(process: u32) -> bool {
        fs::read_to_string(format!("/proc/{process}/stat"))
            .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
    }
}
