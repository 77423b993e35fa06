//! Gates: a case holds handlers back as long as it needs, without a clock.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

#[derive(Debug, Default)]
struct Gate {
    open: bool,
    waiting: u64,
    wakers: Vec<Waker>,
}

/// The gates of one server, by number; each is closed until it is opened.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    gates: Mutex<HashMap<u64, Gate>>,
    /// Some gate was opened.
    opened: Condvar,
}

impl Gates {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Gate>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a gate for ever.
    pub(crate) fn open(&self, number: u64) {
        let wakers = {
            let mut gates = self.lock();
            let gate = gates.entry(number).or_default();
            gate.open = true;
            std::mem::take(&mut gate.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
        self.opened.notify_all();
    }

    /// How many wait at a gate.
    pub(crate) fn waiting(&self, number: u64) -> u64 {
        self.lock().get(&number).map_or(0, |gate| gate.waiting)
    }

    /// Blocks the thread until a gate is open.
    pub(crate) fn block(&self, number: u64) {
        let mut gates = self.lock();
        gates.entry(number).or_default().waiting += 1;
        while !gates.entry(number).or_default().open {
            gates = self.opened.wait(gates).unwrap_or_else(PoisonError::into_inner);
        }
        gates.entry(number).or_default().waiting -= 1;
    }

    /// Waits until a gate is open.
    pub(crate) fn pass(&self, number: u64) -> Pass<'_> {
        Pass { gates: self, number, counted: false }
    }
}

/// The future of [`Gates::pass`]; dropping it leaves the gate.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    gates: &'a Gates,
    number: u64,
    counted: bool,
}

impl Future for Pass<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut gates = self.gates.lock();
        let gate = gates.entry(self.number).or_default();
        if gate.open {
            return Poll::Ready(());
        }
        if !gate.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            gate.wakers.push(context.waker().clone());
        }
        if !self.counted {
            gate.waiting += 1;
            drop(gates);
            self.counted = true;
        }
        Poll::Pending
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.counted
            && let Some(gate) = self.gates.lock().get_mut(&self.number)
        {
            gate.waiting -= 1;
        }
    }
}
