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
}

impl Blueprint<'_> {
    /// The command that is this life of a machine.
    pub(crate) fn qemu(&self, life: Life) -> Command {
        let Life { number, boot } = life;
        // The kernel kills it when we die, in whatever way.
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        // Paths of sockets may have 108 bytes: short ones, from here.
        qemu.current_dir(self.folder);
        // A /dev/kvm that is there may not work: all figures are for software emulation.
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2G"]);
        qemu.args(["-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot"]);
        qemu.arg("-kernel").arg(&self.kernel.image).args(["-initrd", "initrd"]);
        let nodes = self.nodes;
        // A busy computer makes an emulated clock look broken: the kernel is not to doubt it.
        qemu.args([
            "-append",
            &format!(
                "console=ttyS0 panic=-1 quiet mitigations=off no_timer_check tsc=reliable \
                 FARCALL_NODE={number} FARCALL_NODES={nodes} FARCALL_BOOT={boot}"
            ),
        ]);
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
