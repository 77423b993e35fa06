//! One virtual machine: a QEMU process that lives no longer than this one.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread;

use anyhow::{Context, Result};

use super::kernel::Kernel;

/// What a virtual machine is made of.
pub(crate) struct Blueprint<'a> {
    pub(crate) kernel: &'a Kernel,
    /// The folder of the run: `initrd` is there, and the sockets between the machines.
    pub(crate) folder: &'a Path,
    pub(crate) nodes: u8,
    /// See [`clock`](super::clock).
    pub(crate) counter_khz: Option<u64>,
}

impl Blueprint<'_> {
    /// The command that is this life of a machine.
    pub(crate) fn qemu(&self, life: Life) -> Command {
        let number = life.number;
        let mut qemu = mortal("qemu-system-x86_64");
        // Paths of sockets may have 108 bytes: short ones, from here.
        qemu.current_dir(self.folder);
        // A /dev/kvm that is there may not work: all figures are for software emulation.
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "2G"]);
        // Two machines with a CPU each ask for no more of a small computer than one with two. And rxe of
        // 6.12 may use a queue pair after it is freed where a packet comes in on one CPU while another
        // ends the queue pair.
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
        // Errors that rxe reports are what tests provoke: they are not for the console.
        let mut arguments = "console=ttyS0 panic=-1 loglevel=3 mitigations=off".to_owned();
        // rxe's work runs where it was asked for. Else the kernel moves it between the processors, with an interrupt
        // from one to the other for each packet: calls then take twice as long in some runs and not in others.
        arguments.push_str(" workqueue.default_affinity_scope=cpu");
        // On a busy computer emulated timers look broken: the kernel is not to doubt them, nor to measure with them.
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

/// A command for `program` that the kernel kills when the thread that started it ends, in whatever way.
/// If that has happened before the kernel was asked for it, the program is not even started.
fn mortal(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "sh", "-c", r#"[ "$PPID" = "$0" ] && exec "$@""#]);
    command.arg(std::process::id().to_string()).arg(program);
    command
}

/// Which machine, and which of its lives: one whose power was cut can boot again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) number: u8,
    pub(crate) boot: u32,
}

/// What comes from a machine's console.
#[derive(Debug)]
pub(crate) enum Heard {
    Line(Life, String),
    /// The process has closed its output: it has ended, or is about to.
    Closed(Life),
}

/// A machine under power. Dropping it cuts the power.
#[derive(Debug)]
pub(crate) struct Node {
    process: Child,
    keyboard: Option<ChildStdin>,
}

impl Node {
    /// Starts `command`; what it prints goes to `console`.
    pub(crate) fn power_on(
        mut command: Command,
        life: Life,
        console: SyncSender<Heard>,
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

    /// Lets `init` go on. It asks for as long as it has not heard this.
    pub(crate) fn go(&mut self) {
        if let Some(keyboard) = &mut self.keyboard {
            // A machine that has ended cannot listen: its console tells of that.
            let _ = keyboard.write_all(b"go\n").and_then(|()| keyboard.flush());
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It has ended already, or is killed now; either way it is waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn listen(mut output: impl BufRead, life: Life, console: &SyncSender<Heard>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match output.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line).into_owned();
                if console.send(Heard::Line(life, text)).is_err() {
                    return;
                }
            }
        }
    }
    // Nobody listens any more when the run has ended.
    let _ = console.send(Heard::Closed(life));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use super::*;

    /// Set in the process that is to be killed.
    const TO_BE_KILLED: &str = "XTASK_TEST_TO_BE_KILLED";

    /// Before the number of the process that must not outlive it.
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

    /// Whether the process is there, and more than an entry that nobody has asked for its status.
    fn runs(process: u32) -> bool {
        fs::read_to_string(format!("/proc/{process}/stat"))
            .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
    }
}
