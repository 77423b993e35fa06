//! The machine that things go wrong on: its device and network interface, and bounded waiting.

use std::process::Command;

use farcall_verbs::{Device, QpType, WorkCompletion};

use crate::rig::{Rig, join_here};
use crate::verdict::{CaseResult, Halt};

/// No wait is longer: ample on a machine that is busy with other things.
const PATIENCE_NS: u64 = 20_000_000_000;

pub(super) struct Site {
    pub(super) device: String,
    pub(super) netdev: String,
}

impl Site {
    pub(super) fn new(device: &str, netdev: &str) -> Site {
        Site { device: device.to_owned(), netdev: netdev.to_owned() }
    }

    pub(super) fn open(&self) -> CaseResult<Device> {
        Ok(Device::open(&self.device)?)
    }

    /// Runs `ip` with these words.
    pub(super) fn ip(&self, words: &[&str]) -> CaseResult {
        let output = Command::new("ip").args(words).output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(Halt::failed(format!("ip {}: {said}", words.join(" "))))
    }

    /// Runs `work`, and afterwards undoes a change with `ip`, even if `work` failed.
    pub(super) fn then_ip<T>(
        &self,
        back: &[&str],
        work: impl FnOnce() -> CaseResult<T>,
    ) -> CaseResult<T> {
        let done = work();
        self.ip(back)?;
        done
    }

    /// Waits until `attempt` finds what it looks for.
    pub(super) fn wait<T>(
        &self,
        device: &Device,
        what: &str,
        mut attempt: impl FnMut() -> CaseResult<Option<T>>,
    ) -> CaseResult<T> {
        let deadline_ns = device.now_ns() + PATIENCE_NS;
        loop {
            if let Some(found) = attempt()? {
                return Ok(found);
            }
            if device.now_ns() > deadline_ns {
                return Err(Halt::failed(format!("timed out waiting for {what}")));
            }
            std::thread::yield_now();
        }
    }

    /// The next completion of a queue pair.
    pub(super) fn completion(&self, device: &Device, rig: &mut Rig) -> CaseResult<WorkCompletion> {
        self.wait(device, "a completion", || rig.poll_once())
    }

    /// Two queue pairs of the device, connected with each other.
    pub(super) fn pair(&self, device: &Device) -> CaseResult<(Rig, Rig)> {
        let mut a = Rig::unconnected(device, QpType::Rc)?;
        let mut b = Rig::unconnected(device, QpType::Rc)?;
        join_here(&mut a.qp, &mut b.qp)?;
        Ok((a, b))
    }
}
