//! One run: from power-on to the status of COMMAND, with timeouts.

use std::io::{self, Write};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::node::{ConsoleEvent, Life, Node};
use super::protocol::{Event, Token};

/// A boot takes some 3 s alone, and several times that on a busy machine.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);

/// What a machine prints when its kernel gives up.
///
/// Under QEMU before 8.1 a processor may run an instruction as it was before the kernel patched it. The kernel then dies of an `int3` or of a
/// double fault, once in some hundred boots.
pub(crate) const KERNEL_PANIC: &str = "Kernel panic - not syncing";

/// How often a machine is started whose kernel panics before COMMAND could be its cause.
const BOOTS: u32 = 3;

/// The most lines waiting to be printed; more make the machine wait.
const LINES_WAITING: usize = 1024;

/// What a run does, and its time limit.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) nodes: u8,
    pub(crate) timeout: Duration,
    /// When the power of node 1 is cut, after all nodes are up.
    pub(crate) power_cut: Option<Duration>,
    /// How long after that it boots again.
    pub(crate) power_back: Option<Duration>,
}

/// Runs `plan` with machines that are started by the commands that `power` returns, and writes their output
/// to `output`. The status is the largest of all nodes, or with a power cut that of node 2.
pub(crate) fn run(
    plan: &Plan,
    token: &Token,
    power: &dyn Fn(Life) -> Command,
    output: &mut dyn Write,
) -> Result<u8> {
    let (sender, receiver) = sync_channel(LINES_WAITING);
    let mut session = Session {
        plan,
        token,
        power,
        output,
        sender,
        machines: Vec::new(),
        start: Instant::now(),
        alarms: Alarms { cut: None, back: None },
    };
    for number in 1..=plan.nodes {
        let machine = session.power_on(Life { number, boot: 1 })?;
        session.machines.push(machine);
    }
    session.play(&receiver)
}

struct Session<'a> {
    plan: &'a Plan,
    token: &'a Token,
    power: &'a dyn Fn(Life) -> Command,
    output: &'a mut dyn Write,
    sender: SyncSender<ConsoleEvent>,
    machines: Vec<Machine>,
    start: Instant,
    alarms: Alarms,
}

struct Machine {
    life: Life,
    since: Instant,
    state: State,
    /// The times that it was started in this life, and whether its kernel has panicked since the last one.
    boots: u32,
    panicked: bool,
    /// `None` while the power is cut.
    node: Option<Node>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Booting,
    Up,
    Running,
    Ended(u8),
    Cut,
}

/// The times of scheduled actions.
struct Alarms {
    cut: Option<Instant>,
    back: Option<Instant>,
}

