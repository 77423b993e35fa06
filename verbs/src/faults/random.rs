//! Faults by chance, from a seed.

use std::sync::Mutex;

use super::injector::{FaultInjector, Incoming, Outgoing, Reception, Verdict};
use super::lock;
use crate::QpType;
use crate::dice::Dice;

/// Faults that happen with given probabilities, 0 at first. A rate of 0 draws no random number: it leaves the
/// others as they were. One that is used by one thread does the same in each run with the same seed.
#[derive(Debug)]
pub struct RandomFaults {
    rates: Rates,
    dice: Mutex<Dice>,
}

#[derive(Debug, Default)]
struct Rates {
    datagram_loss: f64,
    unreliable_loss: f64,
    datagram_copy: f64,
    datagram_delay: f64,
    longest_delay: u32,
    received_datagram_loss: f64,
    break_connection: f64,
}

impl RandomFaults {
    /// No faults yet.
    pub fn new(seed: u64) -> RandomFaults {
        RandomFaults { rates: Rates::default(), dice: Mutex::new(Dice::new(seed)) }
    }

    /// Sets how probably a datagram is lost.
    pub fn datagram_loss(mut self, rate: f64) -> Self {
        self.rates.datagram_loss = rate;
        self
    }

    /// Sets how probably a message of an unreliable connection is lost.
    pub fn unreliable_loss(mut self, rate: f64) -> Self {
        self.rates.unreliable_loss = rate;
        self
    }

    /// Sets how probably a datagram arrives twice.
    pub fn datagram_copy(mut self, rate: f64) -> Self {
        self.rates.datagram_copy = rate;
        self
    }

    /// Sets how probably a datagram is overtaken, by 1 to `longest` later work requests of its queue pair.
    pub fn datagram_delay(mut self, rate: f64, longest: u32) -> Self {
        (self.rates.datagram_delay, self.rates.longest_delay) = (rate, longest);
        self
    }

    /// Sets how probably a datagram that has arrived is lost.
    pub fn received_datagram_loss(mut self, rate: f64) -> Self {
        self.rates.received_datagram_loss = rate;
        self
    }

    /// Sets how probably a work request of a reliable connection finds the connection lost.
    pub fn break_connection(mut self, rate: f64) -> Self {
        self.rates.break_connection = rate;
        self
    }
}

impl FaultInjector for RandomFaults {
    fn outgoing(&self, request: &Outgoing<'_>) -> Verdict {
        let rates = &self.rates;
        let mut dice = lock(&self.dice);
        let loss = match request.ty {
            QpType::Rc => rates.break_connection,
            QpType::Uc => rates.unreliable_loss,
            QpType::Ud => rates.datagram_loss,
        };
        if dice.chance(loss) {
            return Verdict::Drop;
        }
        if request.ty != QpType::Ud {
            return Verdict::Pass;
        }
        if dice.chance(rates.datagram_copy) {
            return Verdict::Duplicate;
        }
        if dice.chance(rates.datagram_delay) {
            let longest = u64::from(rates.longest_delay.max(1));
            return Verdict::Delay(dice.below(longest) as u32 + 1);
        }
        Verdict::Pass
    }

    fn incoming(&self, _: &Incoming<'_>) -> Reception {
        match lock(&self.dice).chance(self.rates.received_datagram_loss) {
            true => Reception::Drop,
            false => Reception::Deliver,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, QpNumber};

    fn request(ty: QpType) -> Outgoing<'static> {
        Outgoing {
            qp: QpNumber(1),
            ty,
            operation: Operation::Send,
            to: None,
            remote: None,
            len: 0,
            imm: None,
            signaled: false,
            payload: &[],
        }
    }

    fn drawn(faults: &RandomFaults, count: usize) -> Vec<Verdict> {
        (0..count).map(|_| faults.outgoing(&request(QpType::Ud))).collect()
    }

    #[test]
    fn a_rate_of_0_draws_nothing() {
        let idle = RandomFaults::new(7);
        for ty in [QpType::Rc, QpType::Uc, QpType::Ud] {
            assert_eq!(idle.outgoing(&request(ty)), Verdict::Pass);
        }
        assert_eq!(lock(&idle.dice).word(), Dice::new(7).word());
    }

    #[test]
    fn faults_come_as_often_as_asked_and_again_with_the_seed() {
        let faults =
            || RandomFaults::new(3).datagram_loss(0.1).datagram_copy(0.1).datagram_delay(0.1, 4);
        let verdicts = drawn(&faults(), 10_000);
        assert_eq!(verdicts, drawn(&faults(), 10_000));
        for kind in [Verdict::Drop, Verdict::Duplicate] {
            let count = verdicts.iter().filter(|verdict| **verdict == kind).count();
            assert!((800..1200).contains(&count), "{kind:?}: {count}");
        }
        let delays = verdicts.iter().filter_map(|verdict| match verdict {
            Verdict::Delay(requests) => Some(*requests),
            _ => None,
        });
        let delays: Vec<_> = delays.collect();
        assert!((650..950).contains(&delays.len()), "{}", delays.len());
        assert!((1..=4).all(|requests| delays.contains(&requests)) && !delays.contains(&5));
    }
}