impl Session<'_> {
    fn play(&mut self, receiver: &Receiver<ConsoleEvent>) -> Result<u8> {
        loop {
            if let Some(status) = self.status()? {
                return Ok(status);
            }
            let wait = self.next_alarm().saturating_duration_since(Instant::now());
            match receiver.recv_timeout(wait) {
                Ok(ConsoleEvent::Line(life, line)) => self.line(life, &line)?,
                Ok(ConsoleEvent::Closed(life)) => self.closed(life)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("no machine is left to listen to"),
            }
            // Also while lines keep arriving: output must not delay the end.
            self.ring(Instant::now())?;
        }
    }

    /// The status of the run, once it is known.
    fn status(&self) -> Result<Option<u8>> {
        let ended = |machine: &Machine| match machine.state {
            State::Ended(status) => Some(status),
            _ => None,
        };
        if self.plan.power_cut.is_none() {
            let statuses: Option<Vec<u8>> = self.machines.iter().map(ended).collect();
            return Ok(statuses.and_then(|statuses| statuses.into_iter().max()));
        }
        let Some(status) = self.machines.last().and_then(ended) else { return Ok(None) };
        if status == 0 && self.alarms.cut.is_some() {
            bail!("node 2 ended before the power of node 1 was cut: nothing was tried");
        }
        if status == 0 && self.alarms.back.is_some() {
            bail!("node 2 ended before the power of node 1 was back: nothing was tried");
        }
        Ok(Some(status))
    }

    fn line(&mut self, life: Life, line: &str) -> Result<()> {
        let parsed = self.token.parse(line);
        if parsed.event.is_none() || !parsed.output.is_empty() {
            self.print(life, parsed.output)?;
        }
        let Some(machine) = self.machines.iter_mut().find(|machine| machine.life == life) else {
            return Ok(());
        };
        machine.panicked |= parsed.output.contains(KERNEL_PANIC);
        match (parsed.event, machine.state) {
            (Some(Event::Broken(why)), _) => bail!("node {} cannot come up: {why}", life.number),
            (Some(Event::Up), State::Booting) => {
                machine.state = State::Up;
                self.start_when_all_are_up();
            }
            (Some(Event::Exit(status)), State::Running) => machine.state = State::Ended(status),
            // `init` repeats its messages.
            _ => {}
        }
        Ok(())
    }

    /// Starts COMMAND on all machines at once, or on a machine that is back after a power cut when it is up.
    fn start_when_all_are_up(&mut self) {
        if self.machines.iter().any(|machine| machine.state == State::Booting) {
            return;
        }
        for machine in self.machines.iter_mut().filter(|machine| machine.state == State::Up) {
            machine.state = State::Running;
            if let Some(node) = &mut machine.node {
                node.go();
            }
            if machine.life == FIRST_LIFE {
                self.alarms.cut = self.plan.power_cut.map(|after| Instant::now() + after);
            }
        }
    }

    fn closed(&mut self, life: Life) -> Result<()> {
        let Some(at) = self.machines.iter().position(|machine| machine.life == life) else {
            return Ok(());
        };
        let Machine { state, boots, panicked, .. } = self.machines[at];
        match state {
            State::Cut => Ok(()),
            State::Booting if panicked && boots < BOOTS => {
                self.print(life, "[its kernel panicked while it booted; once more]")?;
                self.machines[at] = Machine { boots: boots + 1, ..self.power_on(life)? };
                Ok(())
            }
            _ => bail!(
                "node {} powered off without reporting a status: it was switched off, or its kernel \
                 panicked, or QEMU could not run it",
                life.number
            ),
        }
    }

    /// The time of the next action.
    fn next_alarm(&self) -> Instant {
        let boots = self
            .machines
            .iter()
            .filter(|machine| machine.state == State::Booting)
            .map(|machine| machine.since + BOOT_TIMEOUT);
        let others = [self.alarms.cut, self.alarms.back].into_iter().flatten();
        boots.chain(others).fold(self.start + self.plan.timeout, Instant::min)
    }

    /// Performs due actions.
    fn ring(&mut self, now: Instant) -> Result<()> {
        if now >= self.start + self.plan.timeout {
            let late: Vec<String> = self
                .machines
                .iter()
                .filter(|machine| !matches!(machine.state, State::Ended(_) | State::Cut))
                .map(|machine| format!("node {} ({})", machine.life.number, machine.state.text()))
                .collect();
            bail!(
                "not ended after {} s (--timeout), and killed: {}",
                self.plan.timeout.as_secs_f64(),
                late.join(", ")
            );
        }
        for machine in self.machines.iter().filter(|machine| machine.state == State::Booting) {
            if now >= machine.since + BOOT_TIMEOUT {
                bail!("node {} has not booted in {BOOT_TIMEOUT:?}", machine.life.number);
            }
        }
        if self.alarms.cut.is_some_and(|at| now >= at) {
            self.alarms.cut = None;
            self.print(FIRST_LIFE, "[power cut]")?;
            let machine = &mut self.machines[0];
            machine.state = State::Cut;
            machine.node = None;
            self.alarms.back = self.plan.power_back.map(|after| now + after);
        }
        if self.alarms.back.is_some_and(|at| now >= at) {
            self.alarms.back = None;
            let life = Life { boot: 2, ..FIRST_LIFE };
            self.print(life, "[power back]")?;
            self.machines[0] = self.power_on(life)?;
        }
        Ok(())
    }

    fn power_on(&self, life: Life) -> Result<Machine> {
        let node = Node::power_on((self.power)(life), life, self.sender.clone())?;
        Ok(Machine {
            life,
            since: Instant::now(),
            state: State::Booting,
            boots: 1,
            panicked: false,
            node: Some(node),
        })
    }

    fn print(&mut self, life: Life, text: &str) -> Result<()> {
        let written: io::Result<()> = if self.plan.nodes == 1 {
            writeln!(self.output, "{text}")
        } else {
            writeln!(self.output, "node {} | {text}", life.number)
        };
        written.and_then(|()| self.output.flush()).context("cannot write the output")
    }
}

const FIRST_LIFE: Life = Life { number: 1, boot: 1 };

impl State {
    fn text(self) -> &'static str {
        match self {
            State::Booting => "booting",
            State::Up => "up, and waiting for the other",
            State::Running => "COMMAND still runs",
            State::Ended(_) => "ended",
            State::Cut => "without power",
        }
    }
}

#[cfg(test)]
mod tests;
